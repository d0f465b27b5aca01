"""Durations, sizes, counts and switches as configuration files write them.

Each class is a mark for a pydantic field: `Annotated[float, Duration()]` is a float of seconds that a file may write
as `60`, `60s` or `500ms`. Numbers are accepted as text too, because a `${VARIABLE}` always yields text.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

VARIABLE_PATTERN = r"\$\{"
"""What the JSON Schema takes for a value that holds a variable, whose content an editor cannot know."""

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


def mistake(sentence: str, suggestion: str | None = None) -> PydanticCustomError:
    """The error that a field's reader raises: a sentence for the user, never holding the value itself."""
    return PydanticCustomError("stomp_gateway", sentence, {"suggestion": suggestion} if suggestion else None)


class Quantity(ABC):
    """A field that reads one kind of scalar. Subclasses raise `mistake` for values they do not take."""

    @abstractmethod
    def read(self, value: object) -> object:
        """Turn a value from the file into the field's value."""

    @abstractmethod
    def json_schema(self) -> JsonSchemaValue:
        """The JSON Schema of what `read` takes."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return self.json_schema()


@dataclass(frozen=True)
class Duration(Quantity):
    """Seconds as a float, from a number of seconds or text with a unit: ms, s, min, h or d.

    Args:
        zero: whether 0 is allowed.
        most: the largest value allowed, in seconds.
        whole: whether the value must be a whole number of seconds.
    """

    zero: bool = True
    most: float | None = None
    whole: bool = False

    def read(self, value: object) -> float:
        """Seconds."""
        seconds = self._seconds(value)
        if not math.isfinite(seconds) or seconds < 0 or (self.most is not None and seconds > self.most):
            raise mistake(self._range())
        if seconds == 0 and not self.zero:
            raise mistake("This duration must be more than 0.")
        if self.whole and not seconds.is_integer():
            raise mistake("This duration must be a whole number of seconds.")
        return seconds

    def _seconds(self, value: object) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2] not in _SECONDS:
            advice = f"Write {match[1]}min for minutes, {match[1]}ms for milliseconds." if match else None
            raise mistake("A duration is a number of seconds, or text like 500ms, 60s, 10min, 1h or 7d.", advice)
        return float(match[1]) * _SECONDS[match[2]]

    def _range(self) -> str:
        limit = "" if self.most is None else f" and at most {self.most:g} seconds"
        return f"This duration must be 0 or more{limit}." if self.zero else f"This duration must be more than 0{limit}."

    def json_schema(self) -> JsonSchemaValue:
        """What `read` takes, or a variable."""
        number: JsonSchemaValue = {"type": "integer" if self.whole else "number"}
        number["minimum" if self.zero else "exclusiveMinimum"] = 0
        if self.most is not None:
            number["maximum"] = self.most
        text = {"type": "string", "pattern": rf"^[0-9]+(\.[0-9]+)?\s*(ms|s|min|h|d)?$|{VARIABLE_PATTERN}"}
        return {"anyOf": [number, text]}


@dataclass(frozen=True)
class Size(Quantity):
    """Bytes as an int of at least 1, from a number of bytes or text with a unit: B, KiB, MiB or GiB."""

    def read(self, value: object) -> int:
        """Bytes."""
        size = self._bytes(value)
        if size < 1:
            raise mistake("A size must be at least 1 byte.")
        if not size.is_integer():
            raise mistake("A size must be a whole number of bytes.")
        return int(size)

    def _bytes(self, value: object) -> float:
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2] not in _BYTES:
            raise mistake("A size is a number of bytes, or text like 512B, 64KiB or 4MiB.", _binary_unit(match))
        return float(match[1]) * _BYTES[match[2]]

    def json_schema(self) -> JsonSchemaValue:
        """What `read` takes, or a variable."""
        text = {"type": "string", "pattern": rf"^[0-9]+(\.[0-9]+)?\s*(B|KiB|MiB|GiB)?$|{VARIABLE_PATTERN}"}
        return {"anyOf": [{"type": "integer", "minimum": 1}, text]}


def _binary_unit(match: re.Match[str] | None) -> str | None:
    # 4MB may mean 4,000,000 or 4,194,304: rather than choose, say how to write the usual one.
    if match is None or match[2][:1].upper() not in ("K", "M", "G"):
        return None
    return f"Did you mean {match[1]}{match[2][0].upper()}iB?"


@dataclass(frozen=True)
class Count(Quantity):
    """A whole number between `least` and `most`."""

    least: int = 1
    most: int | None = None

    def read(self, value: object) -> int:
        """The number."""
        number = self._whole(value)
        if number < self.least or (self.most is not None and number > self.most):
            limit = f"at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
            raise mistake(f"This number must be {limit}.")
        return number

    def _whole(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            return int(value)
        raise mistake("A whole number is needed here.")

    def json_schema(self) -> JsonSchemaValue:
        """What `read` takes, or a variable."""
        number: JsonSchemaValue = {"type": "integer", "minimum": self.least}
        if self.most is not None:
            number["maximum"] = self.most
        return {"anyOf": [number, {"type": "string", "pattern": rf"^[0-9]{{1,18}}$|{VARIABLE_PATTERN}"}]}


@dataclass(frozen=True)
class Factor(Quantity):
    """A number between `least` and `most`, not necessarily whole."""

    least: float
    most: float

    def read(self, value: object) -> float:
        """The number."""
        number = self._number(value)
        if not self.least <= number <= self.most:
            raise mistake(f"This number must be from {self.least:g} to {self.most:g}.")
        return number

    def _number(self, value: object) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", value):
            return float(value)
        raise mistake("A number is needed here.")

    def json_schema(self) -> JsonSchemaValue:
        """What `read` takes, or a variable."""
        number: JsonSchemaValue = {"type": "number", "minimum": self.least, "maximum": self.most}
        text = {"type": "string", "pattern": rf"^[0-9]{{1,18}}(\.[0-9]{{1,18}})?$|{VARIABLE_PATTERN}"}
        return {"anyOf": [number, text]}


@dataclass(frozen=True)
class Switch(Quantity):
    """true or false; as text too, which is what a variable yields."""

    def read(self, value: object) -> bool:
        """The truth value."""
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
        raise mistake("This is either true or false.")

    def json_schema(self) -> JsonSchemaValue:
        """What `read` takes, or a variable."""
        text = {"type": "string", "pattern": rf"^(true|false)$|{VARIABLE_PATTERN}"}
        return {"anyOf": [{"type": "boolean"}, text]}

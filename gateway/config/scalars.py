"""Single values as configuration files write them: durations, sizes, counts, switches, addresses and URLs.

`Seconds` is a field of seconds that a file may write as `60`, `60s` or `500ms`. Numbers are accepted as text too,
because a `${VARIABLE}` always yields text. Options of commands are read here, too, so this module loads pydantic only
for the configuration, and for a mistake.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import PydanticCustomError, core_schema

VARIABLE_PATTERN = r"\$\{"
"""What the JSON Schema takes for a value that holds a variable, whose content an editor cannot know."""

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_TIME_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|min|[smhd])\s*")
_UNITS_OF_TIME: Final = ("d", "h", "m(in)?", "s", "ms")


def mistake(sentence: str, suggestion: str | None = None) -> PydanticCustomError:
    """The error that a field's reader raises: a sentence for the user, which never holds the value itself."""
    from pydantic_core import PydanticCustomError  # noqa: PLC0415

    return PydanticCustomError("stomp_gateway", sentence, {"suggestion": suggestion} if suggestion else None)


def parts_of(error: PydanticCustomError) -> tuple[str, str | None]:
    """The sentence of a `mistake`, and its suggestion."""
    return error.message(), (error.context or {}).get("suggestion")


def text_of(error: PydanticCustomError) -> str:
    """Both as one text."""
    return " ".join(filter(None, parts_of(error)))


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf


def text_schema(pattern: str) -> JsonSchemaValue:
    """The JSON Schema of a text that fits a pattern, or holds a variable."""
    return {"type": "string", "pattern": f"{pattern}|{VARIABLE_PATTERN}"}


class Quantity(ABC):
    """Marks a field that reads one kind of scalar, as the type of its own or as text."""

    TEXT: ClassVar[str]
    """The regular expression of what it takes as text."""

    @abstractmethod
    def read(self, value: object) -> object:
        """The field's value, from a value of the file or an option. Raises `mistake` for what it does not take."""

    @abstractmethod
    def _json_schema(self) -> JsonSchemaValue:
        """The JSON Schema of what it takes besides text."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        from pydantic_core import core_schema  # noqa: PLC0415

        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [self._json_schema(), text_schema(f"^{self.TEXT}$")]}


@dataclass(frozen=True)
class Duration(Quantity):
    """Seconds as a float, from a number of them or text with units, as in 1h30m, in the order d, h, m or min, s, ms.

    ``zero``: 0 is allowed. ``least``, ``most``: the smallest and the largest value, in seconds. ``whole``: only whole
    numbers of seconds.
    """

    TEXT: ClassVar[str] = (
        r"([0-9]+(\.[0-9]+)?|(?=[0-9])" + "".join(rf"([0-9]+(\.[0-9]+)?\s*{unit}\s*)?" for unit in _UNITS_OF_TIME) + ")"
    )

    zero: bool = True
    least: float = 0.0
    most: float | None = None
    whole: bool = False

    def read(self, value: object) -> float:
        """See `Quantity`."""
        seconds = self._seconds(value)
        if not math.isfinite(seconds) or seconds < 0 or (self.most is not None and seconds > self.most):
            limit = "" if self.most is None else f" and at most {self.most:g} seconds"
            raise mistake(f"This duration must be {'0 or more' if self.zero else 'more than 0'}{limit}.")
        if seconds == 0 and not self.zero:
            raise mistake("This duration must be more than 0.")
        if seconds < self.least:
            raise mistake(f"This duration must be at least {self.least:g} seconds.")
        if self.whole and not seconds.is_integer():
            raise mistake("This duration must be a whole number of seconds.")
        return seconds

    def _seconds(self, value: object) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _float(value)
        if not isinstance(value, str) or not re.fullmatch(self.TEXT, value):
            has_units = isinstance(value, str) and re.fullmatch(f"({_TIME_AND_UNIT.pattern})+", value)
            advice = "Write the largest unit first, and each unit once." if has_units else None
            raise mistake("A duration is a number of seconds, or text like 500ms, 30s, 5m, 1h30m or 7d.", advice)
        if _NUMBER.fullmatch(value):
            return float(value)
        return sum(float(number) * _SECONDS[unit] for number, unit in _TIME_AND_UNIT.findall(value))

    def _json_schema(self) -> JsonSchemaValue:
        number: JsonSchemaValue = {"type": "integer" if self.whole else "number"}
        number["minimum" if self.zero else "exclusiveMinimum"] = self.least
        return number if self.most is None else number | {"maximum": self.most}


@dataclass(frozen=True)
class Size(Quantity):
    """Bytes as an int of at least 1, from a number of bytes or text with a unit: B, KiB, MiB or GiB."""

    TEXT: ClassVar[str] = r"[0-9]+(\.[0-9]+)?\s*(B|KiB|MiB|GiB)?"

    def read(self, value: object) -> int:
        """See `Quantity`."""
        size = self._size(value)
        if size < 1:
            raise mistake("A size must be at least 1 byte.")
        if not size.is_integer():
            raise mistake("A size must be a whole number of bytes.")
        return int(size)

    def _size(self, value: object) -> float:
        if isinstance(value, int) and not isinstance(value, bool):
            return _float(value)
        match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2] not in _BYTES:
            # 4MB may mean 4,000,000 or 4,194,304: rather than choose, say how to write the usual one.
            prefix = match[2][:1].upper() if match else ""
            advice = f"Write {prefix}iB, as in 4{prefix}iB, or all digits." if prefix in tuple("KMG") else None
            raise mistake("A size is a number of bytes, or text like 512B, 64KiB or 4MiB.", advice)
        return float(match[1]) * _BYTES[match[2]]

    def _json_schema(self) -> JsonSchemaValue:
        return {"type": "integer", "minimum": 1}


# What fits wherever a count may go: the operating system takes a backlog as a C int.
_LARGEST_COUNT: Final = 2**31 - 1


@dataclass(frozen=True)
class Count(Quantity):
    """A whole number between `least` and `most`."""

    TEXT: ClassVar[str] = "[0-9]{1,18}"

    least: int = 1
    most: int = _LARGEST_COUNT

    def read(self, value: object) -> int:
        """See `Quantity`."""
        if isinstance(value, str) and re.fullmatch(self.TEXT, value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            advice = "Write all digits and nothing else, as in 10000." if isinstance(value, str) else None
            raise mistake("A whole number is needed here.", advice)
        if not self.least <= value <= self.most:
            raise mistake(f"This number must be from {self.least} to {self.most}.")
        return value

    def _json_schema(self) -> JsonSchemaValue:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Factor(Quantity):
    """A number between `least` and `most`, not necessarily whole."""

    TEXT: ClassVar[str] = r"[0-9]{1,18}(\.[0-9]{1,18})?"

    least: float
    most: float

    def read(self, value: object) -> float:
        """See `Quantity`."""
        if isinstance(value, str) and re.fullmatch(self.TEXT, value):
            value = float(value)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise mistake("A number is needed here.")
        if not self.least <= value <= self.most:
            raise mistake(f"This number must be from {self.least:g} to {self.most:g}.")
        return float(value)

    def _json_schema(self) -> JsonSchemaValue:
        return {"type": "number", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Switch(Quantity):
    """true or false."""

    TEXT: ClassVar[str] = "(true|false)"

    def read(self, value: object) -> bool:
        """See `Quantity`."""
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
        raise mistake("This is either true or false.")

    def _json_schema(self) -> JsonSchemaValue:
        return {"type": "boolean"}


Seconds = Annotated[float, Duration()]
SecondsAboveZero = Annotated[float, Duration(zero=False)]
Bytes = Annotated[int, Size()]
Number = Annotated[int, Count()]
Flag = Annotated[bool, Switch()]

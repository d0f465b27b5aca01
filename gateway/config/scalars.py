"""Single values as configuration files write them: durations, sizes, counts, switches, addresses and URLs.

`Annotated[float, Duration()]` is a field of seconds that a file may write as `60`, `60s` or `500ms`. Numbers are
accepted as text too, because a `${VARIABLE}` always yields text.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, Self
from urllib.parse import SplitResult, quote, urlsplit

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

VARIABLE_PATTERN = r"\$\{"
"""What the JSON Schema takes for a value that holds a variable, whose content an editor cannot know."""

MAX_PORT = 65535

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_TIME_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|min|[smhd])\s*")
_UNITS_OF_TIME: Final = ("d", "h", "m(in)?", "s", "ms")
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\s:/@\[\]?#]+):([0-9]+)")
_DIGITS_OF_PORT = 5
_DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}


_SOCKET_ADVICE: Final = (
    "The path of a Unix-domain socket belongs under unix; for websocket and admin write unix: before it."
)


def mistake(sentence: str, suggestion: str | None = None) -> PydanticCustomError:
    """The error that a field's reader raises: a sentence for the user, which never holds the value itself."""
    return PydanticCustomError("stomp_gateway", sentence, {"suggestion": suggestion} if suggestion else None)


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf


def _text_schema(pattern: str) -> JsonSchemaValue:
    return {"type": "string", "pattern": f"{pattern}|{VARIABLE_PATTERN}"}


class Quantity(ABC):
    """Marks a field that reads one kind of scalar, as the type of its own or as text."""

    TEXT: ClassVar[str]
    """The regular expression of what it takes as text."""

    @abstractmethod
    def _read(self, value: object) -> object:
        """The field's value, from a value of the file. Raises `mistake` for what it does not take."""

    @abstractmethod
    def _json_schema(self) -> JsonSchemaValue:
        """The JSON Schema of what it takes besides text."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [self._json_schema(), _text_schema(f"^{self.TEXT}$")]}


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

    def read(self, text: str) -> float:
        """The seconds in an option of the command line, which takes the same forms as a file. Raises `mistake`."""
        return self._read(text)

    def _read(self, value: object) -> float:
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

    def read(self, text: str) -> int:
        """The bytes in an option of the command line, which takes the same forms as a file. Raises `mistake`."""
        return self._read(text)

    def _read(self, value: object) -> int:
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

    def _read(self, value: object) -> int:
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

    def _read(self, value: object) -> float:
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

    def _read(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
        raise mistake("This is either true or false.")

    def _json_schema(self) -> JsonSchemaValue:
        return {"type": "boolean"}


class TextValue(ABC):
    """A value that a file writes as one text."""

    PATTERN: ClassVar[str]
    """What the JSON Schema takes, besides a variable."""

    @classmethod
    @abstractmethod
    def read(cls, value: object) -> Self:
        """From a text; raises `mistake` for anything else. A value that was read already is taken as it is."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.read, serialization=core_schema.to_string_ser_schema(when_used="always")
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return _text_schema(cls.PATTERN)


@dataclass(frozen=True)
class SocketAddress(TextValue):
    """A local TCP address to listen on."""

    PATTERN: ClassVar[str] = r"^(\[[^\]\s]+\]|[^\s:/@\[\]?#*]+):[0-9]{1,5}$"

    host: str
    """A name or an IP address, IPv6 without its brackets. 0.0.0.0 and :: mean every address."""
    port: int
    """0 lets the operating system choose a free one."""

    def __str__(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"

    @classmethod
    def read(cls, value: object) -> Self:
        """From text like `127.0.0.1:61613` or `[::1]:61613`; raises `mistake` for anything else."""
        if isinstance(value, cls):
            return value
        match = _HOST_AND_PORT.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[1] == "*":
            raise mistake("An address is written host:port.", _address_advice(value))
        if len(match[2]) > _DIGITS_OF_PORT or int(match[2]) > MAX_PORT:
            raise mistake("The number behind the colon is no port: a port is a number from 0 to 65535.")
        return cls(_checked_host(match[1].strip("[]")), int(match[2]))


def _address_advice(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return "Write 127.0.0.1:61613, with your port, for this machine only, or 0.0.0.0:61613 for every IPv4 address."
    if not isinstance(value, str):
        return None
    if value.startswith((":", "*:")) and value.count(":") == 1:
        return (
            "Write 0.0.0.0 as the host for every IPv4 address, [::] for every IPv6 address, a listener with each for "
            "both; 127.0.0.1 is for this machine only."
        )
    if "/" in value:
        is_path = value.startswith(("/", "unix:"))
        return _SOCKET_ADVICE if is_path else "Delete what stands before the host and behind the port."
    if value.count(":") > 1:
        return 'An IPv6 address stands in brackets, and the whole in quotes: "[::1]:61613".'
    return "For example 127.0.0.1:61613."


@dataclass(frozen=True)
class BrokerUrl(TextValue):
    """Where a broker listens: an AMQP URL without credentials and without a virtual host."""

    PATTERN: ClassVar[str] = r"^[Aa][Mm][Qq][Pp][Ss]?://[^/@\s?#]+$"

    scheme: str
    """`amqp` or `amqps`."""
    host: str
    """A name or an IP address, IPv6 without its brackets."""
    port: int

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "amqps"

    def __str__(self) -> str:
        return f"{self.scheme}://{_bracketed(self.host)}:{self.port}"

    def with_login(self, login: str, passcode: str, virtual_host: str) -> str:
        """The URL that an AMQP library takes. It holds the passcode, so it must never be logged.

        Its path must not be normalized: `..` is the name of a virtual host like any other.
        """
        user, secret, path = (quote(text, safe="") for text in (login, passcode, virtual_host))
        return f"{self.scheme}://{user}:{secret}@{_bracketed(self.host)}:{self.port}/{path}"

    @classmethod
    def read(cls, value: object) -> Self:
        """From text like `amqps://rabbit-a:5671`; raises `mistake` for anything else. The port may be left out.

        No message repeats the text: people put passcodes into URLs.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise mistake("A broker's URL is text like amqp://rabbit-a:5672.")
        try:
            parts = urlsplit(value)
        except ValueError:
            raise mistake("This is not a URL.", "Write it like amqp://rabbit-a:5672.") from None
        _refuse_extras(parts)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or re.search(r"\s", parts.netloc):
            advice = "Write amqp:// before it." if "//" not in value else None
            raise mistake("A broker's URL is amqp://host:port, or amqps://host:port with TLS.", advice)
        return cls(parts.scheme, _checked_host(parts.hostname), _broker_port(parts))


def _refuse_extras(parts: SplitResult) -> None:
    if "," in parts.netloc:
        raise mistake("Here is more than one URL.", "Make each an entry of the list: [amqp://a:5672, amqp://b:5672].")
    if "@" in parts.netloc:
        raise mistake(
            "A broker's URL holds no credentials: the gateway logs in with each client's own.",
            "For clients that send none, put login and passcode under default_user.",
        )
    if parts.query or parts.fragment:
        raise mistake(
            "A broker's URL has nothing after the port.", "connect_timeout, heartbeat and tls are keys of upstream."
        )
    if parts.scheme in _DEFAULT_PORTS and parts.path:
        raise mistake(
            "A broker's URL has no path: the client's host header chooses the virtual host.",
            "Delete everything from the slash on; the broker's name for a virtual host belongs under amqp_vhost.",
        )


def _broker_port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise mistake("A broker's port is a number from 1 to 65535.")
    return port or _DEFAULT_PORTS[parts.scheme]


def _checked_host(host: str) -> str:
    """The host itself; raises `mistake` for one that no name server can be asked for (IDNA). IP addresses pass."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise mistake(
            "This is not the name of a host.", "Between dots a name has at least 1 and at most 63 characters."
        ) from None
    if "*" in host:
        raise mistake(
            "This is not the name of a host.", "It holds a star, and only the name of one host can stand here."
        )
    if not host.isprintable():
        raise mistake("This is not the name of a host.", "It holds a character that cannot be printed.")
    return host


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

"""What an operator lays down for the clients of a virtual host: limits, and rules for destinations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.config.parts import Group, Part, Text
from gateway.config.quantities import Count, Duration, Size, Switch, mistake

_LOGIN: Final = "{login}"
_RULED: Final = ("/queue/", "/topic/", "/exchange/", "/amq/queue/", "/reply-queue/")
_DECLARED: Final = ("/queue/", "/topic/", "/exchange/", "/temp-queue/")
_NUMBERS: Final = frozenset(
    (
        "x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-max-priority", "x-delivery-limit",
        "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes",
    )
)  # fmt: skip
_TEXTS: Final = frozenset(
    ("x-queue-type", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-age", "x-queue-mode")
)
_QUEUE_TYPES: Final = ("classic", "quorum", "stream")
_AGE: Final = re.compile(r"[0-9]+[YMDhms]")
_NUMBER_BOUND: Final = 1 << 63


def _checked(value: str, starts: tuple[str, ...]) -> str:
    """A pattern that some destination can fit: the client's way of writing one is known."""
    if not value.startswith("/"):
        raise mistake("A destination begins with /; * in it stands for anything, for example /queue/orders.*.")
    fixed = re.split(r"[*{]", value)[0]
    if fixed != value and any(start.startswith(fixed) for start in starts):
        return value
    for start in starts:
        if fixed.startswith(start):
            return _checked_below(value, start)
    raise mistake(f"No destination fits this. Here they begin with {', '.join(starts)}.")


def _checked_below(value: str, start: str) -> str:
    slashes = value.count("/", len(start))
    if len(value) == len(start) or slashes > (start == "/exchange/"):
        form = "/exchange/<exchange>/<key>" if start == "/exchange/" else f"{start}<name>"
        raise mistake(f"No destination fits this: the form is {form}.", "Write a slash within a name as %2F.")
    return value


def _ruled(value: str) -> str:
    if set("{}") & set(value.replace(_LOGIN, "")):
        raise mistake("Only {login} may stand in braces.")
    return _checked(value, _RULED)


def _declared(value: str) -> str:
    if _LOGIN in value:
        raise mistake("There is no {login} here: a queue is the same for everybody who names it.", "Write * instead.")
    return _checked(value, _DECLARED)


def _argument(value: object) -> object:
    if not isinstance(value, (bool, int, str)):
        raise mistake("A number, a text, true or false belongs here.")
    if not isinstance(value, str) and not -_NUMBER_BOUND <= value < _NUMBER_BOUND:
        raise mistake("This number is too large for AMQP, which has 64 bits.")
    return value


def _arguments(value: Mapping[str, bool | int | str]) -> Mapping[str, bool | int | str]:
    """Types that RabbitMQ wants: with others it would refuse every declaration."""
    if not value:
        raise mistake("This must not be empty.", "Name an argument, or delete the entry.")
    for name, argument in value.items():
        if not name.startswith("x-"):
            raise mistake("Names of a queue's arguments begin with x-, for example x-max-length.")
        is_number = isinstance(argument, int) and not isinstance(argument, bool)
        if name in _NUMBERS and not (is_number and int(argument) >= 0):
            raise mistake(f"{name} is a whole number, and not negative.", "Times are in milliseconds, sizes in bytes.")
        if name in _TEXTS and not isinstance(argument, str):
            raise mistake(f"{name} is a text.")
    if value.get("x-queue-type", "classic") not in _QUEUE_TYPES:
        raise mistake(f"x-queue-type is one of {', '.join(_QUEUE_TYPES)}.")
    if not _AGE.fullmatch(str(value.get("x-max-age", "1s"))):
        raise mistake("x-max-age is a number and one of the letters Y M D h m s, for example 7D.")
    return value


DestinationPattern = Annotated[Text, AfterValidator(_ruled)]
QueuePattern = Annotated[Text, AfterValidator(_declared)]
ArgumentTable = Annotated[
    Mapping[Text, Annotated[bool | int | str, BeforeValidator(_argument)]],
    AfterValidator(_arguments),
]


class Prefetch(Group):
    """How many unacknowledged messages a subscription may have in hand (prefetch-count)."""

    default: Annotated[int, Count(most=65535)] | None = Field(
        None, description="For a SUBSCRIBE without prefetch-count. null: no limit, as with the plugin."
    )
    max: Annotated[int, Count(most=65535)] | None = Field(
        None, description="What a client may ask for; more, and no limit, become this. null: whatever it asks for."
    )


class QueueArguments(Part):
    """Arguments that the queues behind some destinations are declared with, unless a client gives its own."""

    destination: QueuePattern = Field(
        description="Which: * stands for anything, for example /queue/orders.*. The first entry that fits counts."
    )
    arguments: ArgumentTable = Field(
        description="By their AMQP names, for example x-queue-type: quorum, x-expires: 3600000, x-max-length: 10000."
    )


class DestinationRule(Part):
    """What clients may do with some destinations. The first rule that fits decides; without one all is allowed."""

    action: Literal["allow", "deny", "rewrite"] = Field(description="rewrite puts another destination in its place.")
    destination: DestinationPattern = Field(description="Which: * stands for anything, {login} for the client's login.")
    to: DestinationPattern | None = Field(
        None, description="For rewrite: the new destination; * becomes what the * of destination stood for, in order."
    )
    on: Literal["send", "subscribe", "both"] = Field("both", description="Which frames it is about.")
    logins: tuple[Text, ...] = Field((), description="Whose; * stands for anything. Empty: everybody's.")
    mandatory: Annotated[bool, Switch()] = Field(
        False, description="A message sent by this rule that reaches no queue is an ERROR and gets no RECEIPT."
    )

    @model_validator(mode="after")
    def _rewrites_to_something(self) -> Self:
        if (self.to is not None) != (self.action == "rewrite"):
            raise mistake("action: rewrite needs to, and nothing else has it.")
        if self.to is not None and self.to.count("*") > self.destination.count("*"):
            raise mistake("to has more * than destination.")
        if self.mandatory and (self.on == "subscribe" or self.action == "deny"):
            raise mistake("mandatory is about messages that are sent: it goes with allow or rewrite, on send or both.")
        return self


class Limit(Group):
    """What one user, or one address, may have and do in a virtual host. null: without limit."""

    sessions: Annotated[int, Count()] | None = Field(
        None, description="Sessions at once. One more is refused with an ERROR."
    )
    messages_per_second: Annotated[int, Count()] | None = Field(
        None, description="SEND frames per second, all its sessions together. Beyond it they are read more slowly."
    )
    bytes_per_second: Annotated[int, Size()] | None = Field(
        None, description="Bytes of frames per second, all its sessions together. Beyond it they are read more slowly."
    )
    burst: Annotated[float, Duration(zero=False)] = Field(
        2.0, description="How many seconds' worth may come at once after a rest."
    )


class Limits(Group):
    """What clients of a virtual host may have and do."""

    sessions: Annotated[int, Count()] | None = Field(
        None, description="Sessions of the virtual host at once. null: without limit."
    )
    user: Limit = Field(default_factory=Limit, description="For each login.")
    address: Limit = Field(default_factory=Limit, description="For each client address.")

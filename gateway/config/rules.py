"""Rules by destination: what clients may do with some destinations, and the arguments of the queues behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

from gateway.config.base_models import ConfigModel, MergeableModel, Text, made_from_text
from gateway.config.scalars import Flag, mistake, parts_of
from gateway.patterns import Pattern

_LOGIN: Final = "{login}"
_RULED: Final = ("/queue/", "/topic/", "/exchange/", "/amq/queue/", "/reply-queue/")
_DECLARED: Final = ("/queue/", "/topic/", "/exchange/", "/temp-queue/")
_NUMBERS: Final = frozenset((
    "x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-max-priority", "x-delivery-limit",
    "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes",
))  # fmt: skip
_TEXTS: Final = frozenset(
    ("x-queue-type", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-age", "x-queue-mode")
)
_QUEUE_TYPES: Final = ("classic", "quorum", "stream")
_AGE: Final = re.compile(r"[0-9]+[YMDhms]")
_NUMBER_BOUND: Final = 1 << 63


def _check_reachable(value: str, starts: tuple[str, ...], *, has_slashes: bool = False) -> None:
    """Raise `mistake` for a pattern that no destination can fit; ``has_slashes``: a name may have slashes."""
    if not value.startswith("/"):
        raise mistake("A destination begins with /; * in it stands for anything, for example /queue/orders.*.")
    fixed = re.split(r"[*{]", value)[0]
    if fixed != value and any(start.startswith(fixed) for start in starts):
        return
    start = next((start for start in starts if fixed.startswith(start)), None)
    if start is None:
        raise mistake(f"No destination fits this. Here they begin with {', '.join(starts)}.")
    has_slash_in_name = value.count("/", len(start)) > (start == "/exchange/")
    if len(value) == len(start) or (has_slash_in_name and not has_slashes):
        form = "/exchange/<exchange>/<key>" if start == "/exchange/" else f"{start}<name>"
        raise mistake(f"No destination fits this: the form is {form}.", "Write a slash within a name as %2F.")


def _pattern(text: str) -> Pattern:
    return Pattern(text.encode())


def _ruled(value: str) -> Pattern:
    pattern = _asked(value)
    _check_reachable(value, _RULED)
    return pattern


def _asked(value: str) -> Pattern:
    """What a rule is about may have slashes, which only a rewrite can make sense of: see `rule_mistakes`."""
    if set("{}") & set(value.replace(_LOGIN, "")):
        raise mistake("Only {login} may stand in braces.")
    _check_reachable(value, _RULED, has_slashes=True)
    return _pattern(value)


def _declared(value: str) -> Pattern:
    if _LOGIN in value:
        raise mistake("There is no {login} here: a queue is the same for everybody who names it.", "Write * instead.")
    _check_reachable(value, _DECLARED)
    return _pattern(value)


def _argument(value: object) -> object:
    if not isinstance(value, (bool, int, str)):
        raise mistake("A number, a text, true or false belongs here.")
    if not isinstance(value, str) and not -_NUMBER_BOUND <= value < _NUMBER_BOUND:
        raise mistake("This number is too large for AMQP, which has 64 bits.")
    return value


def _arguments(value: Mapping[str, bool | int | str]) -> Mapping[str, bool | int | str]:
    if not value:
        raise mistake("This must not be empty.", "Name an argument, or delete the entry.")
    return value


def argument_mistake(name: str, value: object) -> tuple[str, str | None] | None:
    """What is wrong with an argument of a queue: RabbitMQ would refuse every declaration with it. None: nothing."""
    if not name.startswith("x-"):
        return "Names of a queue's arguments begin with x-, for example x-max-length.", None
    if name in _NUMBERS and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        return f"{name} is a whole number, and not negative.", "Times are in milliseconds, sizes in bytes."
    if name in _TEXTS and not isinstance(value, str):
        return f"{name} is a text.", None
    if name == "x-queue-type" and value not in _QUEUE_TYPES:
        return f"x-queue-type is one of {', '.join(_QUEUE_TYPES)}.", None
    if name == "x-max-age" and not _AGE.fullmatch(str(value)):
        return "x-max-age is a number and one of the letters Y M D h m s, for example 7D.", None
    return None


def _pattern_text(pattern: Pattern) -> str:
    return pattern.text.decode()


AskedPattern = Annotated[Pattern, made_from_text(Pattern, _asked, _pattern_text)]
RulePattern = Annotated[Pattern, made_from_text(Pattern, _ruled, _pattern_text)]
QueuePattern = Annotated[Pattern, made_from_text(Pattern, _declared, _pattern_text)]
LoginPattern = Annotated[Pattern, made_from_text(Pattern, _pattern, _pattern_text)]
ArgumentTable = Annotated[
    Mapping[Text, Annotated[bool | int | str, BeforeValidator(_argument)]], AfterValidator(_arguments)
]


class QueueArguments(ConfigModel):
    """Arguments that the queues behind some destinations are declared with, unless a client gives its own."""

    destination: QueuePattern
    """Which: * stands for anything, for example /queue/orders.*. The first entry that fits counts."""
    arguments: ArgumentTable
    """By their AMQP names, for example x-queue-type: quorum, x-expires: 3600000, x-max-length: 10000."""


class OnSendError(MergeableModel):
    """What an ERROR for a SEND does to its session."""

    action: Literal["close", "keep", "log"] = "close"
    """close: as with the plugin, what the broker refuses ends the session. keep: it goes on after the ERROR. log: it
    goes on, and an ERROR that no receipt asks for is logged and counted only."""
    logins: tuple[LoginPattern, ...] = ()
    """Whose; * stands for anything. Empty: everybody's. The sessions of others are closed."""


class DestinationRule(ConfigModel):
    """What clients may do with some destinations. The first rule that fits decides; without one all is allowed."""

    action: Literal["allow", "deny", "rewrite"]
    """rewrite puts another destination in its place."""
    destination: AskedPattern
    """Which: * stands for anything, {login} for the client's login. That of a rewrite may have slashes in names."""
    to: RulePattern | None = None
    """For rewrite: the new destination; * becomes what the * of destination stood for, in order."""
    on: Literal["send", "subscribe", "both"] = "both"
    """Which frames it is about."""
    logins: tuple[LoginPattern, ...] = ()
    """Whose; * stands for anything. Empty: everybody's."""
    mandatory: Flag = False
    """A message sent by this rule that reaches no queue is an ERROR and gets no RECEIPT."""

    @property
    def denies(self) -> bool:
        """Whether it refuses the destinations that fit."""
        return self.action == "deny"

    @property
    def on_send(self) -> bool:
        """Whether it is about SEND."""
        return self.on != "subscribe"

    @property
    def on_subscribe(self) -> bool:
        """Whether it is about SUBSCRIBE."""
        return self.on != "send"


def rule_mistakes(rule: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str, str | None]]:
    """Keys of a rule, as a file has them, that contradict each other: the place in the rule, a sentence, advice."""
    action, to, destination = rule.get("action"), rule.get("to"), rule.get("destination")
    if action == "rewrite" and to is None:
        yield (), "action: rewrite needs to.", None
    if action in ("allow", "deny") and to is not None:
        yield (), "to goes with action: rewrite only.", None
    if action in ("allow", "deny") and isinstance(destination, str):
        try:
            _ruled(destination)
        except PydanticCustomError as error:
            # Nothing fits what has a slash in a name, unless a rewrite makes something else of it.
            yield ("destination",), *parts_of(error)
    if isinstance(to, str) and isinstance(destination, str) and to.count("*") > destination.count("*"):
        yield (), "to has more * than destination.", None
    if rule.get("mandatory") in (True, "true") and (rule.get("on") == "subscribe" or action == "deny"):
        yield (), "mandatory is about messages that are sent: it goes with allow or rewrite, on send or both.", None

"""The parts of a selector: each is a closure that returns a value for the headers of a message.

A header is a text, as everything in STOMP. Where a number or a truth value is needed, the text is converted. None means
SQL's NULL, and "unknown".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from gateway.message_selectors.like import like

Value = str | int | float | bool | None
# Values are bytes until they are first used.
Headers = dict[bytes, bytes | str]
Evaluate = Callable[[Headers], Value]

# The longest text that ``+`` makes, because each of a hundred joins would copy it.
_LONGEST_JOINED: Final = 4096
# No number of 64 bits has more characters. The time to read one grows with its length.
_LONGEST_NUMBER: Final = 40
_NUMBER: Final = re.compile(r"[+-]?(?:([0-9]+)|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_TRUTHS: Final = {"true": True, "false": False}
_LONGEST_TRUTH: Final = 5
_LARGEST: Final = 1 << 63


class Kind(Enum):
    """What is known about a value without a message. A header may be anything."""

    HEADER = "header"
    TEXT = "text"
    NUMBER = "number"
    TRUTH = "truth"


class Term(NamedTuple):
    """A part of a selector. ``depth``: the number of closures that call each other for its value."""

    evaluate: Evaluate
    kind: Kind
    depth: int = 1


def _of_known(term: Term, kind: Kind, meaning: Callable[[Value], Value]) -> Term:
    """Apply a function to the value, unless it is unknown."""
    evaluate = term.evaluate

    def value(headers: Headers) -> Value:
        found = evaluate(headers)
        return None if found is None else meaning(found)

    return Term(value, kind, term.depth + 1)


# Values.


def read_number(text: str) -> int | float | None:
    """Read a decimal number of 64 bits; None if the text is none."""
    found = _NUMBER.fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    if found is None:
        return None
    return bounded(int(text) if found[1] else float(text))


def bounded(number: float) -> int | float | None:
    """Bound a number: a whole number of more than 64 bits becomes inexact, and one beyond all floats None."""
    if isinstance(number, int) and -_LARGEST <= number < _LARGEST:
        return number
    try:
        inexact = float(number)
    except OverflowError:
        return None
    return inexact if math.isfinite(inexact) else None


def read_literal(text: str) -> int | float | None:
    """Read a number as in Java: decimal, hexadecimal or octal, with a point, an exponent, or a suffix.

    Returns None for an octal number with other digits, and for one beyond all floats.
    """
    digits = text.lower()
    if digits.startswith("0x"):
        return bounded(int(digits.rstrip("l"), 16))
    if digits.rstrip("l").isdigit():
        digits = digits.rstrip("l")
        try:
            return bounded(int(digits, 8 if digits.startswith("0") else 10))
        except ValueError:
            return None
    return bounded(float(digits.rstrip("fd")))


def _as_number(value: Value) -> int | float | None:
    if isinstance(value, str):
        return read_number(value)
    return None if isinstance(value, bool) else value


def _read_truth(text: str) -> bool | None:
    return _TRUTHS.get(text.lower()) if len(text) <= _LONGEST_TRUTH else None


def _as_truth(value: Value) -> bool:
    """Texts other than true, and numbers, are false."""
    return _read_truth(value) is True if isinstance(value, str) else value is True


# Operands.


def constant(value: str | float | bool) -> Term:
    """A literal."""
    kind = Kind.TRUTH if isinstance(value, bool) else Kind.TEXT if isinstance(value, str) else Kind.NUMBER
    return Term(lambda _: value, kind)


def header(name: str) -> Term:
    """The value of a header."""
    special = _JMS_VALUES.get(name)
    if special is not None:
        return Term(special, Kind.HEADER)
    raw = _JMS_NAMES.get(name, name).encode()
    return Term(lambda headers: _text(headers, raw), Kind.HEADER)


def _text(headers: Headers, name: bytes) -> str | None:
    """The value of a header, decoded once per message."""
    found = headers.get(name)
    if isinstance(found, bytes):
        found = headers[name] = found.decode(errors="surrogateescape")
    return found


def _delivery_mode(headers: Headers) -> Value:
    return "PERSISTENT" if _text(headers, b"persistent") == "true" else "NON_PERSISTENT"


def _timestamp(headers: Headers) -> Value:
    """In milliseconds, as in JMS. AMQP counts seconds."""
    seconds = read_number(_text(headers, b"timestamp") or "")
    return None if seconds is None else bounded(seconds * 1000)


# The headers of JMS: their names in a MESSAGE, or the functions that find their values there.
_JMS_NAMES: Final = {
    "JMSCorrelationID": "correlation-id",
    "JMSMessageID": "amqp-message-id",
    "JMSPriority": "priority",
    "JMSReplyTo": "reply-to",
    "JMSType": "type",
}
_JMS_VALUES: Final[Mapping[str, Evaluate]] = {"JMSDeliveryMode": _delivery_mode, "JMSTimestamp": _timestamp}


# Arithmetic.


def negated(term: Term) -> Term:
    """The number with the other sign."""

    def meaning(value: Value) -> Value:
        number = _as_number(value)
        return None if number is None else bounded(-number)

    return _of_known(term, Kind.NUMBER, meaning)


def unchanged(term: Term) -> Term:
    """The number after a plus sign."""
    return _of_known(term, Kind.NUMBER, _as_number)


def _divided(left: float, right: float) -> float | None:
    return left / right if right else None


def _remainder(left: float, right: float) -> float | None:
    """The remainder, with the sign of the dividend."""
    if not right:
        return None
    if isinstance(left, int) and isinstance(right, int):
        # As floats, large ones would lose digits.
        remainder = abs(left) % abs(right)
        return -remainder if left < 0 else remainder
    return math.fmod(left, right)


_ARITHMETIC: Final[Mapping[str, Callable[[float, float], float | None]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divided,
    "%": _remainder,
}


def computed(first: Term, rest: Sequence[tuple[str, Term]]) -> Term:
    """Compute from left to right: each term but the first has an operator. ``+`` also joins texts."""
    start = first.evaluate
    steps = [(sign, _ARITHMETIC[sign], term.evaluate) for sign, term in rest]

    def value(headers: Headers) -> Value:
        left = start(headers)
        for sign, operate, evaluate in steps:
            right = evaluate(headers)
            numbers = _as_number(left), _as_number(right)
            if numbers[0] is not None and numbers[1] is not None:
                result = operate(numbers[0], numbers[1])
                left = None if result is None else bounded(result)
            elif sign == "+" and isinstance(left, str) and isinstance(right, str):
                left = left + right if len(left) + len(right) <= _LONGEST_JOINED else None
            else:
                return None
        return left

    terms = (first, *(term for _, term in rest))
    may_be_text = any(term.kind is Kind.TEXT for term in terms)
    return Term(value, Kind.TEXT if may_be_text else Kind.NUMBER, 1 + max(term.depth for term in terms))


# Conditions.


def compared(left: Term, operator: str, right: Term) -> Term:
    """Compare two values. Only numbers have an order; texts and truth values are equal or not."""
    compare, first, second = _COMPARE[operator], left.evaluate, right.evaluate

    def value(headers: Headers) -> Value:
        one, other = first(headers), second(headers)
        return None if one is None or other is None else compare(one, other)

    return Term(value, Kind.TRUTH, 1 + max(left.depth, right.depth))


def _equal(one: Value, other: Value) -> bool:
    """Values of different kinds are not equal, except that a text is converted to a number or a truth value."""
    if isinstance(one, str) and not isinstance(other, str):
        one, other = other, one
    if isinstance(other, str) and not isinstance(one, str):
        read: Value = _read_truth(other) if isinstance(one, bool) else read_number(other)
        return read is not None and read == one
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def _ordered(compare: Callable[[float, float], bool]) -> Callable[[Value, Value], bool]:
    """A comparison of order, which is false for a value that is no number."""

    def is_so(one: Value, other: Value) -> bool:
        left, right = _as_number(one), _as_number(other)
        return left is not None and right is not None and compare(left, right)

    return is_so


_COMPARE: Final[Mapping[str, Callable[[Value, Value], bool]]] = {
    "=": _equal,
    "<>": lambda one, other: not _equal(one, other),
    "<": _ordered(lambda left, right: left < right),
    "<=": _ordered(lambda left, right: left <= right),
    ">": _ordered(lambda left, right: left > right),
    ">=": _ordered(lambda left, right: left >= right),
}


def is_among(term: Term, texts: Sequence[str]) -> Term:
    """IN."""
    return _of_known(term, Kind.TRUTH, frozenset[Value](texts).__contains__)


def is_like(term: Term, pattern: str, escape: str) -> Term:
    """LIKE; ``escape`` is one character, or empty."""
    says = like(pattern, escape)
    return _of_known(term, Kind.TRUTH, lambda value: isinstance(value, str) and says(value))


def is_null(term: Term) -> Term:
    """IS NULL."""
    evaluate = term.evaluate
    return Term(lambda headers: evaluate(headers) is None, Kind.TRUTH, term.depth + 1)


# Three-valued logic.


def truth(term: Term) -> Term:
    """A header in place of a condition: whether its value is the word true."""
    return term if term.kind is Kind.TRUTH else _of_known(term, Kind.TRUTH, _as_truth)


def negate(term: Term) -> Term:
    """NOT."""
    return _of_known(term, Kind.TRUTH, lambda value: not value)


def all_true(terms: Sequence[Term]) -> Term:
    """AND: false if one is false, else unknown if one is unknown."""
    return _decided(terms, by=False)


def any_true(terms: Sequence[Term]) -> Term:
    """OR: true if one is true, else unknown if one is unknown."""
    return _decided(terms, by=True)


def _decided(terms: Sequence[Term], *, by: bool) -> Term:
    evaluates = [term.evaluate for term in terms]

    def value(headers: Headers) -> Value:
        result: bool | None = not by
        for evaluate in evaluates:
            found = evaluate(headers)
            if found is by:
                return by
            if found is None:
                result = None
        return result

    return Term(value, Kind.TRUTH, 1 + max(term.depth for term in terms))

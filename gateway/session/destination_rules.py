"""Destination rules: the destinations that an operator allows, denies or rewrites for a login.

The gateway applies them once per header block of SEND, and for each SUBSCRIBE. It matches the patterns with the
canonical text of the destination, and then with that of its queue or topic, so no other spelling evades a rule. An
invalid destination is matched as it is, since a rule may rewrite it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gateway.config.rules import DestinationRule
from gateway.config.virtual_host import VirtualHost
from gateway.errors import StompError
from gateway.patterns import Pattern
from gateway.session import error_frames
from gateway.session.destinations import Destination, DestinationKind, canonical_texts, kind_of, parse, with_dots
from gateway.session.queues import Argument

LOGIN: Final = b"{login}"
_DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
_DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"
_SPECIAL: Final = re.compile(rb"[^A-Za-z0-9_@+=~-]")


def spelled_login(login: bytes) -> bytes:
    """A login as it is put into patterns: every byte with a meaning in destinations becomes ``%XX``.

    This includes dots, which separate the words of topics, and by custom of queue names. Otherwise the login ``a``
    would have access to the destinations of the login ``a.b``.
    """
    return _SPECIAL.sub(lambda found: b"%%%02X" % found[0][0], login)


class Admission(NamedTuple):
    """A destination that the rules allow.

    Args:
        asked: the destination that the client named. If it is invalid, it has the kind, and the text as its name.
        destination: the same, or the one to which a rule rewrites it.
        rule: the first rule that matched, if any.
    """

    asked: Destination
    destination: Destination
    rule: DestinationRule | None = None


class DestinationRules:
    """The rules of a virtual host for one login."""

    __slots__ = ("_has_dots", "_login", "_send", "_subscribe", "_topic_exchange")

    def __init__(self, settings: VirtualHost, login: bytes) -> None:
        self._login = login
        self._has_dots = settings.topic_slashes != "error"
        self._topic_exchange = settings.default_topic_exchange
        rules = [_Bound(rule, login) for rule in settings.destination_rules if concerns(rule.logins, login)]
        self._send = tuple(bound for bound in rules if bound.rule.on_send)
        self._subscribe = tuple(bound for bound in rules if bound.rule.on_subscribe)

    def for_send(self, text: bytes) -> Admission:
        """Apply the rules to the destination of a SEND. Raises StompError if it is invalid or denied."""
        return self._admission(b"SEND", text, self._send)

    def for_subscribe(self, text: bytes) -> Admission:
        """Apply the rules to the destination of a SUBSCRIBE. Raises StompError if it is invalid or denied."""
        return self._admission(b"SUBSCRIBE", text, self._subscribe)

    def check_queue(self, name: bytes) -> None:
        """Raise StompError if a rule denies or rewrites ``/queue/<name>``, for the queue in x-queue-name."""
        self._check(b"SUBSCRIBE", Destination(DestinationKind.QUEUE, name), self._subscribe)

    def check_dead_letters(self, headers: Mapping[bytes, bytes], arguments: Mapping[str, Argument]) -> None:
        """Raise StompError if a rule denies or rewrites the dead-letter exchange of a queue that a client declares.

        ``headers`` are those of the frame. If they do not name the exchange, it is the operator's, and allowed.
        ``arguments``: all arguments of the queue.
        """
        exchange = arguments.get(_DEAD_LETTER_EXCHANGE)
        if exchange is None or not any(name.encode() in headers for name in (_DEAD_LETTER_EXCHANGE, _DEAD_LETTER_KEY)):
            return
        name, key = str(exchange).encode(), str(arguments.get(_DEAD_LETTER_KEY, "")).encode()
        goal = Destination(DestinationKind.EXCHANGE, name, key) if name else Destination(DestinationKind.QUEUE, key)
        self._check(b"SEND", goal, self._send)

    def _check(self, command: bytes, destination: Destination, rules: tuple[_Bound, ...]) -> None:
        """Check a destination that a client uses indirectly: no rule may deny or rewrite it."""
        if not rules:
            return
        canonical = canonical_texts(destination, self._topic_exchange)
        bound, _ = _first_match(rules, canonical)
        if bound is not None and (bound.rule.denies or bound.to is not None):
            raise error_frames.destination_denied(command, canonical[0], self._login)

    def _admission(self, command: bytes, text: bytes, rules: tuple[_Bound, ...]) -> Admission:
        written, text = text, with_dots(text) if self._has_dots else text
        try:
            asked = parse(text)
        except StompError:
            # A rule may rewrite it to a valid destination.
            bound, wildcards = _first_match(rules, (text,))
            if bound is None or bound.to is None:
                raise
            return Admission(
                Destination(kind_of(text), text), self._rewrite(written, bound.to.filled(wildcards)), bound.rule
            )
        if not rules or asked.kind is DestinationKind.TEMP_QUEUE:
            return Admission(asked, asked)
        bound, wildcards = _first_match(rules, canonical_texts(asked, self._topic_exchange))
        if bound is None:
            return Admission(asked, asked)
        if bound.rule.denies:
            raise error_frames.destination_denied(command, written, self._login)
        if bound.to is None:
            return Admission(asked, asked, bound.rule)
        return Admission(asked, self._rewrite(written, bound.to.filled(wildcards)), bound.rule)

    def _rewrite(self, text: bytes, other: bytes) -> Destination:
        try:
            destination = parse(with_dots(other) if self._has_dots else other)
        except StompError as error:
            raise error_frames.impossible_rewrite(text, other) from error
        if destination.kind is DestinationKind.TEMP_QUEUE:
            raise error_frames.impossible_rewrite(text, other)
        return destination


class _Bound:
    """A rule with the login put into its patterns."""

    __slots__ = ("pattern", "rule", "to")

    def __init__(self, rule: DestinationRule, login: bytes) -> None:
        self.rule = rule
        self.pattern = _bind(rule.destination, login)
        self.to = None if rule.to is None else _bind(rule.to, login)


def _bind(pattern: Pattern, login: bytes) -> Pattern:
    if LOGIN not in pattern.text:
        return pattern
    return Pattern(pattern.text.replace(LOGIN, spelled_login(login)))


def concerns(logins: tuple[Pattern, ...], login: bytes) -> bool:
    """Whether a rule for these logins applies to this one. Without any it applies to all."""
    return not logins or any(pattern.match(login) is not None for pattern in logins)


def _first_match(rules: Iterable[_Bound], canonical: tuple[bytes, ...]) -> tuple[_Bound | None, tuple[bytes, ...]]:
    for bound in rules:
        for text in canonical:
            wildcards = bound.pattern.match(text)
            if wildcards is not None:
                return bound, wildcards
    return None, ()


NO_DESTINATION_RULES: Final = DestinationRules(VirtualHost(name=""), b"")
"""Rules that allow every destination."""

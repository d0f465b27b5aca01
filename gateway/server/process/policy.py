"""What the configuration lays down for clients, as a session wants it."""

from __future__ import annotations

from gateway.config.policy import DestinationRule, QueueArguments
from gateway.patterns import Pattern
from gateway.session import settings


def rule_of(rule: DestinationRule) -> settings.DestinationRule:
    """A destination rule."""
    return settings.DestinationRule(
        pattern=Pattern(rule.destination.encode()),
        denies=rule.action == "deny",
        to=None if rule.to is None else Pattern(rule.to.encode()),
        on_send=rule.on != "subscribe",
        on_subscribe=rule.on != "send",
        logins=tuple(Pattern(login.encode()) for login in rule.logins),
        mandatory=rule.mandatory,
    )


def defaults_of(entry: QueueArguments) -> settings.QueueArgumentDefaults:
    """Arguments for queues."""
    return settings.QueueArgumentDefaults(Pattern(entry.destination.encode()), dict(entry.arguments))

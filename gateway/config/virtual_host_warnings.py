"""Warnings about settings of virtual hosts that have no effect, or another one than their author thinks."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.config.base_models import MergeableModel
from gateway.config.config_files import default_journal_directory
from gateway.config.journal_settings import AMQP
from gateway.config.listener_warnings import is_local, only_local
from gateway.config.mistakes import Finding, Trail
from gateway.config.model import PASS_THROUGH, GatewayConfig
from gateway.config.rules import QueueArguments
from gateway.config.virtual_host import Limit, VirtualHost

_OF_STREAMS = frozenset(("x-max-age", "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes"))
_NOT_OF_STREAMS = frozenset((
    "x-expires", "x-message-ttl", "x-max-length", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-delivery-limit", "x-max-priority", "x-queue-mode",
))  # fmt: skip
_REFUSED: Final[Mapping[str, frozenset[str]]] = {
    "classic": _OF_STREAMS | {"x-delivery-limit"},
    "quorum": _OF_STREAMS | {"x-max-priority", "x-queue-mode"},
    "stream": _NOT_OF_STREAMS,
}
"""Arguments that RabbitMQ does not know for a type of queue."""

_RATES = ("messages_per_second", "bytes_per_second")


@dataclass(frozen=True)
class _Odd:
    """What is odd about a setting of a virtual host, wherever the file gives it."""

    keys: tuple[str, ...]
    sentence: str
    advice: str
    below: Trail = ()
    """The place within the setting."""
    is_useless: bool = False
    """Without effect here, which is no fault where another virtual host needs it."""


def virtual_host_warnings(config: GatewayConfig) -> Iterator[Finding]:
    """Warnings about every virtual host, with the defaults merged in; several may warn of the same place."""
    odd = {each.name: list(_odd(config, each)) for each in config.resolved_virtual_hosts()}

    @functools.cache  # there may be thousands of virtual hosts
    def is_everywhere(each: _Odd) -> bool:
        return all(each in odd[heir] for heir in _heirs(config, each.keys))

    for virtual_host in config.resolved_virtual_hosts():
        yield from _names(config, virtual_host)
        for each in odd[virtual_host.name]:
            place = _place(config, virtual_host.name, each.keys)
            if place == ("defaults", *each.keys) and not is_everywhere(each):
                place = None if each.is_useless else ("virtual_hosts", virtual_host.name, *each.keys)
            if place:
                yield Finding((*place, *each.below), each.sentence, each.advice)


def _odd(config: GatewayConfig, virtual_host: VirtualHost) -> Iterator[_Odd]:
    yield from _users(config, virtual_host)
    yield from _destinations(virtual_host)
    yield from _send_errors(virtual_host)
    yield from _limits(virtual_host)
    yield from _journal(virtual_host)


def _place(config: GatewayConfig, name: str, keys: tuple[str, ...]) -> Trail | None:
    """The place that gives a virtual host's setting another value than the built-in one; None if none does."""
    places: list[tuple[Trail, MergeableModel]] = [
        (("virtual_hosts", name), config.virtual_hosts[name]),
        (("defaults",), config.defaults),
    ]
    for trail, settings in places:
        around: object = settings
        for key in keys[:-1]:
            around = getattr(around, key)
        # What a file does not set is set in no model inside it, either.
        if isinstance(around, MergeableModel) and keys[-1] in around.model_fields_set:
            return (*trail, *keys) if keys[-1] in around.changed_keys() else None
    return None


def _heirs(config: GatewayConfig, keys: tuple[str, ...]) -> Iterator[str]:
    """The virtual hosts that have a setting from `defaults`. A journal that is off has no use for any."""
    for virtual_host in config.resolved_virtual_hosts():
        is_unused = keys[0] == "journal" and virtual_host.journal.level == "off"
        if not is_unused and _place(config, virtual_host.name, keys) == ("defaults", *keys):
            yield virtual_host.name


def _names(config: GatewayConfig, virtual_host: VirtualHost) -> Iterator[Finding]:
    trail: Trail = ("virtual_hosts", virtual_host.name)
    places = [(trail, virtual_host.name)] if virtual_host.name != PASS_THROUGH else []
    aliases = config.virtual_hosts[virtual_host.name].aliases
    for place, name in (*places, *(((*trail, "aliases", at), alias) for at, alias in enumerate(aliases))):
        if "*" in name:
            sentence = "A star in a name stands for itself: a client's host header is compared exactly."
            yield Finding(place, sentence, 'Name the hosts one by one, or all others with the key "*".')
        elif "://" in name:
            sentence = "A client's host header is a name and no URL."
            yield Finding(place, sentence, "Write the name alone, as in stomp.example.org.")


def _users(config: GatewayConfig, virtual_host: VirtualHost) -> Iterator[_Odd]:
    logins = [listener.tls is not None and listener.tls.certificate_login is not None for listener in config.listeners]
    if not any(logins):
        sentence = "This has no effect: no listener has certificate_login."
        yield _Odd(("certificate_users",), sentence, "Set tls.certificate_login there.")
    if only_local(virtual_host) and not any(is_local(listener.address) for listener in config.listeners):
        sentence = "This user is among loopback_users, so clients of other machines that send no login are refused."
        yield _Odd(("default_user",), sentence, "Take another user, or leave this one out of loopback_users.")


def _destinations(virtual_host: VirtualHost) -> Iterator[_Odd]:
    rules = virtual_host.destination_rules
    if rules and all(rule.action == "allow" and not rule.mandatory for rule in rules):
        sentence = "These rules restrict nothing: what no rule fits is allowed."
        yield _Odd(("destination_rules",), sentence, "Let the last one be {action: deny, destination: /*}.")
    for position, entry in enumerate(virtual_host.queue_arguments):
        for name, sentence, advice in _arguments(entry):
            yield _Odd(("queue_arguments",), sentence, advice, (position, "arguments", name))


def _arguments(entry: QueueArguments) -> Iterator[tuple[str, str, str]]:
    """Odd arguments: name, sentence and advice."""
    kind = entry.arguments.get("x-queue-type")
    if kind in ("quorum", "stream") and entry.destination.text.startswith(b"/temp-queue/"):
        sentence = "This has no effect: a temporary queue is exclusive, and only classic queues can be."
        yield "x-queue-type", sentence, "Delete it."
        return
    for name in entry.arguments:
        if name in _REFUSED.get(str(kind), ()):
            sentence = f"RabbitMQ refuses to declare a {kind} queue with this argument."
            yield name, sentence, "Delete it, or take another x-queue-type."


def _send_errors(virtual_host: VirtualHost) -> Iterator[_Odd]:
    if virtual_host.on_send_error.action == "close":
        return
    keys = ("on_send_error", "action")
    if virtual_host.strict:
        yield _Odd(keys, "This has no effect: with conformance strict every ERROR closes.", "Delete one of the two.")
    elif virtual_host.confirms != "always" or not virtual_host.upstream.ride_through:
        sentence = "The session still ends when the broker refuses a message: for that it has to confirm all of them."
        yield _Odd(keys, sentence, "Set confirms to always, and upstream.ride_through above 0.")


def _limits(virtual_host: VirtualHost) -> Iterator[_Odd]:
    limits = virtual_host.limits
    for name in ("user", "address"):
        limit: Limit = getattr(limits, name)
        if all(getattr(limit, rate) is None for rate in _RATES):
            advice = f"Set {' or '.join(_RATES)}."
            yield _Odd(("limits", name, "burst"), "This has no effect without a rate.", advice, is_useless=True)
        if limit.sessions is not None and limits.sessions is not None and limit.sessions > limits.sessions:
            sentence = "This has no effect: limits.sessions of the whole virtual host is less."
            yield _Odd(("limits", name, "sessions"), sentence, "Make one of them fit.", is_useless=True)


def _journal(virtual_host: VirtualHost) -> Iterator[_Odd]:
    journal = virtual_host.journal
    if journal.level == "off":
        return
    if journal.level != "message":
        sentence = "This has no effect at level session."
        for key in ("sample", "header_values"):
            yield _Odd(("journal", key), sentence, "Set level to message, or delete this.", is_useless=True)
    if journal.users == "plain":
        advice = "Set users to hashed, or delete this."
        yield _Odd(("journal", "users_key_file"), "This has no effect: users is plain.", advice, is_useless=True)
    if journal.ship.to is None and journal.retain_bytes is not None and journal.retain_bytes <= journal.rotate_bytes:
        sentence = "Each segment is deleted as soon as it is finished, since rotate_bytes is as much."
        yield _Odd(("journal", "retain_bytes"), sentence, "Make it several times rotate_bytes.")
    yield from _shipping(virtual_host)


def _shipping(virtual_host: VirtualHost) -> Iterator[_Odd]:
    to = virtual_host.journal.ship.to
    if to == AMQP:
        return
    for key in ("user", "stream", "stream_max_bytes", "stream_max_age"):
        sentence, advice = "This has no effect: it is for ship.to amqp.", "Set to: amqp, or delete this."
        yield _Odd(("journal", "ship", key), sentence, advice, is_useless=True)
    if to is not None and "://" in to:
        if importlib.util.find_spec("obstore") is None:
            sentence = "Object stores need obstore, which is not installed here."
            yield _Odd(("journal", "ship", "to"), sentence, "Run pip install 'stomp-gateway[ship]'.")
    elif to is not None:
        directory = virtual_host.journal.directory or default_journal_directory()
        if os.path.normpath(to) == os.path.normpath(directory):
            yield _Odd(("journal", "ship", "to"), "This is the journal's own directory.", "Name another one.")

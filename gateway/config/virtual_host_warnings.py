"""Warnings about settings of virtual hosts that have no effect, or another one than their author thinks."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from typing import Final

from gateway.config.base_models import MergeableModel
from gateway.config.config_files import default_journal_directory
from gateway.config.listener_warnings import is_local, only_local
from gateway.config.mistakes import Finding, Trail
from gateway.config.model import PASS_THROUGH, GatewayConfig
from gateway.config.rules import QueueArguments
from gateway.config.ship_settings import AMQP
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


def virtual_host_warnings(config: GatewayConfig) -> Iterator[Finding]:
    """Warnings about every virtual host, with the defaults merged in; several may warn of the same place."""
    for virtual_host in config.resolved_virtual_hosts():
        given = _Given(config, virtual_host.name)
        yield from _names(config, virtual_host)
        yield from _users(config, virtual_host, given)
        yield from _destinations(virtual_host, given)
        yield from _limits(virtual_host, given)
        yield from _journal(virtual_host, given)


class _Given:
    """Where a file gives the settings of a virtual host."""

    def __init__(self, config: GatewayConfig, name: str) -> None:
        self._places: list[tuple[Trail, MergeableModel]] = [
            (("virtual_hosts", name), config.virtual_hosts[name]),
            (("defaults",), config.defaults),
        ]

    def at(self, *keys: str) -> Trail | None:
        """The place that gives a setting another value than the built-in one; None if none does."""
        return next((((*trail, *keys)) for trail, settings in self._places if _is_changed(settings, keys)), None)


def _is_changed(settings: object, keys: tuple[str, ...]) -> bool:
    if not keys:
        return True
    is_changed = isinstance(settings, MergeableModel) and keys[0] in settings.changed_keys()
    return is_changed and _is_changed(getattr(settings, keys[0]), keys[1:])


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


def _users(config: GatewayConfig, virtual_host: VirtualHost, given: _Given) -> Iterator[Finding]:
    place = given.at("certificate_users")
    logins = [listener.tls is not None and listener.tls.certificate_login is not None for listener in config.listeners]
    if place and not any(logins):
        yield Finding(
            place, "This has no effect: no listener has certificate_login.", "Set tls.certificate_login there."
        )
    place = given.at("default_user")
    if place and only_local(virtual_host) and not any(is_local(listener.address) for listener in config.listeners):
        sentence = "This user is among loopback_users, so clients of other machines that send no login are refused."
        yield Finding(place, sentence, "Take another user, or leave this one out of loopback_users.")


def _destinations(virtual_host: VirtualHost, given: _Given) -> Iterator[Finding]:
    rules, place = virtual_host.destination_rules, given.at("destination_rules")
    if place and rules and all(rule.action == "allow" and not rule.mandatory for rule in rules):
        sentence = "These rules restrict nothing: what no rule fits is allowed."
        yield Finding(place, sentence, "Let the last one be {action: deny, destination: /*}.")
    place = given.at("queue_arguments")
    for position, entry in enumerate(virtual_host.queue_arguments):
        if place:
            yield from _arguments((*place, position, "arguments"), entry)


def _arguments(trail: Trail, entry: QueueArguments) -> Iterator[Finding]:
    kind = entry.arguments.get("x-queue-type")
    if kind in ("quorum", "stream") and entry.destination.text.startswith(b"/temp-queue/"):
        sentence = "This has no effect: a temporary queue is exclusive, and only classic queues can be."
        yield Finding((*trail, "x-queue-type"), sentence, "Delete it.")
        return
    for name in entry.arguments:
        if name in _REFUSED.get(str(kind), ()):
            sentence = f"RabbitMQ refuses to declare a {kind} queue with this argument."
            yield Finding((*trail, name), sentence, "Delete it, or take another x-queue-type.")


def _limits(virtual_host: VirtualHost, given: _Given) -> Iterator[Finding]:
    limits = virtual_host.limits
    for name in ("user", "address"):
        limit: Limit = getattr(limits, name)
        place = given.at("limits", name, "burst")
        if place and all(getattr(limit, rate) is None for rate in _RATES):
            yield Finding(place, "This has no effect without a rate.", f"Set {' or '.join(_RATES)}.")
        place = given.at("limits", name, "sessions")
        if place and limit.sessions is not None and limits.sessions is not None and limit.sessions > limits.sessions:
            sentence = "This has no effect: limits.sessions of the whole virtual host is less."
            yield Finding(place, sentence, "Make one of them fit.")


def _journal(virtual_host: VirtualHost, given: _Given) -> Iterator[Finding]:
    journal = virtual_host.journal
    if journal.level == "off":
        return
    for key in ("sample", "header_values"):
        place = given.at("journal", key)
        if place and journal.level != "message":
            yield Finding(place, "This has no effect at level session.", "Set level to message, or delete this.")
    place = given.at("journal", "users_key_file")
    if place and journal.users_key_file is not None and journal.users == "plain":
        yield Finding(place, "This has no effect: users is plain.", "Set users to hashed, or delete this.")
    place = given.at("journal", "retain_bytes")
    if place and journal.ship.to is None and journal.retain_bytes is not None:
        if journal.retain_bytes <= journal.rotate_bytes:
            sentence = "Each segment is deleted as soon as it is finished, since rotate_bytes is as much."
            yield Finding(place, sentence, "Make it several times rotate_bytes.")
    yield from _shipping(virtual_host, given)


def _shipping(virtual_host: VirtualHost, given: _Given) -> Iterator[Finding]:
    ship, place = virtual_host.journal.ship, given.at("journal", "ship", "to")
    for key in ("user", "stream", "stream_max_bytes", "stream_max_age"):
        own = given.at("journal", "ship", key)
        if own and ship.to != AMQP:
            yield Finding(own, "This has no effect: it is for ship.to amqp.", "Set to: amqp, or delete this.")
    if not place or ship.to is None or ship.to == AMQP:
        return
    if "://" in ship.to:
        if importlib.util.find_spec("obstore") is None:
            sentence = "Object stores need obstore, which is not installed here."
            yield Finding(place, sentence, "Run pip install 'stomp-gateway[ship]'.")
    elif os.path.normpath(ship.to) == os.path.normpath(virtual_host.journal.directory or default_journal_directory()):
        yield Finding(place, "This is the journal's own directory.", "Name another one.")

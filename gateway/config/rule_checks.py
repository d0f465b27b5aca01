"""Rules that can never decide, because earlier ones do, and settings that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.config.findings import Finding, Trail, path_text
from gateway.config.model import GatewayConfig, VirtualHostSettings
from gateway.config.policy import DestinationRule, QueueArguments
from gateway.patterns import Pattern

# Destinations that are also looked at under another name.
_ALSO: Final = {"/amq/queue/": "/queue/", "/reply-queue/": "/queue/", "/exchange/amq.topic/": "/topic/"}
_FRAMES: Final = {"send": {"send"}, "subscribe": {"subscribe"}, "both": {"send", "subscribe"}}


def useless_rules(config: GatewayConfig) -> Iterator[Finding]:
    """Entries of destination_rules and queue_arguments behind one that fits whatever they fit.

    Args:
        config: otherwise without a mistake.
    """
    for trail, place in _places(config):
        rules = place.destination_rules if "destination_rules" in place.model_fields_set else ()
        yield from _useless((*trail, "destination_rules"), rules)
        entries = place.queue_arguments if "queue_arguments" in place.model_fields_set else ()
        yield from _useless((*trail, "queue_arguments"), entries)


def low_maxima(config: GatewayConfig) -> Iterator[Finding]:
    """Where a prefetch that clients are given is more than they may have.

    Args:
        config: otherwise without a mistake.
    """
    merged = {virtual_host.name: virtual_host.prefetch for virtual_host in config.resolved_virtual_hosts()}
    for trail, place in _places(config):
        prefetch = merged[str(trail[1])] if len(trail) > 1 else place.prefetch
        if "prefetch" not in place.model_fields_set or prefetch.default is None or prefetch.max is None:
            continue
        if prefetch.default > prefetch.max:
            said = "default" if "default" in place.prefetch.model_fields_set else "max"
            yield Finding((*trail, "prefetch", said), "default is more than max here.", "Make max at least as large.")


def shared_renewals(config: GatewayConfig) -> Iterator[Finding]:
    """Where clients may renew their tokens on links that they share: one client's token would be used for others.

    Args:
        config: otherwise without a mistake.
    """
    reported: set[Trail] = set()
    for virtual_host in config.resolved_virtual_hosts():
        if not virtual_host.token_renewal or virtual_host.links == "dedicated":
            continue
        said = config.virtual_hosts[virtual_host.name].model_fields_set
        key = "links" if "links" in said and "token_renewal" not in said else "token_renewal"
        trail: Trail = ("virtual_hosts", virtual_host.name, key) if key in said else ("defaults", key)
        if trail not in reported:
            reported.add(trail)
            yield Finding(trail, "Tokens can be renewed only on links of a client's own.", "Set links to dedicated.")


def _places(config: GatewayConfig) -> Iterator[tuple[Trail, VirtualHostSettings]]:
    yield ("defaults",), config.defaults
    for name, entry in config.virtual_hosts.items():
        yield ("virtual_hosts", name), entry


def _useless(trail: Trail, rules: Sequence[DestinationRule | QueueArguments]) -> Iterator[Finding]:
    for position, rule in enumerate(rules):
        for earlier in range(position):
            if _covers(rules[earlier], rule):
                sentence = f"This never counts: {path_text((*trail, earlier))} comes first and fits everything it fits."
                yield Finding((*trail, position), sentence, "Move it before that one, or delete it.")
                break


def _covers(earlier: DestinationRule | QueueArguments, later: DestinationRule | QueueArguments) -> bool:
    """Whether whatever fits the later one fits the earlier one; a star of the one is fitted by one of the other."""
    pattern = Pattern(earlier.destination.encode())
    texts = [later.destination]
    for own, also in _ALSO.items():
        if later.destination.startswith(own):
            texts.append(also + later.destination.removeprefix(own))
    if all(pattern.match(text.encode()) is None for text in texts):
        return False
    if not isinstance(earlier, DestinationRule) or not isinstance(later, DestinationRule):
        return True
    return _FRAMES[earlier.on] >= _FRAMES[later.on] and _covers_logins(earlier.logins, later.logins)


def _covers_logins(earlier: tuple[str, ...], later: tuple[str, ...]) -> bool:
    patterns = [Pattern(login.encode()) for login in earlier]
    if not patterns:
        return True
    return bool(later) and all(any(each.match(login.encode()) is not None for each in patterns) for login in later)

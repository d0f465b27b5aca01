"""What a reload of the configuration changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from pydantic import BaseModel

from gateway.config.effective import changes
from gateway.config.model import GatewayConfig
from gateway.config.virtual_host import VirtualHost
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.server.process.listeners import ListenerChanges

InUse = dict[str, str]
"""Keys whose change needs a restart, each with the value that stays in use until then."""


# Keys at the top of the file that take effect; the plain ones are reported by their names. Any other key needs a
# restart, until somebody lets it take effect and puts it here.
_PLAIN: Final = (
    "default_vhost", "local_aliases", "admin", "logging", "failed_logins", "drain_delay", "drain_spread",
    "drain_timeout", "worker_timeout",
)  # fmt: skip
TAKING_EFFECT: Final = frozenset(("listeners", "upstream", "defaults", "virtual_hosts", *_PLAIN))

KEPT_UNTIL_RESTART: Final = {
    "admin": ("address", "socket_mode", "socket_group"),
    "journal": ("node", "rotate_bytes", "rotate_after", "retain", "retain_bytes", "ship"),
}
"""What the admin listener and an open journal directory keep until a restart."""


class StoppingError(GatewayError):
    """The gateway is stopping."""


@dataclass(frozen=True, slots=True)
class Reload:
    """What a reload has changed, in words, and what waits for a restart."""

    changes: tuple[str, ...]
    restart: InUse


class Reloadable(Protocol):
    """A service with settings of its own."""

    def prepare(self, config: GatewayConfig) -> object:
        """Try what can fail with another configuration; nothing changes. What it returns is kept until ``reload``.

        Raises:
            GatewayError: it cannot be used.
        """

    async def reload(self, config: GatewayConfig) -> InUse:
        """Use the settings of another configuration, as far as that is possible without a restart."""


def listener_changes(changes: ListenerChanges) -> Iterator[str]:
    """What happened to listeners, in words."""
    for verb in ("opened", "changed", "closed"):
        for address in getattr(changes, verb):
            yield f"listener {address}: {verb}"


def differences(before: GatewayConfig, after: GatewayConfig) -> Iterator[str]:
    """What differs between two configurations, but for listeners: each key with its old and its new value."""
    old, new = _virtual_hosts(before), _virtual_hosts(after)
    for name in {**old, **new}:
        if name not in old:
            yield f"virtual host {name}: new"
        elif name not in new:
            yield f"virtual host {name}: gone"
        else:
            aliases = sorted(before.virtual_hosts[name].aliases), sorted(after.virtual_hosts[name].aliases)
            for key in VirtualHost.model_fields:
                yield from (f"virtual host {name}: {text}" for text in _changes(key, old[name], new[name]))
            yield from (f"virtual host {name}: {text}" for text in changes(*aliases, path="aliases"))
    for key in _PLAIN:
        yield from _changes(key, before, after)


def _changes(key: str, before: BaseModel, after: BaseModel) -> Iterator[str]:
    """What differs under a key, apart from what waits for a restart."""
    old, new = getattr(before, key), getattr(after, key)
    waiting = KEPT_UNTIL_RESTART.get(key, ())
    if waiting and getattr(old, "directory", None) == getattr(new, "directory", None):
        old = old.model_copy(update={name: getattr(new, name) for name in waiting})
    return changes(old, new, key)


def _virtual_hosts(config: GatewayConfig) -> Mapping[str, VirtualHost]:
    return {virtual_host.name: virtual_host for virtual_host in config.resolved_virtual_hosts()}

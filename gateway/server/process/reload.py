"""Reading the configuration again while the gateway runs: it is applied completely or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from pydantic import BaseModel

from gateway.config.effective import changes
from gateway.config.loader import load
from gateway.config.model import GatewayConfig
from gateway.config.virtual_host import VirtualHost
from gateway.errors import ConfigError, GatewayError, Mistake
from gateway.server.process.logs import log_warnings
from gateway.server.process.served import Reload, Served, Service
from gateway.server.process.systemd_notify import SystemdNotifier

if TYPE_CHECKING:
    from gateway.server.process.listeners import ListenerChanges

log = structlog.get_logger("gateway")

# Top-level keys that a reload applies. Changes of plain ones are reported under their names. All others need a restart.
_PLAIN: Final = (
    "default_vhost", "local_aliases", "admin", "logging", "failed_logins", "drain_delay", "drain_spread",
    "drain_timeout", "worker_timeout",
)  # fmt: skip
TAKING_EFFECT: Final = frozenset(("listeners", "upstream", "defaults", "virtual_hosts", *_PLAIN))

KEPT_UNTIL_RESTART: Final = {
    "admin": ("address", "socket_mode", "socket_group"),
    "journal": ("node", "rotate_bytes", "rotate_after", "retain", "retain_bytes", "ship"),
}
"""Keys that the admin listener and an open journal directory keep until a restart."""


class StoppingError(GatewayError):
    """The gateway is stopping."""


def listener_changes(changes: ListenerChanges) -> Iterator[str]:
    """The changes of listeners, in words."""
    for verb in ("opened", "changed", "closed"):
        for address in getattr(changes, verb):
            yield f"listener {address}: {verb}"


def differences(before: GatewayConfig, after: GatewayConfig) -> Iterator[str]:
    """The differences between two configurations, except listeners: each key with its old and its new value."""
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
    """The differences under a key, except those that wait for a restart."""
    old, new = getattr(before, key), getattr(after, key)
    waiting = KEPT_UNTIL_RESTART.get(key, ())
    if waiting and getattr(old, "directory", None) == getattr(new, "directory", None):
        old = old.model_copy(update={name: getattr(new, name) for name in waiting})
    return changes(old, new, key)


def _virtual_hosts(config: GatewayConfig) -> Mapping[str, VirtualHost]:
    return {virtual_host.name: virtual_host for virtual_host in config.resolved_virtual_hosts()}


class Reloader:
    """Reads a gateway's configuration file again. Reloads run one after the other."""

    def __init__(self, gateway: Served, file: str, services: Sequence[Service[Any]], notifier: SystemdNotifier) -> None:
        self._gateway = gateway
        self._file = file
        self._services = services
        self._notifier = notifier
        self._lock = asyncio.Lock()

    async def reload(self, asked_by: str) -> Reload:
        """Read the configuration and the certificates again, and use them.

        Raises:
            ConfigError: with every mistake. Nothing has changed.
            StoppingError: the gateway is stopping.
        """
        async with self._lock:
            if self._gateway.is_stopping:
                raise StoppingError("the gateway is stopping")
            self._notifier.reloading()
            is_done = False
            try:
                result = await self._reload()
                is_done = True
            except ConfigError as error:
                mistakes = [str(mistake) for mistake in error.mistakes]
                log.error("reload refused", asked_by=asked_by, file=self._file, mistakes=mistakes)
                raise
            finally:
                self._gateway.reloads.count(successful=is_done)
                self._notifier.reloaded()
        log.info(
            "configuration reloaded",
            asked_by=asked_by, file=self._file, changes=list(result.changes), needs_restart=list(result.restart),
        )  # fmt: skip
        log_warnings(self._gateway.config)
        return result

    async def _reload(self) -> Reload:
        before = self._gateway.config
        # In a thread, because clients should not wait for a large file.
        config = await asyncio.to_thread(load, self._file)
        if self._gateway.is_stopping:
            raise StoppingError("the gateway is stopping")
        waiting = {
            key: getattr(before, key)
            for key in GatewayConfig.model_fields.keys() - TAKING_EFFECT
            if getattr(before, key) != getattr(config, key)
        }
        if waiting:
            config = config.model_copy(update=waiting)
        try:
            _held = [service.prepare(config) for service in self._services]
            listeners, restart = await self._gateway.apply(config)
        except ConfigError:
            raise
        except GatewayError as error:
            # A mistake like any other, but found only by trying.
            raise ConfigError([Mistake("", _sentence(str(error)))], self._file) from error
        for service in self._services:
            restart |= await service.reload(config)
        restart |= {key: str(value) for key, value in waiting.items()}
        files = await self._gateway.look_at_certificates()
        changes = (
            *listener_changes(listeners),
            *differences(before, config),
            *(f"certificate {file}: read again" for file in files),
        )
        return Reload(changes, restart)

    async def reload_logged(self, signal_name: str) -> None:
        """Do the same for a signal: errors go to the log only."""
        reason: str | None = None
        try:
            await self.reload(signal_name)
        except (ConfigError, StoppingError) as error:
            reason = str(error)
        except Exception as error:
            log.error("internal error", exc_info=error)
            reason = "a fault of the gateway"
        self._gateway.audit.write("reload", "failed" if reason else "done", signal=signal_name, reason=reason)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."

"""A configuration as plain values that a file could hold, all defaults included, and how two of them differ.

Passcodes and hashes are hidden.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from gateway.config.addresses import UnixAddress
from gateway.config.broker_user import AdminUser, User
from gateway.config.listener_settings import SOCKET_KEYS, WEBSOCKET_KEYS, AdminSettings, Listener
from gateway.config.model import GatewayConfig
from gateway.config.virtual_host import VirtualHostSettings
from gateway.patterns import Pattern

HIDDEN: Final = "***"

# Characters of a value in the text of a change.
_LONGEST: Final = 100


def effective(config: GatewayConfig) -> dict[str, Any]:
    """What a file would say that spells everything out: each virtual host has what it takes from `defaults`."""
    shown: dict[str, Any] = plain(config)
    for virtual_host in config.resolved_virtual_hosts():
        entry = config.virtual_hosts[virtual_host.name]
        shown["virtual_hosts"][virtual_host.name] = {
            "aliases": plain(entry.aliases),
            "amqp_vhost": virtual_host.amqp_vhost,
            "upstream": plain(virtual_host.upstream),
            **{name: plain(getattr(virtual_host, name)) for name in VirtualHostSettings.model_fields},
        }
    return shown


def plain(value: object) -> Any:  # noqa: ANN401 - JSON has every type
    """A value of a configuration in the types of JSON."""
    if isinstance(value, BaseModel):
        names = type(value).model_fields.keys() - _unsaid(value)
        shown = {name: plain(getattr(value, name)) for name in type(value).model_fields if name in names}
        if isinstance(value, Listener) and value.unix is not None:
            shown["unix"] = value.unix.path
        return shown
    if isinstance(value, Mapping):
        return {_text(key): plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        return [plain(each) for each in value]
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return HIDDEN if isinstance(value, SecretStr) else _text(value)


def _unsaid(model: BaseModel) -> Set[str]:
    """Keys that do not count beside the others of a mapping, or would be a mistake there."""
    if isinstance(model, (User, AdminUser)):
        return {"passcode"} if model.passcode_file is not None else set()
    if isinstance(model, (Listener, AdminSettings)):
        others = frozenset[str]() if isinstance(model.address, UnixAddress) else SOCKET_KEYS
        return others if isinstance(model, AdminSettings) or model.websocket is not None else others | WEBSOCKET_KEYS
    return set()


def _text(value: object) -> str:
    if isinstance(value, Pattern):
        value = value.text
    return value.decode() if isinstance(value, bytes) else str(value)


def changes(before: object, after: object, path: str = "") -> Iterator[str]:
    """What differs between two values, each key on a line of its own, with its old and its new value."""
    if before == after:
        return
    if isinstance(before, BaseModel) and type(before) is type(after):
        for name in type(before).model_fields:
            yield from changes(getattr(before, name), getattr(after, name), f"{path}.{name}" if path else name)
        return
    old, new = _cut(before), _cut(after)
    yield f"{path}: changed" if old == new else f"{path}: {old} -> {new}"


def _cut(value: object) -> str:
    text = json.dumps(plain(value), ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

"""What a reload reports, for each key of the configuration."""

from __future__ import annotations

import pytest
import yaml

from gateway.config.loader import parse
from gateway.config.model import GatewayConfig
from gateway.server.process.reload import TAKING_EFFECT, differences

BEFORE = """
virtual_hosts:
  /: {aliases: [localhost]}
  orders: {upstream: {urls: ["amqp://rabbit-a"]}}
"""


def changes(**after: object) -> list[str]:
    """What is reported when top-level keys are replaced."""
    before = yaml.safe_load(BEFORE)
    return list(differences(parse(BEFORE, environment={}), parse(yaml.safe_dump(before | after), environment={})))


ALIASES = 'virtual host /: aliases: ["localhost"] -> []'
USER = '{"login": "a", "passcode": "***", "passcode_file": null, "passcode_hash": null, "role": "full"}'


def of_both(*changes: str) -> list[str]:
    return [f"virtual host {name}: {change}" for name in ("/", "orders") for change in changes]


@pytest.mark.parametrize(
    ("after", "reported"),
    [
        ({}, []),
        ({"defaults": {"max_frame_size": 4 << 20}}, []),  # the default
        ({"defaults": {"conformance": "strict"}}, of_both('conformance: "plugin" -> "strict"')),
        ({"upstream": {"urls": ["amqp://rabbit-b"]}},
         ['virtual host /: upstream.urls: ["amqp://127.0.0.1:5672"] -> ["amqp://rabbit-b:5672"]']),
        ({"defaults": {"journal": {"rotate_bytes": "1MiB"}}}, []),  # waits for a restart
        ({"defaults": {"journal": {"rotate_bytes": "1MiB", "directory": "elsewhere"}}},
         of_both('journal.directory: null -> "elsewhere"', "journal.rotate_bytes: 67108864 -> 1048576")),
        ({"virtual_hosts": {"/": None}}, [ALIASES, "virtual host orders: gone"]),
        ({"virtual_hosts": {"/": None, "*": None}, "default_vhost": "x"},
         [ALIASES, "virtual host orders: gone", "virtual host *: new", 'default_vhost: "/" -> "x"']),
        ({"admin": "127.0.0.1:1"}, []),  # waits for a restart
        ({"admin": {"allowed_hosts": ["x"]}, "drain_spread": "1s"},
         ['admin.allowed_hosts: [] -> ["x"]', "drain_spread: 10 -> 1"]),
        # Passcodes are hidden.
        ({"admin": {"users": [{"login": "a", "passcode": "s3cret"}]}}, [f"admin.users: [] -> [{USER}]"]),
        ({"defaults": {"default_user": {"login": "guest", "passcode": "s3cret"}}},
         of_both("default_user.passcode: changed")),
        ({"listeners": [{"tcp": "127.0.0.1:1"}]}, []),  # reported by whoever opens and closes them
    ],
)  # fmt: skip
def test_the_keys_that_have_changed_are_named(after: dict[str, object], reported: list[str]) -> None:
    assert changes(**after) == reported


def test_it_is_known_of_every_key_whether_it_takes_effect() -> None:
    """A new key at the top of the file: let it take effect, or list it here, since it needs a restart."""
    assert GatewayConfig.model_fields.keys() - TAKING_EFFECT == {"workers"}

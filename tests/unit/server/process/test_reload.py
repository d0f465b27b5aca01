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


@pytest.mark.parametrize(
    ("after", "reported"),
    [
        ({}, []),
        ({"defaults": {"max_frame_size": 4 << 20}}, []),  # the default
        ({"defaults": {"conformance": "strict"}}, ["virtual host /: conformance", "virtual host orders: conformance"]),
        ({"upstream": {"urls": ["amqp://rabbit-b"]}}, ["virtual host /: upstream"]),
        ({"defaults": {"journal": {"rotate_bytes": "1MiB"}}}, []),  # waits for a restart
        (
            {"defaults": {"journal": {"rotate_bytes": "1MiB", "directory": "elsewhere"}}},
            ["virtual host /: journal", "virtual host orders: journal"],
        ),
        ({"virtual_hosts": {"/": None}}, ["virtual host /: aliases", "virtual host orders: gone"]),
        ({"virtual_hosts": {"/": None, "*": None}, "default_vhost": "x"},
         ["virtual host /: aliases", "virtual host orders: gone", "virtual host *: new", "default_vhost"]),
        ({"admin": "127.0.0.1:1"}, []),  # waits for a restart
        ({"admin": {"allowed_hosts": ["x"]}, "drain_spread": "1s"}, ["admin", "drain_spread"]),
        ({"listeners": [{"tcp": "127.0.0.1:1"}]}, []),  # reported by whoever opens and closes them
    ],
)  # fmt: skip
def test_the_keys_that_have_changed_are_named(after: dict[str, object], reported: list[str]) -> None:
    assert changes(**after) == reported


def test_it_is_known_of_every_key_whether_it_takes_effect() -> None:
    """A new key at the top of the file: let it take effect, or list it here, since it needs a restart."""
    assert GatewayConfig.model_fields.keys() - TAKING_EFFECT == {"workers"}

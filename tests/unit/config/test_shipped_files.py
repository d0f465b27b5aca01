"""The files in config/ and the documentation show what the gateway really does."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gateway.config.effective import effective
from gateway.config.loader import load, parse
from gateway.config.mistakes import all_keys
from gateway.config.model import GatewayConfig
from tests.support.certificates import Authority

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "config" / "gateway.yaml"
# What the reference cannot show with a value, since by default there is none of it.
TLS = ROOT / "config" / "tls.yaml"
POLICY = ROOT / "config" / "policy.yaml"
WEBSOCKET = ROOT / "config" / "websocket.yaml"
UNIX = ROOT / "config" / "unix.yaml"
ARCHIVES = ROOT / "config" / "archives.yaml"
SHIP = ROOT / "config" / "ship.yaml"
SPRING = {"STOMP_ADDRESS": "0.0.0.0:61613", "RABBITMQ_URL": "amqp://rabbitmq:5672", "ADMIN_ADDRESS": "127.0.0.1:15693"}
# Mappings whose keys are the users' own.
FREE = ("virtual_hosts", "defaults.certificate_users.users", "defaults.queue_arguments[].arguments")


def keys_in(value: object, prefix: str = "") -> Iterator[str]:
    """Every key of a document, as `all_keys` writes them; keys of the users' own become `*`."""
    if isinstance(value, list):
        for entry in value:
            yield from keys_in(entry, f"{prefix}[]")
    if isinstance(value, dict):
        for key, below in value.items():
            step = "*" if prefix in FREE else key
            path = f"{prefix}.{step}" if prefix else step
            yield path
            yield from keys_in(below, path)


def test_the_reference_file_and_the_example_of_tls_show_every_key() -> None:
    shown = set(keys_in(yaml.safe_load(REFERENCE.read_text())))
    below = ("listeners[].tls.", "defaults.certificate_users.", "admin.")
    shown |= {key for key in keys_in(yaml.safe_load(TLS.read_text())) if key.startswith(below)}
    shown |= {key for key in keys_in(yaml.safe_load(WEBSOCKET.read_text())) if key.startswith("listeners[].")}
    here = ("listeners[].", "admin.")
    shown |= {key for key in keys_in(yaml.safe_load(UNIX.read_text())) if key.startswith(here)}
    laid_down = ("defaults.destination_rules[].", "defaults.queue_arguments[].")
    shown |= {key for key in keys_in(yaml.safe_load(POLICY.read_text())) if key.startswith(laid_down)}
    shown |= {key for key in keys_in(yaml.safe_load(SHIP.read_text())) if key.startswith("defaults.journal.ship.user.")}
    shown |= {key for key in keys_in(yaml.safe_load(ARCHIVES.read_text())) if key.startswith("defaults.archives[].")}
    # A virtual host may hold every key of `defaults` and of `upstream`: those are shown once, in their own sections.
    elsewhere = {
        f"virtual_hosts.*.{key.removeprefix('defaults.')}" for key in all_keys() if key.startswith("defaults.")
    }
    elsewhere |= {f"virtual_hosts.*.{key}" for key in all_keys() if key.startswith("upstream.")}
    assert shown - {f"{key}.*" for key in FREE} == set(all_keys()) - elsewhere


def test_the_reference_file_shows_the_real_defaults(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.touch()
    assert load(REFERENCE) == load(empty) == GatewayConfig()


def test_every_key_in_the_reference_file_is_explained() -> None:
    lines = REFERENCE.read_text().splitlines()
    bare = {
        line.strip()
        for above, line in zip(["", *lines], lines, strict=False)
        if line.strip() and "#" not in line and not above.startswith("#")
    }
    assert bare == {"/:", "login: guest", "messages: 10000", "bytes: 64MiB"}  # their group's comment speaks of them


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.yaml")), ids=lambda file: str(file.name))
def test_every_shipped_file_is_valid(file: Path, tmp_path: Path) -> None:
    Authority.make(tmp_path, "ca")
    for name in ("certified", "journal", "operator"):
        (tmp_path / f"{name}.passcode").write_text("x")
    Authority.make(tmp_path, "clients").identify(tmp_path, "gateway")
    directories = dict.fromkeys(("CERTIFICATES", "RUNTIME_DIRECTORY"), str(tmp_path))
    config = load(file, environment=directories | {"ORDERS_PASSCODE": "x", "APP_PASSCODE": "x", **SPRING})
    assert config.virtual_host(None) is not None
    assert config.warnings == ()
    # What `stomp-gateway config` prints is a configuration that says the same.
    shown = effective(config)
    again = parse(yaml.safe_dump(shown, sort_keys=False), directory=file.parent, environment={})
    assert effective(again) == shown
    assert str(again.virtual_host(None)) == str(config.virtual_host(None))


def test_the_local_example_accepts_the_names_that_clients_dial() -> None:
    config = load(ROOT / "config" / "local.yaml")
    assert [config.virtual_host(host) is config.virtual_host("/") for host in ("localhost", "127.0.0.1")] == [
        True,
        True,
    ]


_PAGES_WITH_KEYS = ("configuration.md", "destination-rules.md", "lock-outs.md")


@pytest.mark.parametrize("key", sorted({key.rpartition(".")[2].removesuffix("[]") for key in all_keys()}))
def test_the_documentation_mentions_every_key(key: str) -> None:
    text = "".join((ROOT / "docs" / page).read_text() for page in _PAGES_WITH_KEYS)
    assert f"`{key}`" in text or f".{key}`" in text

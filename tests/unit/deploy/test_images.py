"""Dockerfile and compose.yaml, as far as they can be judged without an engine."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.config_files import default_journal_directory
from gateway.config.listener_settings import DEFAULT_ADMIN_ADDRESS
from gateway.config.loader import load
from gateway.config.model import GatewayConfig
from tests.support.addresses import tcp

_ROOT = Path(__file__).parents[3]
_HADOLINT = Path(sys.executable).with_name("hadolint")


@pytest.fixture
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((_ROOT / "deploy/compose.yaml").read_text())
    return document


@pytest.fixture
def dockerfile() -> str:
    return (_ROOT / "Dockerfile").read_text()


@pytest.fixture
def config(compose: dict[str, Any], tmp_path: Path) -> GatewayConfig:
    """The gateway's configuration in compose."""
    file = tmp_path / "gateway.yaml"
    content = compose["configs"]["gateway"]["content"]
    assert "$" not in content, "compose itself would fill that in"
    file.write_text(content)
    return load(file, {})


def test_compose_understands_its_file() -> None:
    compose_spec = pytest.importorskip("compose_spec", reason="compose-spec has no wheel for this machine")
    text = (_ROOT / "deploy/compose.yaml").read_text()

    assert compose_spec.PyCompose.from_yaml(text).service_names() == ["rabbitmq", "gateway", "prometheus", "grafana"]
    with pytest.raises(ValueError, match="readonly"):
        compose_spec.PyCompose.from_yaml(text.replace("read_only:", "readonly:"))


def test_the_gateway_in_compose_has_a_valid_configuration(compose: dict[str, Any], config: GatewayConfig) -> None:
    service = compose["services"]["gateway"]
    published = {int(port.split(":")[-1]) for port in service["ports"]}
    listeners, admin = [tcp(listener.address) for listener in config.listeners], tcp(config.admin.address)

    assert {address.port for address in (*listeners, admin)} == published
    assert {address.host for address in (*listeners, admin)} == {"0.0.0.0"}  # noqa: S104
    assert config.virtual_host("localhost") is not None
    assert config.drain_delay + config.drain_timeout < float(service["stop_grace_period"].removesuffix("s"))


def test_who_comes_to_compose_logs_in_and_rabbitmqs_own_user_may(config: GatewayConfig) -> None:
    """Every web page in a browser on that machine reaches the WebSocket listener."""
    [host] = config.resolved_virtual_hosts()

    assert host.default_user is None
    assert not host.loopback_users


def test_prometheus_in_compose_may_ask_the_gateway(config: GatewayConfig) -> None:
    jobs = yaml.safe_load((_ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    [target] = [job["static_configs"][0]["targets"] for job in jobs if job["job_name"] == "stomp-gateway"]
    name, port = target[0].split(":")

    assert name in config.admin.allowed_hosts
    assert int(port) == tcp(config.admin.address).port


def test_compose_mounts_what_is_there_and_keeps_what_is_written(compose: dict[str, Any]) -> None:
    kept = set()
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert volume.endswith(":ro")
                assert (_ROOT / "deploy" / source).exists()
            else:
                kept.add(source)

    assert kept == set(compose["volumes"])


def test_every_service_in_compose_is_pinned_watched_and_restarted(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert name == "gateway" or re.search(r":v?\d+\.\d+", service["image"])
        assert name == "gateway" or service["healthcheck"]["test"][0] == "CMD"  # no shell
        assert service["restart"] == "unless-stopped"


def test_compose_holds_no_secret_that_cannot_be_replaced(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            assert not re.search("PASS|SECRET|TOKEN", name) or re.fullmatch(r"\$\{\w+:-\w+\}", value)


def test_compose_puts_the_configuration_where_the_image_reads_it(compose: dict[str, Any], dockerfile: str) -> None:
    [mounted] = compose["services"]["gateway"]["configs"]

    assert f'CMD ["serve", "--config", "{mounted["target"]}"]' in dockerfile


def test_compose_keeps_the_journal_where_the_image_has_it(compose: dict[str, Any], dockerfile: str) -> None:
    [volume] = compose["services"]["gateway"]["volumes"]
    name, place = volume.split(":")

    assert f"ENV STATE_DIRECTORY={place} " in dockerfile
    assert f'VOLUME ["{place}"]\n' in dockerfile
    assert default_journal_directory({"STATE_DIRECTORY": place}).parent == Path(place)
    assert name in compose["volumes"]


def test_compose_shows_its_ports_to_this_machine_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service["ports"]]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_everything_that_the_image_copies_is_there_and_sent_to_the_engine(dockerfile: str) -> None:
    copied = [
        name for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE) for name in line.split()[:-1]
    ]
    sent = {
        line.removeprefix("!") for line in (_ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }

    assert set(copied) == sent
    assert all((_ROOT / name).exists() for name in copied)


def test_the_image_has_the_python_that_the_project_asks_for(dockerfile: str) -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    images = set(re.findall(r"^FROM python:([\d.]+)-", dockerfile, re.MULTILINE))

    assert {f">={image}" for image in images} == {project["requires-python"]}


@pytest.mark.skipif(not _HADOLINT.exists(), reason="hadolint has no wheel for this machine")
def test_hadolint_has_nothing_to_say(tmp_path: Path, dockerfile: str) -> None:
    assert _hadolint(_ROOT / "Dockerfile") == []

    worse = tmp_path / "Dockerfile"
    worse.write_text(dockerfile.replace(":3.11-slim-bookworm", ":latest"))
    assert set(_hadolint(worse)) == {"DL3007"}


def _hadolint(file: Path) -> list[str]:
    done = subprocess.run(
        [_HADOLINT, "--no-color", "--format", "json", file], capture_output=True, text=True, check=False
    )
    return [finding["code"] for finding in json.loads(done.stdout)]


def test_the_image_runs_as_a_number_that_is_nobody_and_without_a_shell(dockerfile: str) -> None:
    final = dockerfile.rpartition("\nFROM ")[2]
    user, group = re.findall(r"^USER (\d+):(\d+)$", final, re.MULTILINE)[-1]

    assert int(user) > 1000
    assert int(group) > 1000
    for instruction in ("ENTRYPOINT", "CMD"):
        [form] = re.findall(rf"^{instruction} (.+)$", final, re.MULTILINE)
        assert json.loads(form)


def test_the_image_says_where_it_listens(dockerfile: str, config: GatewayConfig) -> None:
    [exposed] = re.findall(r"^EXPOSE (.+)$", dockerfile, re.MULTILINE)

    assert set(map(int, exposed.split())) == {
        *(tcp(listener.address).port for listener in config.listeners),
        tcp(config.admin.address).port,
    }


class _Answer(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def healthy(dockerfile: str) -> Iterator[tuple[list[str], http.server.HTTPServer]]:
    """The image's health check, turned to a server of our own."""
    [form] = re.findall(r"^HEALTHCHECK .*\\\n +CMD (.+)$", dockerfile, re.MULTILINE)
    [python, *arguments] = json.loads(form)
    assert python == "python"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        usual = f"'{DEFAULT_ADMIN_ADDRESS.host}', {DEFAULT_ADMIN_ADDRESS.port}"
        assert usual in arguments[-1]
        mine = arguments[-1].replace(usual, f"'127.0.0.1', {server.server_address[1]}")
        yield [sys.executable, *arguments[:-1], mine], server
        server.shutdown()


def test_the_image_is_healthy_when_the_admin_listener_says_so(
    healthy: tuple[list[str], http.server.HTTPServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, server = healthy
    assert subprocess.run(command, check=False).returncode == 0

    monkeypatch.setattr(_Answer, "status", 503)
    assert subprocess.run(command, check=False).returncode != 0

    server.server_close()
    assert subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode != 0

"""The systemd unit, as systemd's own tools judge it, and against what the gateway does; nothing is booted."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.config.loader import load
from gateway.errors import ExitCode
from tests.support.certificates import Authority

_FILES = Path(__file__).parents[3] / "deploy/systemd"
_UNIT = _FILES / "stomp-gateway.service"
_PROGRAM = "/opt/stomp-gateway/bin/stomp-gateway"
# systemd-analyze counts exposure from 0 to 10, and 2 is its limit of what is well. Version 252 finds 1.1.
_EXPOSURE = 1.5

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here (Debian: apt install systemd)"
)


def _settings(file: Path = _UNIT) -> dict[str, str]:
    """The unit's settings; of those that are given twice, the last one."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(file)
    return {key: value for section in parser.sections() for key, value in parser[section].items()}


def _analyze(*arguments: str | Path) -> tuple[int, str]:
    done = subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit, with a program that is there on every machine in place of the gateway, which verify looks for."""
    unit = tmp_path / _UNIT.name
    unit.write_text(_UNIT.read_text().replace(_PROGRAM, str(Path("/bin/true"))))
    (tmp_path / f"{unit.name}.d").mkdir()
    (tmp_path / f"{unit.name}.d/credentials.conf").write_text((_FILES / "credentials.conf").read_text())
    return unit


@needs_systemd
def test_systemd_understands_every_line(installed: Path) -> None:
    assert _analyze("verify", "--man=no", "--recursive-errors=no", installed) == (0, "")


@needs_systemd
def test_systemd_would_notice_a_line_that_it_does_not_know(installed: Path) -> None:
    installed.write_text(installed.read_text().replace("RestrictRealtime=", "RestrictRealTime="))
    code, said = _analyze("verify", "--man=no", "--recursive-errors=no", installed)

    assert code != 0
    assert "RestrictRealTime" in said


@needs_systemd
def test_the_service_is_hardly_exposed(installed: Path) -> None:
    _, said = _analyze("security", "--offline=true", "--no-pager", installed)
    found = re.search(r"exposure level for \S+: ([\d.]+)", said)
    assert found is not None

    assert float(found[1]) <= _EXPOSURE


def test_stopping_waits_longer_than_the_drain(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("")

    config = load(tmp_path / "gateway.yaml")

    assert config.drain_delay + config.drain_timeout < float(_settings()["TimeoutStopSec"].removesuffix("s"))


def test_a_reload_lists_mistakes_before_it_sends_the_signal() -> None:
    service = (_FILES / "stomp-gateway.service").read_text()
    checked, signalled = re.findall(r"^ExecReload=(.*)$", service, re.MULTILINE)
    serving = _settings()["ExecStart"]

    assert checked == serving.replace(" serve ", " check --offline ")
    assert signalled == "/bin/kill -HUP $MAINPID"


def test_a_wrong_configuration_is_not_tried_again_and_again() -> None:
    settings = _settings()

    assert settings["Restart"] == "on-failure"
    assert settings["RestartPreventExitStatus"] == str(ExitCode.CONFIGURATION.value)
    assert settings["Type"] == "notify"


def test_the_example_configuration_takes_every_secret_from_the_credentials(tmp_path: Path) -> None:
    text = (_FILES / "credentials.conf").read_text()
    credentials = re.findall(r"^LoadCredential=([\w.-]+):/etc/stomp-gateway/\1$", text, re.MULTILINE)
    assert len(credentials) == text.count("LoadCredential=")
    authority = Authority.make(tmp_path, "gateway")
    contents = {"tls.crt": authority.certificate.read_text(), "tls.key": authority.key.read_text()}
    for name in credentials:
        (tmp_path / name).write_text(contents.get(name, "s3cret\n"))
    example = (_FILES / "gateway.yaml").read_text()
    (tmp_path / "gateway.yaml").write_text(example)
    config = load(tmp_path / "gateway.yaml", environment={"CREDENTIALS_DIRECTORY": str(tmp_path)})

    assert sorted(re.findall(r"\$\{CREDENTIALS_DIRECTORY}/(\S+)", example)) == sorted(credentials)
    assert config.listeners[1].tls is not None
    assert [host.default_user for host in config.resolved_virtual_hosts()] == [None]
    assert config.admin.address is not None
    assert config.admin.address.port != 15692  # RabbitMQ's own metrics are there


def test_the_journal_is_where_systemd_makes_a_directory() -> None:
    settings = _settings()

    assert settings["StateDirectory"] == "stomp-gateway"
    assert settings["ExecStart"].split()[:2] == [_PROGRAM, "serve"]
    assert settings["DynamicUser"] == "yes"

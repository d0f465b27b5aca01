"""The systemd units, as systemd's own tools judge them, and against what the gateway does; `make test-deb` boots."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.config.loader import load
from gateway.errors import ExitCode
from tests.support.addresses import tcp
from tests.support.certificates import Authority

_FILES = Path(__file__).parents[3] / "deploy/systemd"
_UNIT = _FILES / "stomp-gateway.service"
_TEMPLATE = _FILES / "stomp-gateway@.service"
_PAGE = Path(__file__).parents[3] / "docs/deploy.md"
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


@pytest.fixture(params=[_UNIT, _TEMPLATE], ids=["service", "template"])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit, with a program that is there on every machine in place of the gateway, which verify looks for."""
    source: Path = request.param
    unit = tmp_path / source.name.replace("@", "@orders")
    (tmp_path / source.name).write_text(source.read_text().replace(_PROGRAM, str(Path("/bin/true"))))
    (tmp_path / f"{source.name}.d").mkdir()
    (tmp_path / f"{source.name}.d/credentials.conf").write_text((_FILES / "credentials.conf").read_text())
    return unit


@needs_systemd
def test_systemd_understands_every_line(installed: Path) -> None:
    assert _analyze("verify", "--man=no", "--recursive-errors=no", installed) == (0, "")


@needs_systemd
def test_systemd_would_notice_a_line_that_it_does_not_know(installed: Path) -> None:
    file = installed.with_name(installed.name.replace("@orders", "@"))
    file.write_text(file.read_text().replace("RestrictRealtime=", "RestrictRealTime="))
    code, said = _analyze("verify", "--man=no", "--recursive-errors=no", installed)

    assert code != 0
    assert "RestrictRealTime" in said


@needs_systemd
def test_the_service_is_hardly_exposed(installed: Path) -> None:
    _, said = _analyze("security", "--offline=true", "--no-pager", installed)
    found = re.search(r"exposure level for \S+: ([\d.]+)", said)
    assert found is not None

    assert float(found[1]) <= _EXPOSURE


@needs_systemd
def test_the_drop_in_for_unix_domain_sockets_lets_the_service_give_a_file_to_a_group(installed: Path) -> None:
    """It adds to the unit's filter, and takes no restriction away that it does not name."""
    drop_in = re.search(r"^  (\[Service\]\n  RuntimeDirectory=.*?)^  ```", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert drop_in is not None
    before = _exposed(installed)
    (installed.parent / f"{installed.name}.d").mkdir(exist_ok=True)
    (installed.parent / f"{installed.name}.d/sockets.conf").write_text(drop_in[1].replace("\n  ", "\n"))

    assert _analyze("verify", "--man=no", "--recursive-errors=no", installed) == (0, "")
    after = _exposed(installed)
    assert "chown is allowed" in after.pop("SystemCallFilter=~@privileged")
    assert after.keys() == before.keys() | {"PrivateUsers=", "SupplementaryGroups="}


def _exposed(unit: Path) -> dict[str, str]:
    """What the unit does not restrict, each with the sentence of systemd-analyze."""
    _, said = _analyze("security", "--offline=true", "--no-pager", unit)
    return dict(re.findall(r"^✗ (\S+) +(\S.*)$", said, re.MULTILINE))


def test_an_instance_differs_from_the_service_in_its_name_only() -> None:
    """In its files, too: each has a configuration, variables and a journal of its own."""
    expected = _UNIT.read_text()
    for text, of_an_instance in {
        "STOMP gateway in front": "STOMP gateway %i in front",
        "/etc/stomp-gateway/gateway.yaml": "/etc/stomp-gateway/%i.yaml",
        "/etc/stomp-gateway/environment": "/etc/stomp-gateway/%i.environment",
        "/var/lib/stomp-gateway.": "/var/lib/stomp-gateway-%i.",
        "StateDirectory=stomp-gateway": "StateDirectory=stomp-gateway-%i",
    }.items():
        assert text in expected
        expected = expected.replace(text, of_an_instance)

    _, _, below_the_title = expected.partition("[Unit]")
    assert _TEMPLATE.read_text().partition("[Unit]")[2] == below_the_title


@pytest.fixture
def pasted(tmp_path: Path) -> Path:
    """Where the blocks of docs/deploy.md have put their files: a folder in place of /."""
    if shutil.which("openssl") is None:
        pytest.skip("the second block needs the program openssl")
    _, _, section = _PAGE.read_text().partition("\n## systemd\n")
    blocks = re.findall(r"^```\n(.*?)^```", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    systemctl.chmod(0o755)
    for block in blocks:
        assert set(re.findall(r"(?<=[ =>])/\w+", block)) <= {"/etc", "/dev", "/CN"}, "touches this machine"
        script = f"set -e\nPATH={systemctl.parent}:$PATH\n{block.replace('/etc/', f'{tmp_path}/etc/')}"
        subprocess.run(["sh"], input=script, cwd=_FILES.parents[1], capture_output=True, text=True, check=True)
    return tmp_path


def test_what_the_documentation_says_installs_all_that_its_units_and_configurations_name(pasted: Path) -> None:
    etc = pasted / "etc/stomp-gateway"
    units = pasted / "etc/systemd/system"
    credentials = re.findall(
        r"^LoadCredential=\S+:/etc/stomp-gateway/(\S+)$",
        (units / "stomp-gateway.service.d/credentials.conf").read_text(),
        re.MULTILINE,
    )

    assert {file.name for file in units.glob("*.service")} == {_UNIT.name, _TEMPLATE.name}
    assert {file.stat().st_mode & 0o777 for file in map(etc.joinpath, credentials) if file.name != "tls.crt"} == {0o600}
    assert load(etc / "gateway.yaml", {"CREDENTIALS_DIRECTORY": str(etc)}).warnings == ()
    other = load(etc / "orders.yaml", {})
    assert other.warnings == ()
    assert (pasted / "calls").read_text().splitlines() == [
        *["daemon-reload", "enable --now stomp-gateway"],
        *["daemon-reload", "restart stomp-gateway"],
        *["daemon-reload", "enable --now stomp-gateway@orders"],
    ]


def test_instances_of_the_documentation_have_ports_of_their_own(pasted: Path) -> None:
    etc = pasted / "etc/stomp-gateway"
    ports = [
        {
            str(address).rpartition(":")[2]
            for address in (config.admin.address, *(one.address for one in config.listeners))
        }
        for config in (load(etc / "gateway.yaml", {"CREDENTIALS_DIRECTORY": str(etc)}), load(etc / "orders.yaml", {}))
    ]

    assert not ports[0] & ports[1]


def test_stopping_waits_longer_than_the_drain(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("")

    config = load(tmp_path / "gateway.yaml")

    assert config.drain_delay + config.drain_timeout < float(_settings()["TimeoutStopSec"].removesuffix("s"))


def test_a_reload_lists_mistakes_before_it_sends_the_signal() -> None:
    service = (_FILES / "stomp-gateway.service").read_text()
    checked, signalled = re.findall(r"^ExecReload=(.*)$", service, re.MULTILINE)
    serving = _settings()["ExecStart"]

    assert checked == serving.replace(" serve ", " check --offline ")
    # A shell's own kill: a minimal system has no other.
    assert signalled == "/bin/sh -c 'kill -HUP $MAINPID'"


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
    example = (_FILES / "secrets.yaml").read_text()
    (tmp_path / "gateway.yaml").write_text(example)
    config = load(tmp_path / "gateway.yaml", environment={"CREDENTIALS_DIRECTORY": str(tmp_path)})

    assert sorted(re.findall(r"\$\{CREDENTIALS_DIRECTORY}/(\S+)", example)) == sorted(credentials)
    assert config.listeners[1].tls is not None
    assert [host.default_user for host in config.resolved_virtual_hosts()] == [None]
    assert tcp(config.admin.address).port != 15692  # RabbitMQ's own metrics are there


def test_the_journal_is_where_systemd_makes_a_directory() -> None:
    settings = _settings()

    assert settings["StateDirectory"] == "stomp-gateway"
    assert settings["ExecStart"].split()[:2] == [_PROGRAM, "serve"]
    assert settings["DynamicUser"] == "yes"

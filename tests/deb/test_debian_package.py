"""The Debian package on a fresh Debian with systemd: installed, used, upgraded, removed. `make test-deb` runs this."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.errors import LocalError
from deploy.release import __main__ as release
from deploy.release.deb import pack
from gateway import __version__
from tests.support.machine import ROOT, Machine, booted, tree

pytestmark = pytest.mark.deb

_CONFIG = "/etc/stomp-gateway/gateway.yaml"
_UNIT = "stomp-gateway.service"

# A client's first words, and the first word of the answer.
_CONVERSATION = r"""
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20) as client:
    client.sendall(b"CONNECT\naccept-version:1.2\nhost:localhost\nlogin:a\npasscode:b\n\n\0")
    print(client.recv(4096).decode())
"""
_HEALTH = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:15693/healthz", timeout=20).read().decode())
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("dist")
    try:
        tree()
    except LocalError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPKG_DEB_COMPRESSOR_TYPE", "none")  # which saves half a minute for each package
        release.make(place, everything=False)
        yield next(place.glob("*.deb"))


@pytest.fixture(scope="module")
def newer(package: Path) -> Path:
    """The same with a higher version."""
    root = package.parent / "newer"
    subprocess.run(["dpkg-deb", "--raw-extract", package, root], check=True)
    depends = re.search(r"^Depends: (\S+),", (root / "DEBIAN/control").read_text(), re.MULTILINE)
    assert depends is not None
    for file in (root / "DEBIAN").iterdir():
        file.unlink()
    (root / "DEBIAN").rmdir()
    return pack(root, package.parent, version=f"{__version__}+newer", python=depends[1])


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Machine]:
    """A machine without the gateway."""
    with booted(tmp_path) as machine:
        yield machine


@pytest.fixture
def machine(empty: Machine, package: Path) -> Machine:
    """A machine with the package."""
    install(empty, package)
    return empty


def install(machine: Machine, package: Path) -> None:
    machine.write("/root/package.deb", package.read_bytes())
    machine.run("dpkg", "--install", "/root/package.deb")


def said(machine: Machine, port: int) -> str:
    return machine.run("python3", "-c", _CONVERSATION, str(port))


def test_the_service_runs_at_once_and_at_the_next_boot(machine: Machine) -> None:
    assert machine.run("systemctl", "is-active", _UNIT) == "active"
    assert machine.run("systemctl", "is-enabled", _UNIT) == "enabled"
    pid = machine.run("systemctl", "show", "--property=MainPID", "--value", _UNIT)
    assert machine.run("stat", "--format=%U", f"/proc/{pid}") == "stomp-gateway"
    # There is no broker, and it serves as far as it can.
    assert "Upstream unavailable" in said(machine, 61613)
    assert machine.run("python3", "-c", _HEALTH) == "ok"
    assert "stomp-gateway schema" in machine.run("gzip", "-dc", "/usr/share/man/man1/stomp-gateway.1.gz").replace(
        "\\", ""
    )

    machine.run("systemctl", "stop", _UNIT)
    assert machine.run("systemctl", "show", "--property=Result", "--value", _UNIT) == "success"


def test_only_root_and_the_service_read_the_configuration_and_the_journal(machine: Machine) -> None:
    rights = machine.run("stat", "--format=%U:%G %a %n", "/etc/stomp-gateway", _CONFIG, "/var/lib/stomp-gateway")

    assert rights.splitlines() == [
        "root:stomp-gateway 750 /etc/stomp-gateway",
        f"root:stomp-gateway 640 {_CONFIG}",
        "stomp-gateway:stomp-gateway 750 /var/lib/stomp-gateway",
    ]
    machine.run("runuser", "-u", "nobody", "--", "cat", _CONFIG, code=1)
    machine.run("runuser", "-u", "stomp-gateway", "--", "stomp-gateway", "check", "--offline", "--config", _CONFIG)


def test_a_reload_takes_a_changed_file_and_refuses_a_wrong_one(machine: Machine) -> None:
    machine.shell(f"sed -i s/61613/62613/ {_CONFIG}; systemctl reload {_UNIT}")
    assert "Upstream unavailable" in said(machine, 62613)

    machine.shell(f"echo 'lisners: []' >>{_CONFIG}")
    machine.run("systemctl", "reload", _UNIT, code=1)
    assert "lisners: There is no such key" in machine.run("journalctl", "--no-pager", "-u", _UNIT)
    assert "Upstream unavailable" in said(machine, 62613)


def test_instances_run_beside_it_with_files_and_journals_of_their_own(machine: Machine) -> None:
    other = "listeners: [{tcp: '127.0.0.1:61614'}]\nadmin: off\n"
    machine.write("/etc/stomp-gateway/orders.yaml", other)
    machine.run("systemctl", "enable", "--now", "stomp-gateway@orders")

    assert "ERROR" in said(machine, 61614)
    assert "Upstream unavailable" in said(machine, 61613)
    assert machine.run("ls", "/var/lib/stomp-gateway-orders") == "journal"
    machine.write("/etc/stomp-gateway/orders.yaml", other.replace("61614", "61615"))
    machine.run("systemctl", "reload", "stomp-gateway@orders")
    assert "ERROR" in said(machine, 61615)


def test_an_upgrade_keeps_the_configuration_and_restarts_what_runs(machine: Machine, newer: Path) -> None:
    machine.shell(f"sed -i s/61613/62613/ {_CONFIG}; chmod 600 {_CONFIG}; chown stomp-gateway {_CONFIG}")
    before = machine.run("systemctl", "show", "--property=MainPID", "--value", _UNIT)
    install(machine, newer)

    assert machine.run("systemctl", "is-active", _UNIT) == "active"
    assert machine.run("systemctl", "show", "--property=MainPID", "--value", _UNIT) != before
    assert "Upstream unavailable" in said(machine, 62613)
    assert machine.run("stat", "--format=%U %a", _CONFIG) == "stomp-gateway 600"
    assert machine.run("dpkg-query", "--show", "--showformat=${Version}", "stomp-gateway").startswith(
        f"{__version__}+newer-1+deb"
    )


def test_what_is_removed_stops_and_what_is_purged_is_gone(machine: Machine) -> None:
    machine.run("dpkg", "--remove", "stomp-gateway")
    assert machine.run("systemctl", "is-active", _UNIT, code=None) in {"inactive", "failed"}
    assert machine.shell(f"ls -d {_CONFIG} /var/lib/stomp-gateway/journal").count("\n") == 1

    machine.run("dpkg", "--purge", "stomp-gateway")
    left = "find / -xdev -name '*stomp-gateway*' -not -path '/proc/*' -not -path '/run/*' -not -path '/var/log/*'"
    assert machine.shell(left) == ""


def test_it_is_installed_and_removed_where_no_systemd_runs(empty: Machine, package: Path) -> None:
    """As in a container or a chroot: nothing starts, and nothing fails."""
    empty.write("/root/package.deb", package.read_bytes())
    # Its scripts ask for this folder.
    hidden = "mount -t tmpfs tmpfs /run/systemd && "
    done = empty.run("unshare", "--mount", "sh", "-c", f"{hidden} dpkg --install /root/package.deb")
    assert "rror" not in done
    assert empty.run("stomp-gateway", "--version") == f"stomp-gateway {__version__}"
    assert empty.run("systemctl", "is-enabled", _UNIT) == "enabled"
    assert empty.run("systemctl", "is-active", _UNIT, code=3) == "inactive"
    empty.run("unshare", "--mount", "sh", "-c", f"{hidden} dpkg --purge stomp-gateway")


def test_the_commands_of_the_documentation_install_the_service_without_the_package(
    empty: Machine, package: Path
) -> None:
    """Pasted as they are. The environment in /opt has the package's files, because the machine has no network."""
    empty.write("/root/package.deb", package.read_bytes())
    empty.shell(
        "dpkg-deb --extract /root/package.deb /root/files; mv /root/files/usr/lib/stomp-gateway /usr/lib;"
        "mkdir --parents /opt/stomp-gateway/bin; ln -s /usr/lib/stomp-gateway/bin/stomp-gateway /opt/stomp-gateway/bin"
    )
    for file in (ROOT / "deploy/systemd").iterdir():
        empty.write(f"/root/checkout/deploy/systemd/{file.name}", file.read_text())
    _, _, section = (ROOT / "docs/deploy.md").read_text().partition("\n## systemd\n")
    service, passcode, instance = re.findall(
        r"^```\n(.*?)^```", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL
    )

    empty.shell(f"cd /root/checkout\n{service}")
    assert "Upstream unavailable" in said(empty, 61613)
    empty.shell(f"cd /root/checkout\n{passcode}")
    assert empty.run("systemctl", "is-active", _UNIT) == "active"
    assert "ERROR" in said(empty, 61613)
    empty.shell(f"cd /root/checkout\n{instance}")
    assert "ERROR" in said(empty, 62613)

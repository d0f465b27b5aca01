"""The scripts that dpkg runs, in a folder in place of / (DPKG_ROOT). The programs they call only say with what."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_SCRIPTS = Path(__file__).parents[3] / "deploy/debian"
_PACKAGED = "/lib/systemd/system/stomp-gateway@.service"


class _System:
    """A system with systemd and the package's configuration."""

    def __init__(self, place: Path) -> None:
        self.root = place / "root"
        self._programs = place / "bin"
        self._said = place / "said"
        for folder in ("run/systemd/system", "etc/systemd/system/multi-user.target.wants", "etc/stomp-gateway"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "etc/stomp-gateway/gateway.yaml").touch()
        self.units = self.root / "etc/systemd/system"
        self._programs.mkdir()
        for name in ("adduser", "install", "chown", "deb-systemd-helper", "deb-systemd-invoke", "systemctl"):
            program = self._programs / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >>{self._said}\n')
            program.chmod(0o755)

    def run(self, script: str, *arguments: str) -> str:
        """Run it to its end. Returns what it wrote to standard error."""
        path = f"{self._programs}:{os.environ['PATH']}"
        environment = {"PATH": path, "DPKG_ROOT": str(self.root)}
        command = ("sh", str(_SCRIPTS / script), *arguments)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr

    def invoked(self) -> list[str]:
        """What the service manager was asked to do, in order."""
        lines = self._said.read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith("deb-systemd-invoke ")]

    def folder(self, name: str, *files: str) -> Path:
        place = self.root / "var/lib" / name
        for file in files:
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).touch()
        return place

    def instance(self, name: str, unit: str = _PACKAGED) -> Path:
        """Enable one. Returns its link."""
        (self.root / f"etc/stomp-gateway/{name}.yaml").touch()
        link = self.units / f"multi-user.target.wants/stomp-gateway@{name}.service"
        link.symlink_to(unit)
        return link


@pytest.fixture
def system(tmp_path: Path) -> _System:
    return _System(tmp_path)


def test_purge_deletes_the_journals_of_gateways_and_nothing_else(system: _System) -> None:
    system.instance("orders")
    system.instance("spare")
    journals = [system.folder("stomp-gateway", "journal/a"), system.folder("stomp-gateway-orders", "journal/a")]
    others = [
        system.folder("stomp-gateway-backup", "journal/a"),
        system.folder("stomp-gateway-spare", "notes"),
        system.folder("stomp-gatewayish", "journal/a"),
    ]
    system.run("postrm", "purge")

    assert not [folder for folder in journals if folder.exists()]
    assert [len(list(folder.iterdir())) for folder in others] == [1, 1, 1]


def test_purge_does_not_follow_a_link_to_a_journal_elsewhere(system: _System) -> None:
    elsewhere = system.folder("private", "journal/a")
    (system.root / "var/lib/stomp-gateway").symlink_to(elsewhere)
    system.run("postrm", "purge")

    assert (elsewhere / "journal/a").exists()


def test_purge_removes_the_links_of_instances_and_removal_keeps_them(system: _System) -> None:
    packaged = system.instance("orders")
    own = system.instance("own", "/etc/systemd/system/stomp-gateway@.service")
    system.run("postrm", "remove")
    assert packaged.is_symlink()

    system.run("postrm", "purge")
    assert not packaged.is_symlink()
    assert own.is_symlink()
    assert (system.root / "etc/stomp-gateway/orders.yaml").exists()


def test_an_upgrade_restarts_only_what_runs(system: _System) -> None:
    system.instance("orders")
    system.run("postinst", "configure", "0.1.0-1+deb12")

    assert system.invoked() == ["try-restart stomp-gateway.service", "try-restart stomp-gateway@*.service"]


@pytest.mark.parametrize("earlier", ["", "0.1.0-1+deb12"], ids=["new", "again"])
def test_an_installation_starts_the_service_and_the_enabled_instances(system: _System, earlier: str) -> None:
    system.instance("orders")
    if earlier:  # The package was removed, and its unit masked.
        (system.units / "stomp-gateway.service").symlink_to("/dev/null")
    system.run("postinst", "configure", earlier)

    assert system.invoked() == ["start stomp-gateway.service", "start stomp-gateway@orders.service"]


def test_an_installation_without_instances_starts_the_service_alone(system: _System) -> None:
    system.run("postinst", "configure", "")

    assert system.invoked() == ["start stomp-gateway.service"]


def test_a_unit_that_overrides_the_packages_is_warned_of(system: _System) -> None:
    assert system.run("postinst", "configure", "") == ""

    (system.units / "stomp-gateway.service").write_text("[Service]\n")
    warning = system.run("postinst", "configure", "")
    assert warning.startswith("stomp-gateway: /etc/systemd/system/stomp-gateway.service is used")
    assert warning.count("\n") == 1

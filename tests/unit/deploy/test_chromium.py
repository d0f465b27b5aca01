"""A Chromium for tests that render: the one that is there, Debian's, or none and a sentence."""

import shutil

import pytest

from deploy.local import chromium, debian
from deploy.local.errors import LocalError


class _Machine:
    """Has a Chromium, or gets one from Debian."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, found: bool, root: bool, works: bool = True) -> None:
        self.found = found
        self.installed: list[str] = []
        self._works = works
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if self.found else None)
        monkeypatch.setattr(debian, "can_install", lambda: root)
        monkeypatch.setattr(debian, "install_first", self._install)

    def _install(self, packages: list[str]) -> None:
        self.installed += packages
        if not self._works:
            raise LocalError("apt-get says no")
        self.found = True


def test_one_that_is_there_is_taken_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, lines = _Machine(monkeypatch, found=True, root=True), list[str]()
    assert chromium.TOOL.provide(lines.append) == "/usr/bin/chromium"
    assert lines == machine.installed == []


def test_root_on_debian_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, lines = _Machine(monkeypatch, found=False, root=True), list[str]()
    assert chromium.TOOL.provide(lines.append) == "/usr/bin/chromium"
    assert machine.installed == ["chromium"]
    assert len(lines) == 1


@pytest.mark.parametrize(("root", "reason"), [(False, "apt install chromium"), (True, "apt-get says no")])
def test_without_one_the_tests_go_on_and_say_so(monkeypatch: pytest.MonkeyPatch, root: bool, reason: str) -> None:
    _Machine(monkeypatch, found=False, root=root, works=False)
    lines: list[str] = []
    assert chromium.TOOL.provide(lines.append) is None
    assert "skipped" in lines[-1]
    assert reason in lines[-1]

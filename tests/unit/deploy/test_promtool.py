"""A promtool for tests: the one that is there, the one in Debian's package, or none and a sentence."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.local import debian, promtool
from deploy.local.errors import LocalError


class _Machine:
    """Has a promtool in PATH, or a package with one, or one without."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, *, found: bool = False, root: bool = True
    ) -> None:
        self.fetched = folder / "tools" / "promtool"
        self.files: dict[str, str] = {"usr/bin/promtool": "#!/bin/sh\n", "usr/bin/prometheus": "#!/bin/sh\n"}
        self.refuses = ""
        self._folder = folder
        which = shutil.which
        monkeypatch.setattr(
            shutil,
            "which",
            lambda name: ("/usr/bin/promtool" if found else None) if name == "promtool" else which(name),
        )
        monkeypatch.setattr(debian, "can_install", lambda: root)
        monkeypatch.setattr(debian, "download", self._download)

    def _download(self, package: str, directory: Path) -> Path:
        assert package == "prometheus"
        if self.refuses:
            raise LocalError(self.refuses)
        tree = self._folder / "tree"
        for name, text in {"DEBIAN/control": _CONTROL, **self.files}.items():
            file = tree / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
        subprocess.run(["dpkg-deb", "--build", tree, directory / "prometheus.deb"], check=True, capture_output=True)
        return directory / "prometheus.deb"


_CONTROL = (
    "Package: prometheus\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: it\n"
)

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="packages are made with Debian's dpkg-deb")


def test_one_that_is_there_is_taken_without_a_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine, lines = _Machine(monkeypatch, tmp_path, found=True), list[str]()
    assert promtool.tool(machine.fetched).provide(lines.append) == "/usr/bin/promtool"
    assert not lines


@needs_dpkg
def test_root_on_debian_gets_one_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine, lines = _Machine(monkeypatch, tmp_path), list[str]()
    assert promtool.tool(machine.fetched).provide(lines.append) == str(machine.fetched)
    assert machine.fetched.stat().st_mode & 0o111
    assert len(lines) == 1

    machine.refuses = "it is not to be asked again"
    assert promtool.tool(machine.fetched).provide(lines.append) == str(machine.fetched)
    assert len(lines) == 1


@needs_dpkg
def test_a_package_without_one_is_no_harm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine, lines = _Machine(monkeypatch, tmp_path), list[str]()
    del machine.files["usr/bin/promtool"]
    assert promtool.tool(machine.fetched).provide(lines.append) is None
    assert "holds no promtool" in lines[-1]


@pytest.mark.parametrize(("root", "reason"), [(False, "apt install prometheus"), (True, "apt-get says no")])
def test_without_one_the_tests_go_on_and_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: bool, reason: str
) -> None:
    machine, lines = _Machine(monkeypatch, tmp_path, root=root), list[str]()
    machine.refuses = "apt-get says no"
    assert promtool.tool(machine.fetched).provide(lines.append) is None
    assert "skipped" in lines[-1]
    assert reason in lines[-1]

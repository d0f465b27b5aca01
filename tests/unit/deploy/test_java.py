"""A Java for Spark: the one that is there, or Debian's."""

from pathlib import Path

import pytest

from deploy.local import debian, java
from deploy.local.errors import LocalError
from deploy.local.java import Java

_JAVA = Java(Path("/usr/lib/jvm/java-17"), 17, 'openjdk version "17.0.21"')


class _Machine:
    """Has a Java, or gets one from Debian."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, found: bool, root: bool, mends: bool = True) -> None:
        self.found = found
        self.installed: list[str] = []
        self._mends = mends
        monkeypatch.setattr(java, "find_java", self._find)
        monkeypatch.setattr(debian, "can_install", lambda: root)
        monkeypatch.setattr(debian, "install_first", self._install)

    def _find(self, _environment: object) -> Java:
        if not self.found:
            raise LocalError("No Java was found. Install one.")
        return _JAVA

    def _install(self, packages: tuple[str, ...]) -> None:
        self.installed += packages
        self.found = self._mends


def test_a_java_that_is_there_is_taken_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, lines = _Machine(monkeypatch, found=True, root=True), list[str]()

    assert java.provide(lines.append, {}) == _JAVA
    assert lines == machine.installed == []


def test_root_on_debian_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, lines = _Machine(monkeypatch, found=False, root=True), list[str]()

    assert java.provide(lines.append, {}) == _JAVA
    assert machine.installed[0] == "openjdk-17-jre-headless"
    assert len(lines) == 1


def test_others_are_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _Machine(monkeypatch, found=False, root=False)
    with pytest.raises(LocalError, match=r"No Java was found\. Install one\."):
        java.provide(print, {})

    assert machine.installed == []


def test_a_package_without_the_program_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    _Machine(monkeypatch, found=False, root=True, mends=False)
    with pytest.raises(LocalError, match="No Java was found"):
        java.provide(print, {})


def test_as_a_program_it_says_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _Machine(monkeypatch, found=False, root=False)

    assert java.main() == 1
    assert capsys.readouterr().err == "setup: No Java was found. Install one.\n"


def program(home: Path, version: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    path.chmod(0o755)
    return home


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    first, second = program(tmp_path / "first", "21.0.1"), program(tmp_path / "second", "17.0.2")
    found = java.find_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")}, tmp_path / "none")
    assert (found.home, found.version) == (first, 21)


@pytest.mark.parametrize("old", ["1.8.0_392", "11.0.2", "16"])
def test_an_old_one_is_passed_over_for_a_new_one(tmp_path: Path, old: str) -> None:
    home = program(tmp_path / "old", old)
    program(tmp_path / "jvm" / "new", "17")
    assert java.find_java({"JAVA_HOME": str(home)}, tmp_path / "jvm").version == 17


def test_only_an_old_one(tmp_path: Path) -> None:
    home = program(tmp_path / "old", "11.0.2")
    with pytest.raises(LocalError, match=r"Java 11 in .*old.*Java 17 or later.*openjdk-17-jre-headless"):
        java.find_java({"JAVA_HOME": str(home)}, tmp_path / "none")


def test_none(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"No Java was found.*openjdk-17-jre-headless"):
        java.find_java({"PATH": str(tmp_path)}, tmp_path / "none")


def test_a_program_that_is_no_java_is_passed_over(tmp_path: Path) -> None:
    home = tmp_path / "odd"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho hello\n")
    (home / "bin" / "java").chmod(0o755)
    with pytest.raises(LocalError, match="No Java was found"):
        java.find_java({"JAVA_HOME": str(home)}, tmp_path / "none")

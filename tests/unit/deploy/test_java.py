"""A Java for Spark: the one that is there, or Debian's."""

from pathlib import Path

import pytest

from deploy.local import debian, java
from deploy.local.errors import LocalError
from gateway.errors import PipelineError
from gateway.pipeline.java import Java, find_java

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
            raise PipelineError("no Java was found. Install one.")
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


def test_the_advice_that_people_get_names_a_package(tmp_path: Path) -> None:
    """What the pipeline itself says when there is nothing: the same that `make` says."""
    with pytest.raises(PipelineError, match="openjdk-17-jre-headless"):
        find_java({"PATH": str(tmp_path)}, tmp_path)

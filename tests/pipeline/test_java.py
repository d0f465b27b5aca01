"""Which Java is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import PipelineError
from gateway.pipeline.java import find_java


def java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    first, second = java(tmp_path / "first", "21.0.1"), java(tmp_path / "second", "17.0.2")
    found = find_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")}, tmp_path / "none")
    assert (found.home, found.version) == (first, 21)


@pytest.mark.parametrize("old", ["1.8.0_392", "11.0.2", "16"])
def test_an_old_one_is_passed_over_for_a_new_one(tmp_path: Path, old: str) -> None:
    home = java(tmp_path / "old", old)
    java(tmp_path / "jvm" / "new", "17")
    assert find_java({"JAVA_HOME": str(home)}, tmp_path / "jvm").version == 17


def test_only_an_old_one(tmp_path: Path) -> None:
    home = java(tmp_path / "old", "11.0.2")
    with pytest.raises(PipelineError, match=r"Java 11 in .*old.*Java 17 or later.*openjdk-17-jre-headless"):
        find_java({"JAVA_HOME": str(home)}, tmp_path / "none")


def test_none(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"no Java was found.*openjdk-17-jre-headless"):
        find_java({"PATH": str(tmp_path)}, tmp_path / "none")


def test_a_program_that_is_no_java_is_passed_over(tmp_path: Path) -> None:
    home = tmp_path / "odd"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho hello\n")
    (home / "bin" / "java").chmod(0o755)
    with pytest.raises(PipelineError, match="no Java was found"):
        find_java({"JAVA_HOME": str(home)}, tmp_path / "none")

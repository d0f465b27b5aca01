"""The runner of mutants: how a survivor is known again, and that no reason is left for a line that is gone."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.mutants import __main__ as mutants

ROOT = Path(__file__).parents[2]
DIFF = """\
--- gateway/session/confirms.py
+++ gateway/session/confirms.py
@@ -1,2 +1,2 @@
 def f():
-    return 1
+    return 2
"""
ARGUED = '[[mutant]]\nfile = "gateway/session/confirms.py"\nwas = "return 1"\nbecomes = "return 2"\nbecause = "so"\n'


def test_a_change_is_known_again_wherever_its_lines_stand() -> None:
    change = mutants.change_of(DIFF.replace("    return", "  return"))
    assert change == mutants.change_of(DIFF)
    assert mutants.argued(ARGUED) == {change: "so"}


@pytest.mark.parametrize("status", ["survived", "no tests"])
@pytest.mark.parametrize(("reasons", "code"), [(ARGUED, 0), ("", 1)])
def test_a_survivor_needs_a_reason(
    reasons: str,
    code: int,
    status: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "argued.toml").write_text(reasons)
    monkeypatch.setattr(mutants, "ARGUED", tmp_path / "argued.toml")
    monkeypatch.setattr(mutants, "mutmut", lambda *_: DIFF)
    assert mutants.report({"a": "killed", "b": status}) == code
    said = capsys.readouterr().out
    assert "of 2 mutants 1 survived" in said
    assert ("+ return 2" in said) is bool(code)


def test_that_no_mutant_was_tried_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.report({}) == 1
    assert "none was tried" in capsys.readouterr().err


def test_every_file_that_is_mutated_and_every_test_is_there() -> None:
    """What has another name since would be left out in silence."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mutmut"]
    for pattern in settings["only_mutate"]:
        assert list(ROOT.glob(pattern)), pattern
    for test in settings["pytest_add_cli_args_test_selection"]:
        assert (ROOT / test).exists(), test


def test_every_reason_is_about_lines_that_are_there() -> None:
    for change in mutants.argued(mutants.ARGUED.read_text("utf-8")):
        lines = [line.strip() for line in (ROOT / change.file).read_text("utf-8").splitlines()]
        assert all(line in lines for line in change.was), str(change)

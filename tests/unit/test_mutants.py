"""The runner of mutants: how a survivor is known again, and that no reason is left for a line that is gone."""

from __future__ import annotations

import ast
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
NAME = "gateway.session.confirms.x_f__mutmut_3"
ARGUED = """\
[[mutant]]
file = "gateway/session/confirms.py"
function = "f"
was = "return 1"
becomes = "return 2"
because = "so"
"""


def test_a_change_is_known_again_wherever_its_lines_stand() -> None:
    change = mutants.change_of(NAME, DIFF.replace("    return", "  return"))
    assert change == mutants.change_of(NAME, DIFF)
    assert mutants.argued(ARGUED) == {change: "so"}


@pytest.mark.parametrize("function", ["x_g", "xǁAǁf", "x__f"])
def test_a_reason_is_for_one_function(function: str) -> None:
    change = mutants.change_of(NAME.replace("x_f", function), DIFF)
    assert change not in mutants.argued(ARGUED)


@pytest.mark.parametrize(
    ("name", "function"), [("x_f", "f"), ("x__f", "_f"), ("xǁAǁ__init__", "A.__init__"), ("xǁ_Aǁ_f", "_A._f")]
)
def test_the_function_is_part_of_a_mutants_name(name: str, function: str) -> None:
    assert mutants.function_of(f"gateway.session.confirms.{name}__mutmut_12") == function


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
    assert mutants.report({"a": "killed", NAME: status}, 2) == code
    said = capsys.readouterr().out
    assert "of 2 mutants 1 survived" in said
    assert ("+ return 2" in said) is bool(code)


@pytest.mark.parametrize("count", [0, 2])
def test_that_few_mutants_were_tried_is_a_failure(capsys: pytest.CaptureFixture[str], count: int) -> None:
    found = dict.fromkeys("ab"[:count], "killed")
    assert mutants.report(found, 3) == 1
    assert f"only {count} were tried, and 3 are the least" in capsys.readouterr().err
    assert mutants.report(found, count) == 0


def test_every_file_that_is_mutated_and_every_test_is_there() -> None:
    """What has another name since would be left out in silence."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mutmut"]
    for pattern in settings["only_mutate"]:
        assert list(ROOT.glob(pattern)), pattern
    for test in settings["pytest_add_cli_args_test_selection"]:
        assert (ROOT / test).exists(), test


def test_every_reason_is_about_lines_that_are_there() -> None:
    for change in mutants.argued(mutants.ARGUED.read_text("utf-8")):
        text = (ROOT / change.file).read_text("utf-8")
        lines = [line.strip() for line in _source_of(ast.parse(text), change.function, text).splitlines()]
        assert all(line in lines for line in change.was), str(change)


def _source_of(module: ast.Module, function: str, text: str) -> str:
    node: ast.AST = module
    for name in function.split("."):
        node = next(each for each in ast.iter_child_nodes(node) if getattr(each, "name", None) == name)
    return ast.get_source_segment(text, node) or ""

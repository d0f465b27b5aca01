"""One word for one thing: docs/glossary.md is the list, and the code keeps to it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")

_FACES = ("__init__", "__main__")


@cache
def _modules() -> dict[Path, ast.Module]:
    """All modules of the gateway. Every worker imports this file, and only one of them needs to read them."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / "gateway").rglob("*.py"))}


def _classes() -> Iterator[str]:
    for tree in _modules().values():
        yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _names() -> Iterator[str]:
    """Every name that the code gives: modules, classes, functions, arguments, variables and attributes."""
    for path, tree in _modules().items():
        yield path.stem
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name
            elif isinstance(node, ast.arg):
                yield node.arg
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr


def _words(name: str) -> set[str]:
    """`maxFrameSize` and `MAX_FRAME_SIZE` are max, frame and size."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_no_class_name_stands_for_two_things() -> None:
    assert not [name for name, count in Counter(_classes()).items() if count > 1]


def test_no_module_name_stands_three_times() -> None:
    stems = Counter(path.stem for path in _modules() if path.stem not in _FACES)
    assert not [name for name, count in stems.items() if count > 2]


def test_every_place_that_the_architecture_names_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    files = set(re.findall(r"`(?:gateway/)?(\w+(?:/\w+)*\.py)`", page))
    methods = set(re.findall(r"`([A-Z]\w+\.\w+)`", page))
    there = {
        f"{node.name}.{method.name}"
        for tree in _modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert "session/session.py" in files
    assert not sorted(name for name in files if not (ROOT / "gateway" / name).is_file())
    assert "Publisher.send" in methods
    assert not sorted(methods - there)
    own = set(re.findall(r"`(_[A-Za-z]\w*|[A-Z][a-z]+[A-Z]\w*)`", page))
    assert {"_safe", "SessionContext"} <= own
    assert not sorted(own - set(_names()))


def test_every_class_in_the_glossary_exists() -> None:
    named = set(re.findall(r"`([A-Z]\w*[a-z]\w*)`", GLOSSARY))
    assert "Session" in named
    assert not sorted(named - set(_classes()))


def test_no_name_uses_a_word_that_the_glossary_rules_out() -> None:
    _, _, ruled_out = GLOSSARY.partition("These words say nothing")
    words = set(re.findall(r"\*(\w+)\*", ruled_out))
    assert "octets" in words
    assert not sorted({name for name in _names() if _words(name) & words})

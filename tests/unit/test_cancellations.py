"""A cancelled task ends: nothing in the gateway catches a CancelledError and goes on.

The AMQP library raises one too, where a call has lost its answer. So a handler may first ask `is_cancelled`, or
`cause_of`, which does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

GATEWAY = Path(__file__).parents[2] / "gateway"
CATCHES = ("BaseException", "CancelledError")
# Notes the cancellation, waits for the end of what must not be cut short, and raises then; or is the end of its task.
LATER = {"parity/amqp_broker.py:finish", "pipeline/query_output.py:work", "server/listen/listener.py:_make_transport"}


def names(node: ast.expr | None) -> list[str]:
    """The exceptions that a handler names; ``BaseException`` if it names none."""
    if node is None:
        return ["BaseException"]
    if isinstance(node, ast.Tuple):
        return [name for each in node.elts for name in names(each)]
    return [node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")]


def is_call(node: ast.expr | None, name: str) -> bool:
    return isinstance(node, ast.Call) and names(node.func) == [name]


def raises_it(handler: ast.ExceptHandler) -> bool:
    """Whether a cancelled task stays cancelled: nothing leaves the handler before it has raised what it caught."""
    for statement in handler.body:
        if isinstance(statement, ast.Raise):
            return statement.exc is None or is_call(statement.exc, "cause_of")
        if isinstance(statement, ast.If) and is_call(statement.test, "is_cancelled"):
            return isinstance(statement.body[-1], ast.Raise) and statement.body[-1].exc is None
        if any(isinstance(each, ast.Return | ast.Continue | ast.Break) for each in ast.walk(statement)):
            return False
    return False


def swallowed(source: str) -> Iterator[int]:
    """The lines at which a CancelledError can be lost."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and set(names(node.type)) & set(CATCHES) and not raises_it(node):
            yield node.lineno
        if is_call_of_suppress(node):
            yield node.lineno  # type: ignore[attr-defined]


def is_call_of_suppress(node: ast.AST) -> bool:
    """Whether a ``contextlib.suppress`` leaves out a cancellation."""
    return (
        isinstance(node, ast.Call)
        and is_call(node, "suppress")
        and bool({name for each in node.args for name in names(each)} & set(CATCHES))
    )


def function_at(source: str, line: int) -> str:
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(functions, key=lambda node: node.lineno).name if functions else ""


def test_no_cancellation_is_swallowed() -> None:
    found = set()
    for file in sorted(GATEWAY.rglob("*.py")):
        source = file.read_text("utf-8")
        found |= {f"{file.relative_to(GATEWAY)}:{function_at(source, line)}" for line in swallowed(source)}
    assert found == LATER


@pytest.mark.parametrize(
    ("handler", "is_lost"),
    [
        ("except asyncio.CancelledError:\n  pass", True),
        ("except BaseException:\n  raise", False),
        ("except:\n  log()", True),
        ("except:\n  log()\n  raise", False),
        ("except BaseException as error:\n  raise ValueError from error", True),
        ("except (OSError, asyncio.CancelledError) as error:\n  raise cause_of(error) from error", False),
        ("except CancelledError:\n  if is_cancelled():\n    raise", False),
        ("except CancelledError:\n  if is_ready():\n    return\n  raise", True),
        ("except CancelledError:\n  if is_ready():\n    raise", True),
        ("except Exception:\n  pass", False),
        ("except OSError:\n  with suppress(asyncio.CancelledError):\n    go()", True),
        ("except OSError:\n  with contextlib.suppress(OSError):\n    go()", False),
    ],
)
def test_the_rule_tells_them_apart(handler: str, is_lost: bool) -> None:
    assert bool(list(swallowed(f"try:\n  go()\n{handler}"))) is is_lost

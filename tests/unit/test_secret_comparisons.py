"""Secrets are compared by hmac.compare_digest, whose time does not tell how much of a guess is right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

GATEWAY = Path(__file__).parents[2] / "gateway"
# What runs while clients or operators may guess.
PACKAGES = ("server", "session", "admin", "config")
SECRET = re.compile(r"passcode|secret|token|digest|credential|authorization|hash", re.IGNORECASE)
EQUALITY = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)


def comparisons() -> Iterator[tuple[str, ast.Compare]]:
    for package in PACKAGES:
        for file in sorted((GATEWAY / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Compare) and any(isinstance(each, EQUALITY) for each in node.ops):
                    yield f"{file.relative_to(GATEWAY)}:{node.lineno}", node


def is_secret(side: ast.expr) -> bool:
    """Whether a value has the name of a secret. A text in quotes, or a constant, is known to everybody."""
    name = {ast.Attribute: "attr", ast.Name: "id"}.get(type(side))
    return name is not None and not getattr(side, name).isupper() and SECRET.search(getattr(side, name)) is not None


def test_no_secret_is_compared_by_equality() -> None:
    found = [place for place, node in comparisons() if any(map(is_secret, (node.left, *node.comparators)))]
    assert found == []


def test_logins_are_compared_in_constant_time_where_the_gateway_decides() -> None:
    for file in ("admin/access.py", "server/broker/link_pool.py"):
        assert "hmac.compare_digest(" in (GATEWAY / file).read_text("utf-8")

"""Codes of errors: every ERROR that the gateway sends has one, and none repeats what somebody wrote."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gateway
from gateway.errors import StompError
from gateway.journal.schema import ERROR_CODES, error_code
from gateway.session import error_frames

_SOURCES = sorted(Path(gateway.__path__[0]).rglob("*.py"))


def _messages() -> set[str]:
    """The message of every StompError(...), closing(...) and partial(StompError, ...) in the source, if written out."""
    found: set[str] = set()
    for path in _SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first, *others = node.args
            if name == "partial" and isinstance(first, ast.Name) and first.id == "StompError":
                name, first = "StompError", others[0]
            if name in ("StompError", "closing") and isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.add(first.value)
    return found | set(error_frames._AMQP_NAMES.values()) | {"broker_error"}


def test_every_error_has_a_code() -> None:
    messages = _messages()
    assert len(messages) > 40
    unknown = {message for message in messages if error_code(StompError(message, "")) == "other"}
    assert not unknown


def test_every_code_is_some_errors() -> None:
    codes = {error_code(StompError(message, "")) for message in _messages()}
    # In the broker's words, but not the broker's.
    codes.add(error_code(error_frames.destination_denied(b"SEND", b"/queue/q", b"guest")))
    assert ERROR_CODES - codes == set()


@pytest.mark.parametrize("message", ["secret passcode", "", "Bad CONNECT of alice"])
def test_any_other_text_is_other(message: str) -> None:
    assert error_code(StompError(message, "")) == "other"


def test_codes_are_short_words() -> None:
    assert all(code == code.lower() and " " not in code and len(code) < 40 for code in ERROR_CODES)

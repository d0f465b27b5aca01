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
    """The message of every StompError(...), ErrorText(...) and closing(...) in the source, if written out."""
    found: set[str] = set()
    for path in _SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if (
                name in ("StompError", "ErrorText", "closing")
                and isinstance(first, ast.Constant)
                and isinstance(first.value, str)
            ):
                found.add(first.value)
    return found | set(error_frames._AMQP_NAMES.values()) | {"broker_error"}


def test_every_error_has_a_code() -> None:
    messages = _messages()
    assert len(messages) > 40
    unknown = {message for message in messages if error_code(StompError(message, "")) == "other"}
    assert not unknown


def test_every_code_is_some_errors() -> None:
    denied = error_frames.destination_denied(b"SEND", b"/queue/x", b"guest")
    found = {error_code(StompError(message, "")) for message in _messages()}
    assert error_code(denied) not in found, "a refusal of our own counts as one of the broker's"
    assert ERROR_CODES - found == {error_code(denied)}


@pytest.mark.parametrize("message", ["secret passcode", "", "Bad CONNECT of alice"])
def test_any_other_text_is_other(message: str) -> None:
    assert error_code(StompError(message, "")) == "other"


def test_codes_are_short_words() -> None:
    assert all(code == code.lower() and " " not in code and len(code) < 40 for code in ERROR_CODES)

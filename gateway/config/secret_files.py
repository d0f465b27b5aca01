"""Secrets that live in files of their own: `passcode_file` instead of `passcode`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.config.document import Document
from gateway.config.findings import Finding, Trail


def read_secret_files(document: Document, directory: Path) -> None:
    """Put what each `passcode_file` holds where the passcode belongs, in place.

    Args:
        document: its findings grow by what is wrong.
        directory: where relative file names start.
    """
    for trail, user in _users(document.tree):
        if user.get("passcode") is None:
            user.pop("passcode", None)
        file = user.get("passcode_file")
        if file is None:
            continue
        if "passcode" in user:
            both = "passcode and passcode_file are both given, and only one can count."
            document.findings.append(Finding((*trail, "passcode_file"), both, "Delete one of them."))
            continue
        user["passcode"] = _passcode(document, (*trail, "passcode_file"), file, directory)
        document.spoiled.add((*trail, "passcode"))


def _users(tree: object) -> Iterator[tuple[Trail, dict[str, object]]]:
    """Every user with a passcode in a tree of any shape, right or wrong."""
    top = _mapping(tree)
    settings: list[tuple[Trail, object]] = [(("defaults",), top.get("defaults"))]
    settings += [(("virtual_hosts", name), entry) for name, entry in _mapping(top.get("virtual_hosts")).items()]
    for trail, entry in settings:
        certificates = _mapping(_mapping(entry).get("certificate_users"))
        places: list[tuple[Trail, object]] = [
            ((*trail, "default_user"), _mapping(entry).get("default_user")),
            ((*trail, "certificate_users", "everyone"), certificates.get("everyone")),
        ]
        for name, user in _mapping(certificates.get("users")).items():
            places.append(((*trail, "certificate_users", "users", name), user))
        for place, user in places:
            if isinstance(user, dict):
                yield place, user
    operators = _mapping(top.get("admin")).get("users")
    for number, user in enumerate(operators if isinstance(operators, list) else ()):
        if isinstance(user, dict):
            yield ("admin", "users", number), user


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _passcode(document: Document, trail: Trail, file: object, directory: Path) -> str:
    """The file's content; text that stands for it, and a finding, when it cannot be had."""
    sentence = "The name of a file is needed here."
    if trail in document.spoiled:
        return "-"
    if isinstance(file, str) and file:
        try:
            content = (directory / file).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except OSError as error:
            sentence = f"This file cannot be read: {error.strerror or error}."
        except UnicodeDecodeError:
            sentence = "This file is not UTF-8 text."
        else:
            if content:
                return content
            sentence = "This file is empty."
    document.findings.append(Finding(trail, sentence))
    document.spoiled.add(trail)
    return "-"

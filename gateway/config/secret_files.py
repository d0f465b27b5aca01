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
    for trail, user in _default_users(document.tree):
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


def _default_users(tree: object) -> Iterator[tuple[Trail, dict[str, object]]]:
    """Every `default_user` in a tree of any shape, right or wrong."""
    top = tree if isinstance(tree, dict) else {}
    settings: list[tuple[Trail, object]] = [(("defaults",), top.get("defaults"))]
    virtual_hosts = top.get("virtual_hosts")
    if isinstance(virtual_hosts, dict):
        settings += [(("virtual_hosts", name), entry) for name, entry in virtual_hosts.items()]
    for trail, entry in settings:
        user = entry.get("default_user") if isinstance(entry, dict) else None
        if isinstance(user, dict):
            yield (*trail, "default_user"), user


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

"""From a file to a `GatewayConfig`, or to every mistake in it at once."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.broker_user import AdminUser, User
from gateway.config.config_files import ConfigFiles, secret_in
from gateway.config.config_warnings import warnings_of
from gateway.config.consistency import contradictions, merged_contradictions
from gateway.config.document import Document, YamlSyntaxError, read_document
from gateway.config.mistakes import (
    Finding,
    Trail,
    findings_of,
    mapping,
    meant_here,
    meant_key,
    model_at,
    path_text,
    value_at,
)
from gateway.config.model import GatewayConfig
from gateway.errors import ConfigError, Mistake

_LEFT_OUT: Final = object()


def load(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> GatewayConfig:
    """Read a configuration file (UTF-8 YAML). File names in it are relative to its directory.

    The environment has the variables for `${NAME}`; unless given, it is the process's own.

    Raises:
        ConfigError: the file cannot be read or used; it carries every mistake.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        sentence = f"This file cannot be read: {error.strerror or error}."
        raise ConfigError([Mistake("", sentence)], str(file)) from None
    except UnicodeDecodeError as error:
        raise ConfigError([Mistake("", f"Byte {error.start} of this file is not UTF-8.")], str(file)) from None
    return parse(text, directory=file.parent, name=str(file), environment=environment)


def parse(
    text: str,
    *,
    directory: Path | None = None,
    name: str = "configuration",
    environment: Mapping[str, str] | None = None,
) -> GatewayConfig:
    """Read a configuration from a YAML text. An empty one is valid: everything has a default.

    Relative file names start in the directory, by default the current one. Errors call the text by its name.

    Raises:
        ConfigError: with every mistake.
    """
    try:
        document = read_document(text, os.environ if environment is None else environment)
    except YamlSyntaxError as error:
        raise ConfigError([error.mistake], name) from None
    files = ConfigFiles(Path() if directory is None else directory)
    _read_passcode_files(document, files)
    usable = UsablePart(document.tree, files)
    found = [*document.findings, *_readable(usable.findings, document.spoiled)]
    found += _readable(contradictions(document.tree), document.spoiled)
    found += _readable(merged_contradictions(usable.config, usable.in_file), document.spoiled | usable.unusable)
    if found:
        raise ConfigError(_mistakes(document, found), name)
    return usable.config.with_warnings(_mistakes(document, warnings_of(usable.config)))


def _read_passcode_files(document: Document, files: ConfigFiles) -> None:
    """Put the content of each `passcode_file` in the place of the passcode, and note mistakes in the document."""
    for trail, user in _users(document.tree):
        if user.get("passcode") is None and (*trail, "passcode") not in document.spoiled:
            user.pop("passcode", None)
        name = user.get("passcode_file")
        if name is None:
            continue
        place = (*trail, "passcode_file")
        if "passcode" in user:
            both = "passcode and passcode_file are both given, and only one can count."
            document.findings.append(Finding(place, both, "Delete one of them."))
            continue
        user["passcode"] = "-"  # until the file is read: validation needs a text
        if place not in document.spoiled:
            try:
                user["passcode"] = _passcode(name, files)
            except ValueError as error:
                document.findings.append(Finding(place, str(error)))
                document.spoiled.add(place)
        document.spoiled.add((*trail, "passcode"))


def _users(tree: object, trail: Trail = ()) -> Iterator[tuple[Trail, dict[str, object]]]:
    """Every mapping of the tree in a place of a `User` or an `AdminUser`."""
    if isinstance(tree, dict) and model_at(trail) in (User, AdminUser):
        yield trail, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _users(value, (*trail, key))
    elif isinstance(tree, list):
        for position, value in enumerate(tree):
            yield from _users(value, (*trail, position))


def _passcode(name: object, files: ConfigFiles) -> str:
    """The passcode in a file. Raises ValueError with a sentence for the user."""
    if not isinstance(name, str) or not name:
        raise ValueError("The name of a file is needed here.")
    if not (passcode := secret_in(files.path(name))):
        raise ValueError("This file is empty.")
    return passcode


def _readable(found: Iterable[Finding], unusable: Collection[Trail]) -> Iterator[Finding]:
    """The findings that do not follow from a value that cannot be used."""
    for finding in found:
        if not any(_is_within(finding.trail, place) for place in unusable) and not any(
            _is_within(other, place) or _is_within(place, other) for other in finding.about for place in unusable
        ):
            yield finding


def _is_within(trail: Trail, place: Trail) -> bool:
    return trail[: len(place)] == place


def _mistakes(document: Document, found: Iterable[Finding]) -> list[Mistake]:
    """All findings, in the order of the file."""
    mistakes = [
        Mistake(path_text(finding.trail), finding.sentence, finding.suggestion, document.line_of(finding.trail))
        for finding in dict.fromkeys(found)
    ]
    return sorted(mistakes, key=lambda mistake: mistake.line or 0)


class UsablePart:
    """A file's tree, validated without the values that validation refuses: `config` has defaults in their place."""

    def __init__(self, tree: object, files: ConfigFiles) -> None:
        self.findings: list[Finding] = []
        """What validation has found."""
        self.unusable: set[Trail] = set()
        """Places in the file whose values `config` does not have."""
        # Entries that are left out of lists keep their places, so that all positions are those of the file.
        self._tree = copy.deepcopy(tree)
        # Mappings and lists under a misspelt key stand under the one that was meant, so that what is in them is
        # validated, too: the key's place here, and as it is spelt; and those that the next round validates first.
        self._spelt: dict[Trail, str] = {}
        self._new: set[Trail] = set()
        self.config = self._validated(files)

    def _validated(self, files: ConfigFiles) -> GatewayConfig:
        while True:
            tree = _without_gaps(self._tree)
            try:
                return GatewayConfig.model_validate(tree, context=files)
            except ValidationError as error:
                found = findings_of(error, tree)
                # Later mistakes follow from what is left out, but for those under a key that was misspelt.
                self.findings += self._under_new_keys(found) if self.findings else found
                self._new.clear()
                for place in [self._wrong_place(tree, detail["type"], detail["loc"]) for detail in error.errors()]:
                    self._leave_out(place)

    def _wrong_place(self, tree: object, kind: str, location: Trail) -> Trail:
        trail = tuple(step for step in location if step != "[key]")
        model = model_at(trail[:-1])
        if kind == "extra_forbidden" and model is not None:
            around, key = self.in_file(trail[:-1]), str(trail[-1])
            meant = meant_key(key, model.model_fields)
            self.unusable.add((*around, meant or key))
            self._rename(around, key, meant_here(key, model.model_fields))
        while trail and not _has(value_at(tree, trail[:-1]), trail[-1]):
            trail = trail[:-1]
        return self.in_file(trail)

    def _rename(self, around: Trail, key: str, meant: str | None) -> None:
        """Note that the mapping or list under a key is to be validated as that of another, which is not there."""
        siblings = mapping(value_at(self._tree, around))
        if meant is not None and meant not in siblings and isinstance(siblings[key], (dict, list)):
            siblings[meant] = siblings[key]
            self._spelt[*around, meant] = key
            self._new.add((*around, meant))

    def _under_new_keys(self, found: Iterable[Finding]) -> Iterator[Finding]:
        """The findings under keys that were renamed for this round, at their places in the file."""
        for finding in found:
            place = self.in_file(finding.trail)
            around = [place[: length + 1] for length in range(len(place))]
            if any(each in self._new for each in around[:-1]):
                yield replace(finding, trail=tuple(self._spelt.get(each, each[-1]) for each in around))

    def in_file(self, trail: Trail) -> Trail:
        """Where a place of `config` is in the file."""
        place: list[str | int] = []
        around = self._tree
        for step in trail:
            place.append(_position(around, step) if isinstance(around, list) else step)
            around = value_at(around, (place[-1],))
        return tuple(place)

    def _leave_out(self, place: Trail) -> None:
        self.unusable.add(place)
        around: Any = value_at(self._tree, place[:-1])
        if not place:
            self._tree = None
        elif isinstance(around, list):
            around[int(place[-1])] = _LEFT_OUT
        else:
            mapping(around).pop(str(place[-1]), None)


def _position(entries: list[object], step: str | int) -> int:
    """The position in the file of an entry that is not left out."""
    return [position for position, entry in enumerate(entries) if entry is not _LEFT_OUT][int(step)]


def _has(around: object, step: str | int) -> bool:
    if isinstance(around, list):
        return isinstance(step, int) and step < len(around)
    return step in mapping(around)


def _without_gaps(tree: object) -> object:
    if isinstance(tree, dict):
        return {key: _without_gaps(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_without_gaps(entry) for entry in tree if entry is not _LEFT_OUT]
    return tree

"""What can be used of a file with mistakes, so that all checks are made although some values are wrong."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.config_files import ConfigFiles
from gateway.config.mistakes import Finding, Trail, findings_of, mapping, meant_here, meant_key, model_at, value_at
from gateway.config.model import GatewayConfig

_LEFT_OUT: Final = object()


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

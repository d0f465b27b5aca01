"""What can be used of a file with mistakes, so that all checks are made although some values are wrong."""

from __future__ import annotations

import copy
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.config_files import ConfigFiles
from gateway.config.mistakes import Finding, Trail, findings_of, mapping, meant_key, model_at, value_at
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
        self.config = self._validated(files)

    def _validated(self, files: ConfigFiles) -> GatewayConfig:
        while True:
            tree = _without_gaps(self._tree)
            try:
                return GatewayConfig.model_validate(tree, context=files)
            except ValidationError as error:
                # What the second time is wrong only follows from what is left out.
                self.findings = self.findings or list(findings_of(error, tree))
                for place in [self._wrong_place(tree, detail["type"], detail["loc"]) for detail in error.errors()]:
                    self._leave_out(place)

    def _wrong_place(self, tree: object, kind: str, location: Trail) -> Trail:
        trail = tuple(step for step in location if step != "[key]")
        model = model_at(trail[:-1])
        if kind == "extra_forbidden" and model is not None:
            meant = meant_key(str(trail[-1]), model.model_fields)
            self.unusable.add((*self.in_file(trail[:-1]), meant or trail[-1]))
        while trail and not _has(value_at(tree, trail[:-1]), trail[-1]):
            trail = trail[:-1]
        return self.in_file(trail)

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

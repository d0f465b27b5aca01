"""How much of the code under test some inputs reach, in lines: the same measure whichever engine found them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import gateway
from tests.fuzz.findings import broken
from tests.fuzz.rooms import ROOMS

_ROOT: Final = Path(gateway.__file__).parent


def reached(target: str, inputs: Iterable[bytes]) -> dict[str, tuple[int, int]]:
    """Run inputs and count lines.

    Args:
        target: which target runs them.
        inputs: any.

    Returns:
        By room: lines inside functions that were reached, and all there are.
    """
    seen: dict[str, set[int]] = {}

    def local(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        seen[frame.f_code.co_filename].add(frame.f_lineno)
        return local

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if not name.startswith(prefixes):
            return None
        seen.setdefault(name, set())
        return local(frame, event, None)

    rooms = ROOMS[target]
    prefixes = tuple(f"{_ROOT / room}/" for room in rooms)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for data in inputs:
            broken(target, data)
    finally:
        sys.settrace(before)
    return {room: _counted(_ROOT / room, seen) for room in rooms}


def _counted(room: Path, seen: dict[str, set[int]]) -> tuple[int, int]:
    there = hit = 0
    for path in room.glob("*.py"):
        lines = _lines_of_functions(compile(path.read_bytes(), str(path), "exec"), top=True)
        there += len(lines)
        hit += len(lines & seen.get(str(path), set()))
    return hit, there


def _lines_of_functions(code: CodeType, *, top: bool = False) -> set[int]:
    """Lines with code in functions; what runs at import is reached by everybody."""
    lines = set() if top else {line for _, _, line in code.co_lines() if line is not None}
    is_function = bool(code.co_flags & 0x2)  # a class body has no fast locals
    found = lines if is_function else set()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _lines_of_functions(constant)
    return found

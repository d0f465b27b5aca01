"""The process in which atheris runs. Nothing of the gateway may be imported before it is instrumented."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Final

import atheris

from tests.fuzz.rooms import ROOMS

# Of the changed inputs, as many of a hundred are changed by what they mean, the others by libFuzzer itself.
_MEANT: Final = 60


def main(target: str, seed: int, corpus: str, options: list[str]) -> None:
    """Fuzz until libFuzzer ends the process.

    Args:
        target: name of the target.
        seed: of the mutator.
        corpus: directory of inputs, where new ones are kept.
        options: of libFuzzer.
    """
    # Instrumented code is several times slower, so nothing else is.
    rooms = [f"gateway.{room.replace('/', '.')}" for room in ROOMS[target]]
    with atheris.instrument_imports(include=rooms, exclude=["gateway.parity"]):
        # Imported here, so that they are instrumented.
        from tests.fuzz.mutator import mutator_of  # noqa: PLC0415
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415

    pool = [path.read_bytes() for path in sorted(Path(corpus).iterdir())]
    chance = random.Random(seed)  # noqa: S311 - to be repeated, not to be kept secret
    mutator = mutator_of(target, chance, pool or [b"\0"])

    def change(data: bytes, longest: int, _: int) -> bytes:
        if chance.randrange(100) < _MEANT:
            return mutator.change(data)[:longest]
        changed: bytes = atheris.Mutate(data, longest)
        return changed

    atheris.Setup([sys.argv[0], corpus, *options], TARGETS[target], custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])

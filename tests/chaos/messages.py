"""The messages: their content follows from seed, producer and number, so that a receiver can check it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from tests.chaos.recording import EARLIER, STRANGER, Copy
from tests.chaos.schedule import ProducerPlan
from tests.support.stomp_client import Frame

_KEY: Final = "chaos"
_TEXTS: Final = ("plain", "", "a:b", "two\nlines", "back\\slash", "\u00fc\u00df\u4e2d", "x" * 300, "tab\tand space ")


class Content(NamedTuple):
    """What a message consists of, besides what the connection adds."""

    headers: Mapping[str, str]
    body: bytes


@lru_cache(maxsize=20_000)
def content(seed: int, plan: ProducerPlan, number: int) -> Content:
    """The content of a producer's message."""
    chance = random.Random(f"{seed}/{plan.name}/{number}")  # noqa: S311 - to be repeated
    headers = {f"h-{each}": chance.choice(_TEXTS) for each in range(chance.choice((0, 0, 1, 4)))}
    if chance.random() < 0.3:
        headers |= {"content-type": "text/plain", "priority": str(chance.randint(0, 9)), "correlation-id": str(number)}
    tag = b"%d/%s/%d;" % (seed, plan.name.encode(), number)
    size = chance.randint(*plan.sizes)
    return Content(headers, (tag * (size // len(tag) + 1))[:size])


def labelled(seed: int, copy: Copy, found: Content) -> dict[str, str]:
    """The headers of a SEND, with the label by which a receiver recognises the copy."""
    return {**found.headers, _KEY: f"{seed}/{copy.producer}/{copy.number}/{copy.connection}"}


def label_of(headers: Mapping[str, str]) -> tuple[int, Copy] | None:
    """Seed and copy of a message; None if it is not one of ours."""
    parts = headers.get(_KEY, "").split("/")
    if len(parts) != 4:
        return None
    return int(parts[0]), Copy(parts[1], int(parts[2]), int(parts[3]))


def copy_of(seed: int, headers: Mapping[str, str]) -> Copy:
    """Which message of a run it is, if it is one."""
    label = label_of(headers)
    if label is None:
        return STRANGER
    return label[1] if label[0] == seed else EARLIER


def is_whole(frame: Frame, expected: Content) -> bool:
    """Whether a MESSAGE has the headers and the body that were sent."""
    return frame.body == expected.body and all(
        frame.headers.get(name) == each for name, each in expected.headers.items()
    )

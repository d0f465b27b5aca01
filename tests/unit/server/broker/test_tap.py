"""When the socket of a link is read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from gateway.server.broker.tap import Tap

# As much as uvloop reads at once.
_MUCH = bytes(256_000)


class _Transport:
    """Notes whether it is read."""

    def __init__(self) -> None:
        self.is_read = True

    def get_extra_info(self, name: str) -> None:
        del name

    def is_reading(self) -> bool:
        return self.is_read

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def _tapped() -> tuple[Tap, _Transport]:
    splitter = SimpleNamespace(receive=lambda data: b"", touched=())
    callbacks = SimpleNamespace(splitter=splitter, channels=0, on_read=lambda: None, batch_done=lambda: None)
    tap, transport = Tap(asyncio.StreamReader(), cast(Any, callbacks), asyncio.get_running_loop()), _Transport()
    tap.connection_made(cast(Any, transport))
    return tap, transport


async def test_after_a_full_read_others_are_read_before_the_rest() -> None:
    tap, transport = _tapped()
    is_read = []
    for data in (_MUCH[:80], _MUCH):
        tap.data_received(data)
        is_read.append(transport.is_read)
    await asyncio.sleep(0)
    assert [*is_read, transport.is_read] == [True, False, True]


async def test_a_link_that_is_not_to_be_read_is_not_read_after_a_full_read() -> None:
    tap, transport = _tapped()
    tap.data_received(_MUCH)
    tap.pause_reading("slow")
    await asyncio.sleep(0)
    before = transport.is_read
    tap.resume_reading("slow")
    assert (before, transport.is_read) == (False, True)


async def test_a_link_that_is_not_to_be_read_for_two_reasons_is_read_when_both_are_over() -> None:
    tap, transport = _tapped()
    tap.pause_reading("slow")
    tap.pause_reading("waits")
    tap.resume_reading("slow")
    before = transport.is_read
    tap.resume_reading("waits")
    assert (before, transport.is_read) == (False, True)

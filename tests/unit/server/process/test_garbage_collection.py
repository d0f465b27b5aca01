"""What the garbage collector looks at, and when."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from gateway.server.process.memory import GarbageCollection


class _Circle:
    """Only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def only_when_asked() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.disable()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    gc.enable()


def test_what_is_new_is_collected_and_what_is_old_is_not_looked_at() -> None:
    collection = GarbageCollection((), lambda: 1000)
    collection.start()
    old = _Circle()
    collection.sweep()
    new = _Circle()
    found_old, found_new = weakref.ref(old), weakref.ref(new)
    del old, new
    collection.sweep()
    assert found_new() is None
    assert found_old() is not None
    assert gc.get_freeze_count() > 1000
    # Nor does Python look at it by itself.
    assert min(gc.get_threshold()[1:]) > 1_000_000


def test_everything_is_collected_when_memory_has_grown_much() -> None:
    blocks = 1000
    collection = GarbageCollection((), lambda: blocks)
    collection.sweep()
    old = _Circle()
    collection.sweep()
    found = weakref.ref(old)
    del old
    blocks = 502_000
    collection.sweep()
    assert found() is not None
    blocks += 1
    collection.sweep()
    assert found() is None
    # From now on there may be twice as much.
    old = _Circle()
    collection.sweep()
    found = weakref.ref(old)
    del old
    blocks = 2 * blocks + 500_000
    collection.sweep()
    assert found() is not None


def test_clients_that_are_there_are_no_reason_to_collect_everything() -> None:
    clients: list[int] = []
    collection = GarbageCollection(clients, lambda: 1000 + 300 * len(clients))
    collection.start()
    old = _Circle()
    collection.sweep()
    found = weakref.ref(old)
    del old
    clients += range(10_000)
    collection.sweep()
    assert found() is not None

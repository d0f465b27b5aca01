from __future__ import annotations

import io
import os
import random
import threading
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from gateway.journal import reading, segments
from gateway.journal.reading import (
    Follower,
    JournalEntry,
    UnreadableError,
    decode,
    list_segments,
    raw_lines,
    raw_lines_backwards,
)
from gateway.journal.schema import ParsedLine
from gateway.journal.segments import SegmentName, end_of_lines

BOOT = "0123456789abcdef"


def _name(number: int, node: str = "n1", boot: str = BOOT) -> SegmentName:
    return SegmentName("gateway", node, boot, 1, number)


def _line(number: int, t: int | None = None, event: str = "close") -> bytes:
    return b'{"e":"%s","t":%d,"q":%d}\n' % (event.encode(), number if t is None else t, number)


def _numbers(entries: list[JournalEntry]) -> list[int]:
    return [entry.line.q for entry in entries if isinstance(entry.line, ParsedLine)]


@pytest.fixture
def day(tmp_path: Path) -> Path:
    path = tmp_path / "d=2026-11-21"
    path.mkdir()
    return path


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize("content", [b"", b"\n", b"a", b"a\n", b"a\n\nbcd\n", b"a\nbcdefgh\n\n\nx", b"\n\n\xff\n"])
def test_lines_in_both_directions_whatever_the_block(
    block: int, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_BLOCK", block)
    monkeypatch.setattr(reading, "_BLOCK_BACKWARDS", block)
    monkeypatch.setattr(segments, "_BLOCK", block)
    expected = content.split(b"\n")[:-1] + (
        [content.split(b"\n")[-1]] if not content.endswith(b"\n") and content else []
    )
    file = io.BytesIO(content)
    found = list(raw_lines(file, rest=True))
    assert [line for line, _ in found] == expected
    assert list(raw_lines_backwards(file, len(content))) == expected[::-1]
    whole = content.rfind(b"\n") + 1
    assert end_of_lines(file) == whole
    assert [line for line, _ in raw_lines(file, rest=False)] == content[:whole].split(b"\n")[:-1]
    for index, (_, position) in enumerate(found):
        assert [line for line, _ in raw_lines(file, rest=True, start=position)] == expected[index + 1 :]


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_BLOCK", 64)
    monkeypatch.setattr(reading, "_BLOCK_BACKWARDS", 64)
    monkeypatch.setattr(reading, "LONGEST_LINE", 100)
    content = b"x" * 5000 + b"\n" + b"next\n"
    found = list(raw_lines(io.BytesIO(content), rest=True))
    assert [(len(line), position) for line, position in found] == [(100, 5001), (4, 5006)]
    assert [len(line) for line in raw_lines_backwards(io.BytesIO(content), len(content))] == [4, 100]


@pytest.mark.parametrize("backwards", [False, True])
def test_a_line_without_end_is_kept_up_to_a_megabyte(backwards: bool) -> None:
    content = b"x" * (64 << 20) + b"\n"
    file = io.BytesIO(content)
    tracemalloc.start()
    try:
        (line,) = (
            raw_lines_backwards(file, len(content)) if backwards else (line for line, _ in raw_lines(file, rest=True))
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(line) == 1 << 20
    assert peak < 8 << 20


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"7", b'{"e":"end"}', b'{"e":"end","t":1}', b'{"e":1,"t":1,"q":1}', b'{"e":"end","t":"1","q":1}',
     b'{"e":"send","t":1,"q":1,"b":"x"}', b"\xff\xfe", b'{"e":"open","t":1,"q":0,"v":2}', b"[" * 100_000],
)  # fmt: skip
def test_junk_is_a_reason_and_no_exception(raw: bytes) -> None:
    reason = decode(raw)
    assert isinstance(reason, str)
    assert reason


def test_what_a_later_gateway_adds_is_ignored() -> None:
    line = decode(b'{"e":"new","t":1,"q":2,"later":{"a":[1]}}')
    assert isinstance(line, ParsedLine)
    assert (line.e, line.t, line.q) == ("new", 1, 2)


def test_a_listing_tells_files_apart(day: Path) -> None:
    for name in (str(_name(1)), _name(2).while_open, str(_name(0)).replace("v1", "v2"), "x.v1.jsonl", f".{_name(3)}",
                 f"{_name(4)}.open"):  # fmt: skip
        (day / name).touch()
    (day.parent / "notes").mkdir()
    (day / str(_name(5))).symlink_to(day / str(_name(1)))
    os.mkfifo(day / str(_name(6)))
    listing = list_segments(day.parent)
    assert [segment.name.number for segment in listing.finished] == [1]
    assert [segment.name.number for segment in listing.being_written] == [2]
    assert [path.name for path in listing.later] == [str(_name(0)).replace("v1", "v2")]
    assert len(listing.unknown) == 5


def test_a_directory_that_cannot_be_read_is_a_sentence(day: Path) -> None:
    with pytest.raises(UnreadableError, match="no such file or directory"):
        list_segments(day / "none")
    (day / "file").touch()
    with pytest.raises(UnreadableError, match="not a directory"):
        list_segments(day / "file")
    with pytest.raises(UnreadableError, match="one day of a journal"):
        list_segments(day)


def test_following_an_open_segment_over_its_renaming(day: Path) -> None:
    follower = Follower(day.parent)
    path = day / _name(0).while_open
    with path.open("ab", buffering=0) as file:
        file.write(_line(0) + _line(1) + b'{"e":"clo')
        assert _numbers(list(follower.new())) == [0, 1]
        assert not list(follower.new())
        file.write(b'se","t":2,"q":2}\n')
        assert _numbers(list(follower.new())) == [2]
        file.write(_line(3))
        path.rename(day / str(_name(0)))
        assert _numbers(list(follower.new())) == [3]
        assert not list(follower.new())


def test_new_segments_and_new_days_are_found(day: Path) -> None:
    follower = Follower(day.parent)
    (day / str(_name(0))).write_bytes(_line(0))
    assert _numbers(list(follower.new())) == [0]
    (day / str(_name(1))).write_bytes(_line(1))
    for number, name in enumerate(("2026-11-22", "2026-11-23", "2026-11-24"), 2):
        (day.parent / f"d={name}").mkdir()
        (day.parent / f"d={name}" / str(_name(number))).write_bytes(_line(number))
    assert _numbers(list(follower.new())) == [1, 2, 3, 4]
    (day / str(_name(5))).write_bytes(_line(5))
    assert _numbers(list(follower.new())) == [5]


def test_boots_are_interleaved_by_time_and_bad_lines_stay_in_place(day: Path) -> None:
    (day / str(_name(0))).write_bytes(_line(0, 10) + b"junk\n" + _line(1, 30))
    (day / str(_name(1))).write_bytes(_line(2, 50))
    (day / str(_name(0, "n2", "f" * 16))).write_bytes(_line(0, 20) + _line(1, 40))
    entries = list(Follower(day.parent).new())
    assert [entry.t for entry in entries] == [10, 10, 20, 30, 40, 50]
    assert entries[1].raw == b"junk"
    assert isinstance(entries[1].line, str)


def test_the_rest_of_a_finished_segment_is_a_line_and_that_of_an_open_one_is_not(day: Path) -> None:
    follower = Follower(day.parent)
    (day / _name(0).while_open).write_bytes(_line(0) + b'{"e":')
    assert len(list(follower.new())) == 1
    (day / _name(0).while_open).rename(day / str(_name(0)))
    assert [entry.raw for entry in follower.new()] == [b'{"e":']
    assert not list(follower.new())


def test_a_listing_that_a_rename_came_into_leaves_nothing_out(day: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(day.parent)
    (day / str(_name(0))).write_bytes(_line(0))
    open_one = day / _name(1).while_open
    open_one.write_bytes(_line(1))
    assert _numbers(list(follower.new())) == [0, 1]
    listed = reading._list_day
    hidden: list[int] = []

    def without(where: Path, listing: reading.SegmentListing) -> None:
        found = reading.SegmentListing()
        listed(where, found)
        number = hidden.pop(0) if hidden else -1
        listing.finished += [segment for segment in found.finished if segment.name.number != number]
        listing.being_written += [segment for segment in found.being_written if segment.name.number != number]

    monkeypatch.setattr(reading, "_list_day", without)
    open_one.write_bytes(_line(1) + _line(2))
    hidden.append(1)  # known, and under neither name in the listing
    assert _numbers(list(follower.new())) == [2]
    open_one.rename(day / str(_name(1)))
    (day / str(_name(2))).write_bytes(_line(3))
    (day / str(_name(3))).write_bytes(_line(4))
    hidden += [2, 2]  # never seen, and the one behind it is there already; the next listing misses it, too
    assert _numbers(list(follower.new())) == [3, 4]


def test_a_boot_that_begins_during_the_listing_is_read_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [tmp_path / f"d=2026-11-2{number}" for number in range(2)]
    for day in days:
        day.mkdir()
    listed = reading._list_day

    def then_write(where: Path, listing: reading.SegmentListing) -> None:
        listed(where, listing)
        for number, day in enumerate(days):
            (day / str(_name(number))).write_bytes(_line(number))

    monkeypatch.setattr(reading, "_list_day", then_write)
    follower = Follower(tmp_path)
    assert _numbers([*follower.new(), *follower.new()]) == [0, 1]


def test_every_line_once_while_gateways_write_and_rename(tmp_path: Path) -> None:
    """Writers that flush in the middle of lines, rotate and change the day, and a reader that never waits."""
    total = 3000
    done = threading.Event()

    def write(node: str, boot: str, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - repeatable is what it must be
        number, segment = 0, 0
        while number < total:
            day = tmp_path / f"d=2026-11-{20 + segment // 20:02d}"
            day.mkdir(exist_ok=True)
            name = _name(segment, node, boot)
            with (day / name.while_open).open("ab", buffering=0) as file:
                for _ in range(chance.randrange(1, 60)):
                    line = _line(number)
                    cut = chance.randrange(len(line))
                    file.write(line[:cut])
                    file.write(line[cut:])
                    number += 1
            (day / name.while_open).rename(day / str(name))
            segment += 1

    writers = [threading.Thread(target=write, args=(f"n{index}", f"{index:016x}", index)) for index in range(3)]
    follower = Follower(tmp_path)
    found: list[JournalEntry] = []

    def watch() -> None:
        for writer in writers:
            writer.join()
        done.set()

    watcher = threading.Thread(target=watch)
    for thread in (*writers, watcher):
        thread.start()
    while not done.is_set():
        found += follower.new()
    found += follower.new()
    watcher.join()
    by_node: dict[str, list[int]] = {}
    for entry in found:
        assert isinstance(entry.line, ParsedLine), entry.raw
        by_node.setdefault(entry.segment.name.node, []).append(entry.line.q)
    assert set(by_node) == {"n0", "n1", "n2"}
    for numbers in by_node.values():
        assert Counter(numbers) == Counter(range(len(numbers)))
        assert len(numbers) >= total
        assert numbers == sorted(numbers)

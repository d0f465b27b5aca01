"""The writer: lines numbered without holes, whole segments only, losses counted, and never a wait for the disk."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.journal_settings import JournalSettings
from gateway.journal import files as files_module
from gateway.journal import writer as writer_module
from gateway.journal.files import recover
from gateway.journal.schema import ErrorLine
from gateway.journal.segments import PATTERN, SegmentName
from gateway.journal.writer import BATCH, Clock, Writer, WriterSettings


class ManualClock(Clock):
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.offset = 1_795_219_200_000_000

    def tick(self) -> None:
        pass

    def adjust(self) -> None:
        pass


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def writer_in(
    directory: Path,
    clock: Clock,
    *,
    rotate_bytes: int = 1 << 26,
    rotate_after: float = 60.0,
) -> Writer:
    settings = JournalSettings(rotate_bytes=rotate_bytes, rotate_after=rotate_after)
    found = Writer(WriterSettings(directory, "node-1", settings), clock, os.getpid())
    found.files.probe()
    found.files.start()
    return found


def put(writer: Writer, count: int) -> None:
    for _ in range(count):
        writer.put(ErrorLine(writer.clock.time, 0, "not-found"))


def wait_for(condition: Callable[[], bool]) -> None:
    """Until another thread has done something."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"d*=*/{PATTERN}"))


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in segments(directory) for line in path.read_bytes().splitlines()]


def test_every_line_has_the_next_number_over_all_segments(tmp_path: Path, clock: ManualClock) -> None:
    writer = writer_in(tmp_path, clock, rotate_bytes=20_000)
    put(writer, 3 * BATCH + 7)
    assert writer.close()
    found = lines(tmp_path)
    assert [line["q"] for line in found] == list(range(len(found)))
    assert [line["e"] for line in found].count("err") == 3 * BATCH + 7
    assert found[-1]["e"] == "close"
    for path in segments(tmp_path):
        first = json.loads(path.read_bytes().splitlines()[0])
        name = SegmentName.read(path.name)
        assert name is not None
        assert (first["e"], first["v"], first["boot"], first["seg"]) == ("open", 1, writer.boot, name.number)
    assert len(segments(tmp_path)) == 4
    assert {path.parent.name[:4] for path in segments(tmp_path)} == {"day="}


def test_a_segment_is_finished_when_it_is_old_even_if_nothing_more_comes(tmp_path: Path, clock: ManualClock) -> None:
    writer = writer_in(tmp_path, clock, rotate_after=60)
    put(writer, 1)
    writer.flush()
    clock.now += 59_000_000
    writer.flush()
    clock.now += 1_000_000
    writer.flush()
    put(writer, 1)
    assert writer.close()
    assert [len(path.read_bytes().splitlines()) for path in segments(tmp_path)] == [2, 3]


def test_a_quiet_gateway_makes_no_segments(tmp_path: Path, clock: ManualClock) -> None:
    writer = writer_in(tmp_path, clock, rotate_after=1)
    for _ in range(10):
        clock.now += 10_000_000
        writer.flush()
    assert writer.close()
    assert [len(path.read_bytes().splitlines()) for path in segments(tmp_path)] == [2]  # open and close


def test_only_owner_and_group_may_look(tmp_path: Path, clock: ManualClock) -> None:
    before = os.umask(0)
    try:
        writer = writer_in(tmp_path / "journal", clock)
        put(writer, 1)
        assert writer.close()
    finally:
        os.umask(before)
    (path,) = segments(tmp_path / "journal")
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, path.parent.parent)]
    assert modes == [0o640, 0o750, 0o750]


def test_readers_never_see_a_segment_that_is_not_finished(tmp_path: Path, clock: ManualClock) -> None:
    """A reader lists the directory all the time, and reads whatever it sees: each time the same bytes."""
    seen: dict[Path, bytes] = {}
    over = threading.Event()
    changed: list[Path] = []

    def read() -> None:
        while not over.is_set():
            for path in segments(tmp_path):
                data = path.read_bytes()
                if seen.setdefault(path, data) != data or not data.endswith(b"\n"):
                    changed.append(path)

    reader = threading.Thread(target=read)
    reader.start()
    writer = writer_in(tmp_path, clock, rotate_bytes=30_000)
    put(writer, 60 * BATCH)
    assert writer.close()
    over.set()
    reader.join()
    assert not changed
    assert len(segments(tmp_path)) > 20


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that takes nothing until the event is set."""
    free = threading.Event()
    write = os.write

    def slow(file: int, data: bytes) -> int:
        free.wait(30)
        return write(file, data)

    monkeypatch.setattr(os, "write", slow)
    yield free
    free.set()


def test_a_stuck_disk_costs_events_which_are_counted_and_no_waiting(
    tmp_path: Path, clock: ManualClock, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_MAX_PENDING", 4 * BATCH)
    writer = writer_in(tmp_path, clock)
    put(writer, 10 * BATCH)
    assert writer.files.pending <= 4 * BATCH
    assert writer.dropped >= 6 * BATCH
    stuck.set()
    assert writer.close()
    found = lines(tmp_path)
    assert [line["q"] for line in found] == list(range(len(found)))
    written = [line["e"] for line in found].count("err")
    drops = [line["n"] for line in found if line["e"] == "drop"]
    assert written + sum(drops) == 10 * BATCH
    assert sum(drops) == writer.dropped


def test_a_full_disk_loses_nothing_that_was_numbered(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes half of a chunk, then nothing twice, then everything again."""
    monkeypatch.setattr(files_module, "_RETRY", 0.01)
    write, error_frames = os.write, [5, 5]

    def full(file: int, data: bytes) -> int:
        if len(data) > 10_000:
            return write(file, data[:10_000])
        if error_frames and len(data) < 10_000:
            error_frames.pop()
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    writer = writer_in(tmp_path, clock)
    put(writer, 3 * BATCH)
    assert writer.close()
    assert not error_frames
    found = lines(tmp_path)
    assert [line["q"] for line in found] == list(range(len(found)))
    assert [line["e"] for line in found].count("err") == 3 * BATCH


def test_a_disk_that_stays_full_does_not_keep_the_gateway_from_stopping(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_in(tmp_path, clock)

    def full(_file: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    put(writer, BATCH)
    assert not writer.close(within=0.05)


def _left_behind(directory: Path, data: bytes, node: str = "node-1") -> Path:
    folder = directory / "d=2026-11-20"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SegmentName("gateway", node, "0123456789abcdef", 1, 7).while_open
    path.write_bytes(data)
    return path


def _recovers(directory: Path, node: str | None) -> bool:
    """Whether the one segment that is open is finished now; one that is not is no failure."""
    (path,) = directory.glob("d*=*/.*.open")
    assert recover(directory, node) == {}
    return not path.exists()


def test_what_a_dead_process_left_is_cut_at_its_last_whole_line(tmp_path: Path) -> None:
    """At whatever byte of the last line it died."""
    whole, last = b'{"e":"open","t":1,"q":0}\n', b'{"e":"err","t":2,"q":1,"x":"other"}\n'
    for cut in range(len(last) + 1):
        _left_behind(tmp_path, whole + last[:cut])
        assert recover(tmp_path, "node-1") == {}
        (finished,) = segments(tmp_path)
        assert finished.read_bytes() == (whole + last if cut == len(last) else whole)
        assert not list(tmp_path.glob("d*=*/.*"))
        finished.unlink()


def test_a_segment_without_a_whole_line_is_removed(tmp_path: Path) -> None:
    _left_behind(tmp_path, b'{"e":"op')
    assert recover(tmp_path, "node-1") == {}
    assert not list(tmp_path.glob("d*=*/*"))


def test_a_segment_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    path = _left_behind(tmp_path, b"{}\n")
    with path.open("rb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        assert not _recovers(tmp_path, "node-1")
    assert _recovers(tmp_path, "node-1")


def test_another_nodes_fresh_segment_is_left_alone_and_an_old_one_is_not(tmp_path: Path) -> None:
    path = _left_behind(tmp_path, b"{}\n", node="node-2")
    assert not _recovers(tmp_path, "node-1")
    os.utime(path, (1, 1))
    assert _recovers(tmp_path, "node-1")


def test_who_asks_by_hand_recovers_what_nobody_has_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _left_behind(tmp_path, b"{}\n", node="node-2")
    with path.open("rb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        assert not _recovers(tmp_path, None)
    assert _recovers(tmp_path, None)

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    path = _left_behind(tmp_path, b"{}\n", node="node-2")
    ((told, why),) = recover(tmp_path, None).items()
    assert (told, why.errno) == (path, errno.ENOLCK)
    assert path.exists()
    os.utime(path, (1, 1))
    assert _recovers(tmp_path, None)


def test_a_new_writer_recovers_before_it_writes(tmp_path: Path, clock: ManualClock) -> None:
    left = _left_behind(tmp_path, b'{"e":"open","t":1,"q":0}\n{"e":')
    assert writer_in(tmp_path, clock).close()
    assert not left.exists()
    assert len(segments(tmp_path)) == 2


def test_a_directory_that_cannot_be_written_is_an_error_at_once(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        writer_in(tmp_path / "file" / "journal", clock)


def test_the_segment_of_a_living_writer_is_left_alone(tmp_path: Path, clock: ManualClock) -> None:
    writer = writer_in(tmp_path, clock)
    put(writer, BATCH)
    wait_for(lambda: writer.files.pending == 0)
    assert not _recovers(tmp_path, "node-1")
    assert writer.close()
    assert len(segments(tmp_path)) == 1


def test_a_directory_that_is_removed_is_made_again(tmp_path: Path, clock: ManualClock) -> None:
    directory = tmp_path / "journal"
    writer = writer_in(directory, clock, rotate_after=1)
    put(writer, BATCH)
    wait_for(lambda: writer.files.pending == 0)
    shutil.rmtree(directory)
    clock.now += 2_000_000
    put(writer, BATCH)
    put(writer, BATCH)
    assert writer.close()
    numbers = [line["q"] for line in lines(directory)]
    # What was in the file that somebody removed is gone, and the hole shows it.
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert numbers[0] > BATCH


def test_a_directory_that_cannot_be_synced_once_stops_nothing(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(24, "Too many open files")]

    def sync(_path: Path) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(files_module, "sync_directory", sync)
    writer = writer_in(tmp_path, clock, rotate_bytes=1000)
    put(writer, 3 * BATCH)
    assert writer.close()
    assert not failures
    numbers = [line["q"] for line in lines(tmp_path)]
    assert numbers == list(range(len(numbers)))


def test_a_file_that_cannot_be_opened_whole_is_opened_again(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor left open by the first attempt would keep the lock, and all further attempts would fail."""
    monkeypatch.setattr(files_module, "_RETRY", 0.01)
    change_mode, failures = os.fchmod, [PermissionError(1, "Operation not permitted")]

    def fchmod(file: int, mode: int) -> None:
        if failures:
            raise failures.pop()
        change_mode(file, mode)

    monkeypatch.setattr(os, "fchmod", fchmod)
    writer = writer_in(tmp_path, clock)
    put(writer, BATCH)
    assert writer.close()
    assert not failures
    assert len(lines(tmp_path)) == BATCH + 2


def test_old_segments_are_deleted_while_the_disk_is_full(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For they may be what fills it."""
    monkeypatch.setattr(files_module, "_RETRY", 0.01)
    monkeypatch.setattr(files_module, "CLEAN_INTERVAL", 0.0)
    writer = writer_in(tmp_path, clock)
    old = tmp_path / "d=2026-11-01" / str(SegmentName("gateway", "node-1", "0123456789abcdef", 1, 1))
    write = os.write

    def full(file: int, data: bytes) -> int:
        if not old.exists():
            return write(file, data)
        raise OSError(28, "No space left on device")

    old.parent.mkdir()
    old.write_bytes(b"{}\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        put(writer, BATCH)
        os.utime(old, (1, 1))
        wait_for(lambda: writer.files.pending == 0)
    assert writer.close()


def test_what_waits_for_the_disk_is_bounded_in_bytes_too(
    tmp_path: Path, clock: ManualClock, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_MAX_PENDING_BYTES", 100_000)
    writer = writer_in(tmp_path, clock)
    for _ in range(4):
        writer.events.extend(ErrorLine(clock.time, 0, "x" * 1000) for _ in range(BATCH))
        writer.flush()
    assert writer.dropped == 3 * BATCH
    stuck.set()
    assert writer.close()


def test_so_much_waits_for_the_disk_and_no_more(tmp_path: Path, clock: ManualClock, stuck: threading.Event) -> None:
    """The bounds that docs/limits.md has, as they are."""
    settings = WriterSettings(tmp_path, "node-1")
    many, large = Writer(settings, clock, 1), Writer(settings, clock, 2)
    for writer, text, lines_taken in ((many, "x", 127 * BATCH), (large, "x" * 20_000, 4 * BATCH)):
        writer.files.probe()
        writer.files.start()
        batch = [ErrorLine(clock.time, 0, text)] * BATCH
        for _ in range(lines_taken // BATCH + 3):
            writer.events.extend(batch)
            writer.flush()
        assert writer.dropped == 3 * BATCH
    stuck.set()
    assert many.close()
    assert large.close()


def test_gateways_that_start_at_the_same_moment_do_not_disturb_each_other(tmp_path: Path, clock: ManualClock) -> None:
    """All of them process 1, each in a container of its own."""
    failures: list[OSError] = []

    def start() -> None:
        for _ in range(20):
            writer = Writer(WriterSettings(tmp_path, "node-1"), clock, 1)
            try:
                writer.files.probe()
                writer.files.start()
            except OSError as error:
                failures.append(error)
            else:
                writer.close()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(segments(tmp_path)) == 80


def test_a_writer_whose_thread_died_does_not_say_that_all_is_written(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    writer = writer_in(tmp_path, clock)

    def broken(_file: int, _data: bytes) -> int:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken)
        put(writer, BATCH)
        assert not writer.close(within=5)

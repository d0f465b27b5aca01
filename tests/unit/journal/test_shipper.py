"""Shipping: every finished segment arrives once and whole, whoever else ships, and whatever fails on the way."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import structlog

from gateway import cli
from gateway.errors import ExitCode
from gateway.journal import shipper as shipper_module
from gateway.journal.files import lock
from gateway.journal.segments import PATTERN, SegmentName, mark_of
from gateway.journal.ship_targets import DirectoryTarget
from gateway.journal.shipper import LOCK_NAME, SegmentDiffersError, ShipError, Shipper, Waiting
from tests.support.deadline import PATIENCE
from tests.unit.journal.test_writer import wait_for


def finished(journal: Path, number: int, data: bytes = b"{}\n", *, node: str = "a") -> Path:
    path = journal / "d=2026-11-01" / str(SegmentName("gateway", node, "0123456789abcdef", 1, number))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (1000 + number, 1000 + number))
    return path


def contents(directory: Path) -> dict[str, bytes]:
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in directory.glob(f"d*=*/{PATTERN}")}


class Place:
    """Takes segments, unless it is broken or told to wait."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.is_broken = False
        self.reason = "out of order"
        self.failures = 0
        self.free = threading.Event()
        self.free.set()
        self.is_closed = False

    def put(self, name: str, data: bytes) -> None:
        self.free.wait(30)
        self.failures -= 1
        if self.is_broken or self.failures >= 0:
            raise ShipError(self.reason)
        self.names.append(name)

    def close(self) -> None:
        self.is_closed = True


class Bell(threading.Event):
    """Counts who waits for it."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return super().wait(timeout)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    directory = tmp_path / "journal"
    directory.mkdir()
    return directory


def test_what_is_finished_is_shipped_whole_oldest_first_and_once(journal: Path, tmp_path: Path) -> None:
    paths = [finished(journal, number, b"x" * number) for number in (2, 1, 3)]
    open_one = paths[0].with_name(SegmentName("gateway", "a", "0123456789abcdef", 1, 9).while_open)
    open_one.write_bytes(b"half a li")
    place = Place()
    Shipper(journal, place).ship_now()
    assert [name[-17:-9] for name in place.names] == ["1-000001", "1-000002", "1-000003"]
    there = tmp_path / "there"
    shipper = Shipper(journal, DirectoryTarget(there))
    shipper.ship_now(again=True)
    assert contents(there) == contents(journal)
    assert len(contents(there)) == 3
    Shipper(journal, place).ship_now()
    assert len(place.names) == 3


def test_an_open_segment_and_marks_are_never_shipped(journal: Path, tmp_path: Path) -> None:
    path = finished(journal, 1)
    path.with_name(SegmentName("gateway", "a", "0123456789abcdef", 1, 9).while_open).write_bytes(b"{}\n")
    (path.parent / "notes.txt").write_text("mine")
    there = tmp_path / "there"
    Shipper(journal, DirectoryTarget(there)).ship_now()
    assert [each.name for each in there.glob("d*=*/*")] == [path.name]


def test_the_command_ships_what_a_killed_gateway_left_open(journal: Path, tmp_path: Path) -> None:
    left, alive = (
        finished(journal, number).with_name(SegmentName("gateway", "b", boot * 16, 1, 1).while_open)
        for number, boot in enumerate("01")
    )
    for path in (left, alive):
        path.write_bytes(b"{}\nhalf a li")
    there = tmp_path / "there"
    with alive.open("rb") as file:
        assert lock(file.fileno())
        assert cli.main(["journal", "ship", str(journal), "--to", str(there)]) == ExitCode.OK
    assert len(contents(there)) == 3
    assert contents(there)[f"{left.parent.name}/{SegmentName.read(left.name)}"] == b"{}\n"
    assert alive.exists()


def test_the_command_says_which_open_segments_may_not_be_finished(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left, alive = (
        finished(journal, number).with_name(SegmentName("gateway", "b", boot * 16, 1, 1).while_open)
        for number, boot in enumerate("01")
    )
    for path in (left, alive):
        path.write_bytes(b"{}\n")
    opened = Path.open

    def refuse(path: Path, mode: str = "r", *others: Any, **named: Any) -> Any:  # noqa: ANN401 - as `open`
        if path in (left, alive) and "+" in mode:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, mode, *others, **named)

    monkeypatch.setattr(Path, "open", refuse)
    there = tmp_path / "there"
    with opened(alive, "rb") as file:
        assert lock(file.fileno())
        assert cli.main(["journal", "ship", str(journal), "--to", str(there)]) == ExitCode.FAILURE
    said = capsys.readouterr()
    assert f"segment={left.name}" in said.err.replace("'", "")
    assert "Permission denied" in said.err
    assert alive.name not in said.err
    assert len(contents(there)) == 2


def test_the_command_says_which_open_segments_wait_because_there_are_no_locks(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = finished(journal, 1).with_name(SegmentName("gateway", "b", "0" * 16, 1, 1).while_open)
    left.write_bytes(b"{}\n")

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert cli.main(["journal", "ship", str(journal), "--to", str(tmp_path / "there")]) == ExitCode.OK
    said = capsys.readouterr().err
    assert left.name in said
    assert "has no locks" in said
    assert left.exists()


def test_who_follows_ships_what_a_gateway_that_is_killed_meanwhile_leaves_open(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper_module, "_LOOK", 0.01)
    monkeypatch.setattr("gateway.journal.files.CLEAN_INTERVAL", 0.01)
    alive = finished(journal, 1).with_name(SegmentName("gateway", "b", "0" * 16, 1, 1).while_open)
    alive.write_bytes(b"{}\n")
    there = tmp_path / "there"
    arrived: list[str] = []
    handler = signal.getsignal(signal.SIGTERM)

    def kill_the_gateway() -> None:
        try:
            wait_for(lambda: len(contents(there)) == 1)
            os.close(file)
            wait_for(lambda: len(contents(there)) == 2)
            arrived.extend(contents(there))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    file = os.open(alive, os.O_RDONLY)
    assert lock(file)
    thread = threading.Thread(target=kill_the_gateway)
    # Until the command has a handler of its own, for a thread that gives up early.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    thread.start()
    try:
        assert cli.main(["journal", "ship", str(journal), "--to", str(there), "--follow"]) == ExitCode.OK
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, handler)
    assert f"{alive.parent.name}/{SegmentName.read(alive.name)}" in arrived


def test_the_place_shows_whole_segments_only_and_to_owner_and_group_alone(journal: Path, tmp_path: Path) -> None:
    finished(journal, 1, b"{}\n" * 1000)
    there = tmp_path / "there"
    Shipper(journal, DirectoryTarget(there)).ship_now()
    (path,) = there.glob("d*=*/*")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    assert not list(there.glob("d*=*/.*"))


def test_half_a_segment_is_never_there(journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails, or the process is ended, when all is written but not safe; the next attempt cleans up."""
    path, there = finished(journal, 1), tmp_path / "there"
    (there / path.parent.name).mkdir(parents=True)
    (there / path.parent.name / f".{path.name}.0123.part").write_bytes(b"{")
    (there / path.parent.name / ".gateway-of-before.89ab.part").write_bytes(b"{")

    for error, shown in ((OSError(28, "No space left on device"), ShipError), (KeyboardInterrupt(), KeyboardInterrupt)):

        def fail(_: int, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(shown):
                Shipper(journal, DirectoryTarget(there)).ship_now()
        assert contents(there) == {}
        assert not mark_of(path).exists()
    for left in there.glob("d*=*/.*"):
        os.utime(left, (1, 1))
    (there / path.parent.name / f".{path.name}.4567.part").write_bytes(b"{")  # of somebody who is at work
    Shipper(journal, DirectoryTarget(there)).ship_now()
    assert {each.name for each in there.glob("d*=*/*")} == {path.name, f".{path.name}.4567.part"}


def test_a_segment_that_is_there_already_is_marked_and_one_that_differs_is_kept_and_reported(
    journal: Path, tmp_path: Path
) -> None:
    """As after a kill between putting and marking; and as if two gateways had written the same name."""
    same, other = finished(journal, 1, b"same\n"), finished(journal, 2, b"mine\n")
    there = tmp_path / "there"
    finished(there, 1, b"same\n")
    finished(there, 2, b"somebody else's\n")
    with pytest.raises(SegmentDiffersError, match="16 bytes, and has 5 here"):
        Shipper(journal, DirectoryTarget(there)).ship_now()
    assert mark_of(same).exists()
    assert not mark_of(other).exists()
    assert contents(there)[f"{other.parent.name}/{other.name}"] == b"somebody else's\n"


def test_one_that_differs_stops_no_other(journal: Path, tmp_path: Path) -> None:
    finished(journal, 1, b"mine\n")
    finished(journal, 2)
    there = tmp_path / "there"
    finished(there, 1, b"somebody else's\n")
    shipper = Shipper(journal, DirectoryTarget(there))
    shipper.start()
    wait_for(lambda: shipper.stats.segments == 1)
    wait_for(lambda: shipper.stats.waiting.segments == 1)
    assert shipper.stats.errors == 1
    assert not shipper.close(PATIENCE)


def test_what_comes_is_shipped_when_it_is_finished(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper_module, "_LOOK", 1000.0)
    place, bell = Place(), Bell()
    shipper = Shipper(journal, place)
    shipper._woken = bell
    shipper.start()
    for number in range(3):
        wait_for(lambda number=number: bell.waits == number + 1)  # type: ignore[misc]
        finished(journal, number)
        shipper.wake()
        wait_for(lambda number=number: len(place.names) == number + 1)  # type: ignore[misc]
    assert shipper.close(PATIENCE)
    assert place.is_closed


def test_a_place_that_is_out_of_order_is_tried_again_and_what_waits_is_counted(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper_module, "_LOOK", 0.01)
    place = Place()
    place.is_broken = True
    for number in range(3):
        finished(journal, number, b"12345")
    shipper = Shipper(journal, place)
    shipper.start()
    wait_for(lambda: shipper.stats.errors > 2)
    waiting = shipper.stats.waiting
    assert (waiting.segments, waiting.bytes, waiting.oldest_at) == (3, 15, 1000.0)
    assert time.time() - 1001 < waiting.oldest_age < time.time() - 999
    place.is_broken = False
    wait_for(lambda: shipper.stats.segments == 3)
    assert shipper.close(PATIENCE)
    assert shipper.stats.waiting.oldest_age == 0


def test_the_pauses_grow_and_have_a_bound(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    place.is_broken = True
    finished(journal, 1)
    shipper = Shipper(journal, place)
    segments = shipper._look()
    pauses = [shipper._attempt(segments) for _ in range(20)]
    assert 8 <= pauses[0] <= 12
    assert 16 <= pauses[1] <= 24
    assert all(240 <= pause <= 360 for pause in pauses[6:])


def test_an_end_ships_the_rest_within_its_time_and_no_longer(journal: Path) -> None:
    place = Place()
    place.free.clear()
    finished(journal, 1)
    shipper = Shipper(journal, place)
    shipper.start()
    assert not shipper.close(0.05)
    place.free.set()
    wait_for(lambda: place.is_closed)

    finished(journal, 2)
    place.is_broken = True
    shipper = Shipper(journal, place)
    shipper.start()
    wait_for(lambda: shipper.stats.errors > 0)
    place.is_broken, place.failures = False, 2
    # The pause after a failure does not count any more, and two further ones are no reason to give up.
    assert shipper.close(30)
    assert len(place.names) == 2


def test_an_end_does_not_hammer_a_place_that_is_out_of_order(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper_module, "_ENDING_RETRY", 1000.0)
    place = Place()
    place.failures = 1_000_000
    finished(journal, 1)
    shipper = Shipper(journal, place)
    shipper._gives_up = bell = Bell()
    shipper.end()
    shipper.start()
    wait_for(lambda: bell.waits == 1)
    assert shipper.stats.errors == 1
    assert not shipper.close(0.05)
    shipper._thread.join(PATIENCE)
    assert not shipper._thread.is_alive()
    assert shipper.stats.errors == 1


def test_one_that_cannot_be_read_stops_no_other_and_is_tried_again(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper_module, "_LOOK", 0.01)
    monkeypatch.setattr(shipper_module, "_LAST_RETRY", 0.01)
    unreadable, readable = finished(journal, 1), finished(journal, 2)
    unreadable.unlink()
    unreadable.mkdir()
    os.utime(unreadable, (1001, 1001))
    place = Place()
    shipper = Shipper(journal, place)
    shipper.start()
    wait_for(lambda: shipper.stats.segments == 1 and shipper.stats.errors > 1)
    assert mark_of(readable).exists()
    assert shipper.stats.waiting.segments == 1
    unreadable.rmdir()
    finished(journal, 1)
    wait_for(lambda: len(place.names) == 2)
    assert shipper.close(PATIENCE)


def test_by_hand_all_are_tried_and_those_that_were_not_shipped_are_told(journal: Path, tmp_path: Path) -> None:
    for number in range(1, 5):
        finished(journal, number, b"mine\n")
    there = tmp_path / "there"
    for number in (1, 3):
        finished(there, number, b"somebody else's\n")
    with pytest.raises(ShipError, match=r"2 segments were not shipped; the first: .*000001.*16 bytes"):
        Shipper(journal, DirectoryTarget(there)).ship_now()
    assert len(contents(there)) == 4


def test_each_new_reason_is_logged_once(journal: Path) -> None:
    place = Place()
    place.is_broken = True
    finished(journal, 1)
    shipper = Shipper(journal, place)
    with structlog.testing.capture_logs() as logs:
        for reason in ("no route", "no route", "no permission", "no permission"):
            place.reason = reason
            shipper._attempt(shipper._look())
    assert [line["reason"] for line in logs] == ["no route", "no permission"]


def test_what_waits_is_counted_after_each_segment(journal: Path) -> None:
    for number in range(1, 4):
        finished(journal, number, b"x" * number)
    refused = finished(journal, 0, b"12345")
    shipper = Shipper(journal, Place())
    seen: list[Waiting] = []

    class Target(Place):
        def put(self, name: str, data: bytes) -> None:
            seen.append(shipper.stats.waiting)
            if refused.name in name:
                raise SegmentDiffersError("other")

    shipper._target = Target()
    shipper._attempt(shipper._look())
    seen.append(shipper.stats.waiting)
    assert seen == [
        Waiting(4, 11, 1000.0), Waiting(4, 11, 1000.0), Waiting(3, 10, 1000.0), Waiting(2, 8, 1000.0),
        Waiting(1, 5, 1000.0),
    ]  # fmt: skip


def test_while_a_place_is_out_of_order_segments_that_are_finished_cost_no_look(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place()
    place.is_broken = True
    finished(journal, 1)
    shipper = Shipper(journal, place)
    shipper._ending = bell = Bell()
    shipper.wake()
    look = Mock(wraps=shipper._look)
    monkeypatch.setattr(shipper, "_look", look)
    shipper.start()
    wait_for(lambda: bell.waits == 1)
    for _ in range(100):
        shipper.wake()
        # It has come out of its wait, if it has waited for this.
        shipper._thread.join(0.001)
    assert look.call_count == 1
    place.is_broken = False
    assert shipper.close(PATIENCE)


def test_one_process_at_a_time_ships_a_directory_and_another_goes_on_when_it_ends(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper_module, "_LOOK", 0.01)
    finished(journal, 1)
    place = Place()
    with (journal / LOCK_NAME).open("w") as other:
        assert lock(other.fileno())
        with pytest.raises(ShipError, match="another process"):
            Shipper(journal, place).ship_now()
        shipper = Shipper(journal, place)
        shipper.start()
        wait_for(lambda: shipper.stats.waiting.segments == 1)
        assert place.names == []
    wait_for(lambda: len(place.names) == 1)
    assert shipper.close(PATIENCE)
    assert shipper.stats.errors == 0


def test_two_that_ship_one_directory_put_each_segment_once(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper_module, "_LOOK", 0.001)
    place = Place()
    shippers = [Shipper(journal, place) for _ in range(2)]
    for shipper in shippers:
        shipper.start()
    for number in range(200):
        finished(journal, number)
    assert all([shipper.close(30) for shipper in shippers])
    assert len(place.names) == 200
    assert len(set(place.names)) == 200


def test_a_day_where_nothing_waits_is_not_listed_again_until_it_changes(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = finished(journal, 1)
    mark_of(path).touch()
    os.utime(path.parent, (1000, 1000))
    shipper = Shipper(journal, Place())
    assert shipper._look() == []

    scandir = os.scandir

    def not_of_the_day(folder: Path) -> Any:  # noqa: ANN401
        assert str(folder) != str(path.parent)
        return scandir(folder)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", not_of_the_day)
        assert shipper._look() == []
    finished(journal, 2)
    assert [segment.path.name[-17:-9] for segment in shipper._look()] == ["1-000002"]

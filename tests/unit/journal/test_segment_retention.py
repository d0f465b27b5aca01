"""What a gateway deletes of its finished segments: by age, by bytes, and never what is not shipped unless it must."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from gateway.journal.segments import SegmentName, SegmentRetention, mark_of


def retention(directory: Path, *, impl: str = "gateway", node: str = "a", **more: Any) -> SegmentRetention:  # noqa: ANN401
    return SegmentRetention(directory, impl, node, 500_000, **more)


def finished(directory: Path, number: int, *, node: str = "a", size: int = 1000, age: float = 0) -> Path:
    """A finished segment; the higher its number, the younger."""
    path = directory / "d=2026-11-01" / str(SegmentName("gateway", node, "0123456789abcdef", 1, number))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * size)
    at = time.time() - age - 1000 + number
    os.utime(path, (at, at))
    return path


def test_old_segments_of_the_node_are_deleted_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "d=2026-11-01"
    folder.mkdir()
    names = [SegmentName("gateway", node, "0123456789abcdef", 1, number) for node in ("a", "b") for number in (1, 2)]
    for name in names:
        (folder / str(name)).write_bytes(b"{}\n")
        age = 100 if name.number == 1 else 2_000_000_000
        os.utime(folder / str(name), (age, age))
    (folder / "notes.txt").write_text("mine")
    # What cannot be deleted keeps nothing else from being deleted.
    stuck = [SegmentName("gateway", "a", boot * 16, 1, 1) for boot in ("0", "f")]
    for name in stuck:
        (folder / str(name)).mkdir()
        os.utime(folder / str(name), (100, 100))
    assert retention(tmp_path).apply() == 1
    assert sorted(path.name for path in folder.iterdir()) == sorted([*map(str, names[1:] + stuck), "notes.txt"])


def test_old_segments_of_all_workers_of_the_node_are_deleted_however_many_workers_it_has_now(tmp_path: Path) -> None:
    folder = tmp_path / "d=2026-11-01"
    folder.mkdir()
    for node in ("a", "a.w0", "a.w7", "b.w0", "a.west"):
        path = folder / str(SegmentName("gateway", node, "0123456789abcdef", 1, 1))
        path.write_bytes(b"{}\n")
        os.utime(path, (100, 100))
    assert retention(tmp_path, node="a.w0").apply() == 3
    left = [SegmentName.read(path.name) for path in folder.iterdir()]
    assert {name.node for name in left if name is not None} == {"b.w0", "a.west"}


def test_a_gateway_and_a_tap_of_one_node_leave_each_others_segments_alone(tmp_path: Path) -> None:
    path = finished(tmp_path, 1, age=1_000_000)
    assert retention(tmp_path, impl="plugin", retain_bytes=10).apply() == 0
    assert path.exists()
    assert retention(tmp_path).apply() == 1


def test_beyond_the_limit_in_bytes_the_oldest_go_first(tmp_path: Path) -> None:
    paths = [finished(tmp_path, number) for number in range(10)]
    others = finished(tmp_path, 0, node="b", size=50_000)
    open_one = paths[0].with_name(SegmentName("gateway", "a", "0123456789abcdef", 1, 99).while_open)
    open_one.write_bytes(b"x" * 1500)
    assert retention(tmp_path, retain_bytes=5000).apply() == 7
    assert [path.exists() for path in paths] == [False] * 7 + [True] * 3
    assert others.exists()
    assert open_one.exists()
    assert retention(tmp_path, retain_bytes=5000).apply() == 0


def test_what_is_to_be_shipped_is_kept_however_old_until_it_is_shipped(tmp_path: Path) -> None:
    old = [finished(tmp_path, number, age=1_000_000) for number in range(3)]
    mark_of(old[1]).touch()
    assert retention(tmp_path, ships=True).apply() == 1
    assert [path.exists() for path in old] == [True, False, True]
    assert not mark_of(old[1]).exists()


def test_the_limit_in_bytes_is_stronger_and_takes_what_is_shipped_first(tmp_path: Path) -> None:
    paths = [finished(tmp_path, number) for number in range(6)]
    for path in paths[3:5]:
        mark_of(path).touch()
    kept = retention(tmp_path, ships=True, retain_bytes=4000)
    assert kept.apply() == 2
    assert kept.lost == 0
    assert [path.exists() for path in paths] == [True, True, True, False, False, True]
    kept.retain_bytes = 2000
    assert kept.apply() == 2
    assert kept.lost == 2
    assert [path.exists() for path in paths] == [False, False, True, False, False, True]


def test_marks_of_segments_that_somebody_deleted_go_too_and_empty_days_with_them(tmp_path: Path) -> None:
    path = finished(tmp_path, 1)
    mark_of(path).touch()
    path.unlink()
    assert retention(tmp_path).apply() == 0
    assert list(tmp_path.iterdir()) == []

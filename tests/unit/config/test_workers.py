"""The keys of several workers, and how many cores there are for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.config import worker_count
from gateway.config.loader import parse
from gateway.config.worker_count import cores, cpu_quota
from gateway.errors import ConfigError


def _mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        parse(text, environment={})
    return [mistake.path for mistake in refused.value.mistakes]


def test_there_is_one_worker_unless_more_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("", environment={}).workers == 1
    assert parse("workers: 3", environment={}).workers == 3
    monkeypatch.setattr(worker_count, "cores", lambda: 7)
    assert parse("workers: auto", environment={}).workers == 7


@pytest.mark.parametrize("value", ["0", "257", "all", "true", "1.5"])
def test_other_values_are_mistakes(value: str) -> None:
    assert _mistakes(f"workers: {value}") == ["workers"]


def test_a_worker_must_have_some_time_to_show_that_it_lives() -> None:
    assert parse("worker_timeout: 5s", environment={}).worker_timeout == 5
    assert _mistakes("worker_timeout: 0") == ["worker_timeout"]
    assert _mistakes("worker_timeout: 1s") == ["worker_timeout"]


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"),
    [(8, None, 8), (8, 3.0, 3), (8, 2.5, 3), (8, 0.2, 1), (2, 6.0, 2), (1, None, 1)],
)
def test_cores_are_those_that_affinity_and_quota_leave(
    monkeypatch: pytest.MonkeyPatch, affinity: int, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr(worker_count, "cpu_quota", lambda: quota)
    assert cores() == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # Version 2, as a container sees itself.
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        # The least of a group and those around it.
        (
            {
                "proc/self/cgroup": "0::/system.slice/gateway.service\n",
                "sys/fs/cgroup/system.slice/gateway.service/cpu.max": "max 100000\n",
                "sys/fs/cgroup/system.slice/cpu.max": "400000 100000\n",
            },
            4,
        ),
        # Version 1, beside other controllers; a container's own group may be mounted where others have the root.
        (
            {
                "proc/self/cgroup": "3:memory:/a\n2:cpu,cpuacct:/a/b\n0::/a\n",
                "sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "2:cpu,cpuacct:/docker/0123\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        # Nothing is known: not Linux, for example.
        ({}, None),
        ({"proc/self/cgroup": "nonsense\n"}, None),
    ],
)
def test_the_quota_of_control_groups(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == expected

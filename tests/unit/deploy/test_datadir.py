"""Data directories: one owner at a time, and no trace of owners that crashed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.datadir import OWNER_VARIABLE, DataDirectory
from deploy.local.errors import LocalError


def test_a_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "data")
    with pytest.raises(LocalError, match=f"Another process runs a RabbitMQ node in {tmp_path / 'data'}"):
        DataDirectory(tmp_path / "data")

    first.release()
    DataDirectory(tmp_path / "data").release()


def test_what_a_run_leaves_in_a_lasting_directory_stays(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    (directory.path / "queue").touch()
    directory.release()

    assert (tmp_path / "data" / "queue").exists()


def test_a_fresh_directory_is_gone_after_use(tmp_path: Path) -> None:
    directory = DataDirectory.fresh(tmp_path)
    (directory.path / "queue").touch()
    directory.release()

    assert list(tmp_path.iterdir()) == []


def test_fresh_directories_of_crashed_runs_are_deleted_and_those_in_use_are_not(tmp_path: Path) -> None:
    (tmp_path / "node-crashed").mkdir()
    (tmp_path / "other").mkdir()
    in_use = DataDirectory.fresh(tmp_path)
    another = DataDirectory.fresh(tmp_path)

    assert sorted(tmp_path.iterdir()) == sorted([in_use.path, another.path, tmp_path / "other"])
    in_use.release()
    another.release()


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(LocalError, match=r"Cannot keep data in .*: File exists; check who owns it\."):
        DataDirectory(tmp_path / "data")


def test_processes_of_a_crashed_owner_are_ended_and_no_others(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, OWNER_VARIABLE: str(tmp_path / name)},
        )
        for name in ("data", "data-of-others")
    ]
    for process in processes:
        assert process.stdout
        process.stdout.readline()  # the environment is its own only once it runs

    DataDirectory(tmp_path / "data").release()

    leftover, stranger = processes
    assert leftover.poll() is not None
    assert stranger.poll() is None
    for process in processes:
        process.communicate(b"\n")

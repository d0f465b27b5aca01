"""Child processes end when they should, and never outlive their parent."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from deploy.local.child import Child
from tests.support.deadline import PATIENCE

# Each prints a line when it is ready for the test.
_OBEDIENT = "import time; print('up', flush=True); time.sleep(600)"
_STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_OBEDIENT}"
_PARENT = f"""
import subprocess, sys
subprocess.Popen([sys.executable, '-c', {_OBEDIENT!r}], start_new_session=True)
{_OBEDIENT}
"""
_OWNER = """
import sys
from deploy.local.child import Child
child = Child([sys.executable, '-c', 'import time; time.sleep(600)'])
print(child.pid, flush=True)
child.wait()
"""


@contextmanager
def _running(code: str, directory: Path) -> Iterator[Child]:
    log = directory / "log"
    with Child([sys.executable, "-c", code], log=log) as child:
        while b"up" not in log.read_bytes():
            assert child.wait(0.01) is None
        yield child


def _ended(pid: int) -> bool:
    try:
        psutil.Process(pid).wait(PATIENCE)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_stop_ends_a_program_by_sigterm(tmp_path: Path) -> None:
    with _running(_OBEDIENT, tmp_path) as child:
        assert child.wait(0) is None
        child.stop()

        assert child.wait(0) == -15
        child.stop()  # once more changes nothing


def test_stop_ends_a_program_that_ignores_sigterm(tmp_path: Path) -> None:
    with _running(_STUBBORN, tmp_path) as child:
        child.stop(grace=0.1)

        assert child.wait(0) == -9


def test_stop_ends_what_the_program_started_even_in_a_session_of_its_own(tmp_path: Path) -> None:
    with _running(_PARENT, tmp_path) as child:
        grandchildren = psutil.Process(child.pid).children()
        child.stop()

        assert grandchildren
        assert all(_ended(grandchild.pid) for grandchild in grandchildren)


def test_kill_leaves_the_program_no_time(tmp_path: Path) -> None:
    with _running(_OBEDIENT, tmp_path) as child:
        child.kill()

        assert child.wait(0) == -9


def test_output_and_errors_are_appended_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    with Child(["sh", "-c", "echo out; echo err >&2"], log=log) as child:
        assert child.wait(PATIENCE) == 0

    assert log.read_text() == "before\nout\nerr\n"


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        Child(["/nowhere/to/be/found"])


def test_a_child_does_not_outlive_an_owner_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        pid = int(owner.stdout.readline())
        owner.kill()

    assert _ended(pid)

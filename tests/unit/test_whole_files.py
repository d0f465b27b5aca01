"""Files that are written as a whole: the journal's, reports and converted configurations."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.whole_files import written_beside


def test_a_file_is_there_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with written_beside(path, b"new", 0o600) as new:
        assert (path.read_text(), new.read_text()) == ("old", "new")
        new.replace(path)
    assert [(each, each.read_text()) for each in tmp_path.iterdir()] == [(path, "new")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["a" * 255, "漢" * 85])
def test_a_name_may_be_as_long_as_the_file_system_allows(name: str, tmp_path: Path) -> None:
    with written_beside(tmp_path / name, b"new", 0o600) as new:
        new.replace(tmp_path / name)
    assert (tmp_path / name).read_text() == "new"


def test_nothing_is_left_of_a_file_that_was_not_wanted(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), written_beside(tmp_path / "a", b"new", 0o600):
        raise FileExistsError
    assert not list(tmp_path.iterdir())

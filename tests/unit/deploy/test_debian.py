"""Installing Debian's package must not start anything."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.local import debian
from deploy.local.debian import services_kept_down
from deploy.local.errors import LocalError


def test_a_policy_forbids_starts_while_installing_and_goes_afterwards(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with services_kept_down(policy):
        assert "exit 101" in policy.read_text()
        assert policy.stat().st_mode & 0o777 == 0o755

    assert not policy.exists()


def test_a_policy_that_was_there_stays(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 104\n")
    with services_kept_down(policy):
        assert policy.read_text() == "#!/bin/sh\nexit 104\n"

    assert policy.read_text() == "#!/bin/sh\nexit 104\n"


def test_a_policy_that_a_killed_run_left_goes_too(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with services_kept_down(policy):
        left = policy.read_text()
    policy.write_text(left)
    with services_kept_down(policy):
        assert policy.exists()

    assert not policy.exists()


class _Apt:
    """Stands in for apt-cache and apt-get.

    Args:
        lists: what apt-cache knows before an update, and after it.
        gone: how many installations fail, because a file is gone from the mirror.
    """

    def __init__(self, *lists: set[str], gone: int = 0) -> None:
        self._lists = list(lists)
        self._gone = gone
        self.done: list[str] = []

    def known(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self._lists[0]), None)

    def apt(self, *arguments: str) -> None:
        self.done.append(" ".join(word for word in arguments if not word.startswith("--")))
        if arguments[0] == "update":
            self._lists = self._lists[1:] or self._lists
        elif self._gone:
            self._gone -= 1
            raise LocalError("404")


def _install(apt: _Apt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setattr(debian, "_first_known", apt.known)
    monkeypatch.setattr(debian, "_apt", apt.apt)
    monkeypatch.setattr(debian, "services_kept_down", lambda: services_kept_down(tmp_path / "policy"))
    debian.install_first(["best", "second"])
    return apt.done


def test_the_first_package_that_the_release_has_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _install(_Apt({"second"}), monkeypatch, tmp_path) == ["install second"]


def test_lists_are_fetched_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _install(_Apt(set(), {"best", "second"}), monkeypatch, tmp_path) == ["update", "install best"]


def test_lists_that_are_too_old_are_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _install(_Apt({"best"}, gone=1), monkeypatch, tmp_path) == ["install best", "update", "install best"]


def test_fresh_lists_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = _Apt(set(), {"best"}, gone=1)
    with pytest.raises(LocalError):
        _install(apt, monkeypatch, tmp_path)

    assert apt.done == ["update", "install best"]

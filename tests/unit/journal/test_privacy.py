"""What the journal says of people, and how it keeps made-up names from multiplying."""

from __future__ import annotations

import hmac
import os
import stat
import tracemalloc
from pathlib import Path

import pytest

from gateway.errors import JournalKeyError
from gateway.journal.privacy import DestinationNames, UserNames, peer_name, shown, users_key


@pytest.mark.parametrize(
    ("host", "how", "expected"),
    [
        ("192.0.2.77", "full", "192.0.2.77"),
        ("192.0.2.77", "prefix", "192.0.2.0/24"),
        ("2001:db8:1:2::3", "prefix", "2001:db8:1::/48"),
        ("fe80::1%eth0", "prefix", "fe80::/48"),
        ("somewhere", "prefix", None),
        ("192.0.2.77", "none", None),
    ],
)
def test_addresses_are_shown_as_configured(host: str, how: str, expected: str | None) -> None:
    assert peer_name(host, how) == expected


def test_a_hashed_login_is_the_same_every_time_and_cannot_be_told_without_the_key() -> None:
    key = b"k" * 32
    assert UserNames(key).name(b"alice") == hmac.digest(key, b"alice", "sha256")[:8].hex()
    assert UserNames(key).name(b"alice") != UserNames(b"x" * 32).name(b"alice")
    assert UserNames(None).name(b"alice") == "alice"


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    first = users_key(tmp_path, None)
    assert users_key(tmp_path, None) == first
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    given = tmp_path / "given"
    given.write_bytes(b"shared by several")
    assert users_key(tmp_path, given) == b"shared by several"


@pytest.mark.parametrize("key", [b"", b"short"])
def test_a_key_that_keeps_nothing_secret_is_refused(tmp_path: Path, key: bytes) -> None:
    for path, given in ((tmp_path / ".users.key", None), (tmp_path / "given", tmp_path / "given")):
        path.write_bytes(key)
        with pytest.raises(JournalKeyError, match=f"{path}, cannot be used: it has fewer than 16 bytes"):
            users_key(tmp_path, given)


def test_a_key_that_could_not_be_written_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            users_key(tmp_path, None)
    assert list(tmp_path.iterdir()) == []
    assert len(users_key(tmp_path, None)) == 32


@pytest.mark.parametrize(
    ("destination", "expected"),
    [
        ("/queue/orders", "/queue/orders"),
        ("/temp-queue/reply-17", "/temp-queue/*"),
        ("/reply-queue/amq.gen-JzTY20BRgKO-HjmUJj0wLg", "/reply-queue/*"),
        ("/queue/amq.gen-JzTY20", "/queue/amq.gen-*"),
        ("/amq/queue/stomp-subscription-abc", "/amq/queue/stomp-subscription-*"),
        ("/queue/replies-4711", "/queue/replies-*"),
        ("/queue/replies", "/queue/replies"),
        ("/topic/user.7.events", "/topic/user.*.events"),
        ("/topic/user.7.8.events", "/topic/user.*.events"),
        ("/topic/user.7.events.old", "/topic/user.7.events.old"),
        ("/exchange/amq.topic/a", "/exchange/amq.topic/a"),
    ],
)
def test_generated_parts_of_destinations_are_left_out(destination: str, expected: str) -> None:
    names = DestinationNames(("/queue/replies-*", "/topic/user.*.events"))
    assert names.name(destination.encode()) == expected


def test_distinct_destinations_are_bounded() -> None:
    names = DestinationNames(most=3)
    found = [names.name(b"/queue/%d" % number) for number in (1, 2, 3, 4, 5, 2)]
    assert found == ["/queue/1", "/queue/2", "/queue/3", "other", "other", "/queue/2"]


def test_destinations_that_never_come_again_take_no_memory() -> None:
    names = DestinationNames(most=10)
    tracemalloc.start()
    try:
        for number in range(30_000):
            names.name(b"/queue/%0300d" % number)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 6 << 20


def test_a_clients_text_is_bounded_and_always_text() -> None:
    assert shown(b"\xff\xfe") == "\ufffd\ufffd"
    assert len(shown(b"x" * 10_000)) == 300


def test_destinations_that_come_once_do_not_take_the_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names = DestinationNames()
    assert names.name(b"/topic/often") == "/topic/often"
    for number in range(10_000):
        names.name(b"/topic/%d" % number)
    monkeypatch.setattr(names, "_bounded", lambda destination: pytest.fail("it was not kept"))
    assert names.name(b"/topic/often") == "/topic/often"

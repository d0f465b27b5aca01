"""The client of the demonstration and its counts, on which the comparison with the pipeline rests."""

import fcntl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.demo import __main__ as program
from deploy.demo.agreement import Row, of_journal
from deploy.demo.client import Client, encoded
from deploy.demo.tally import Tally
from deploy.local.errors import LocalError
from gateway.journal.segments import SegmentName
from tests.support.journals import JournalMaker

_MESSAGE = b"MESSAGE\nsubscription:1\nredelivered:true\ncontent-length:3\n\na\0b\0\n"
_RECEIPT = b"RECEIPT\nreceipt-id:s1\n\n\0\n"


class _Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


def _client(monkeypatch: pytest.MonkeyPatch, version: str = "1.2") -> tuple[Client, Tally, _Transport]:
    tally, transport = Tally(), _Transport()
    client = Client(tally, version)
    monkeypatch.setattr(client, "_transport", transport, raising=False)
    return client, tally, transport


@pytest.mark.parametrize("cut", range(1, len(_MESSAGE + _RECEIPT)))
def test_frames_arrive_however_they_are_cut(cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    client, tally, _ = _client(monkeypatch)
    client.send("/queue/a", b"x", receipt=True)
    data = _MESSAGE + _RECEIPT
    client.data_received(data[:cut])
    client.data_received(data[cut:])

    assert [message.body for message in client.messages] == [b"a\0b"]
    assert client.unconfirmed == 0
    assert tally.frames == 3
    assert tally.counts == {"sends": 1, "deliveries": 1, "redeliveries": 1, "confirms": 1}


def test_a_rejected_message_is_no_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    client, tally, _ = _client(monkeypatch)
    client.send("/queue/a", b"x", receipt=True)
    client.data_received(b"ERROR\nmessage:Message rejected\nreceipt-id:s1\n\nno\0\n")

    assert client.unconfirmed == 0
    assert tally.counts == {"sends": 1, "rejections": 1, "errors": 1}
    assert not client.errors


async def test_an_error_in_place_of_an_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, _ = _client(monkeypatch)
    client.data_received(b"ERROR\nmessage:Bad command\n\nno\0\n")
    with pytest.raises(LocalError, match=r"an ERROR in place of a MESSAGE.*Bad command"):
        await client.message()


@pytest.mark.parametrize(
    ("version", "headers"),
    [("1.2", b"ACK\nid:T_1@@s@@1\n\n\0"), ("1.1", b"ACK\nmessage-id:m1\nsubscription:1\n\n\0")],
)
def test_acknowledgements_are_of_the_version(version: str, headers: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    client, tally, transport = _client(monkeypatch, version)
    client.data_received(b"MESSAGE\nsubscription:1\nmessage-id:m1\nack:T_1@@s@@1\n\n\0\n")
    client.ack(client.messages.popleft(), covers=5)

    assert transport.written == headers
    assert tally.counts["acks"] == 5


async def test_an_aborted_transaction_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    client, tally, _ = _client(monkeypatch)
    client.begin("t")
    client.send_in("t", "/queue/a", b"x")
    monkeypatch.setattr(client, "ask", _answered)
    await client.abort("t")
    client.begin("u")
    client.send_in("u", "/queue/a", b"x")
    await client.commit("u")

    assert tally.counts == {"sends": 1, "confirms": 1, "acks": 0}


async def _answered(*_arguments: object, **_headers: object) -> None:
    """As if the RECEIPT had come."""


def test_underscores_are_hyphens_and_bodies_have_their_length() -> None:
    assert encoded("SEND", {"auto_delete": "true"}, b"ab") == b"SEND\nauto-delete:true\ncontent-length:2\n\nab\0"


def _journal(directory: Path, *lines: dict[str, Any]) -> Path:
    day = directory / "d=2026-11-21"
    day.mkdir(parents=True)
    name = SegmentName("gateway", "n", "0" * 16, 1, 0)
    (day / str(name)).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    (day / name.while_open).write_bytes(b'{"e":"send","t":1,"q":9,"vh":"/"}\n')  # open segments are not counted
    return directory


def test_a_journal_is_counted_line_by_line_and_by_sums(tmp_path: Path) -> None:
    journal = _journal(
        tmp_path,
        {"e": "conn", "vh": "/"},
        {"e": "send", "vh": "/"},
        {"e": "conf", "vh": "/", "x": "rejected"},
        {"e": "dlv", "vh": "/", "r": True},
        {"e": "ack", "vh": "/", "n": 7},
        {"e": "unsub", "vh": "/", "n": 3},
        {"e": "err", "x": "bad-connect"},
        {"e": "stat", "vh": "o", "cnt": {"send": 5, "send_bytes": 50, "conf": 4, "requeue": 1, "discard": 2}},
    )

    assert of_journal(journal) == {
        ("/", "sessions"): 1,
        ("/", "sends"): 1,
        ("/", "rejections"): 1,
        ("/", "deliveries"): 1,
        ("/", "redeliveries"): 1,
        ("/", "acks"): 7,
        ("", "errors"): 1,
        ("o", "sends"): 5,
        ("o", "confirms"): 4,
        ("o", "nacks"): 3,
    }


def test_whole_journals_can_be_counted(tmp_path: Path) -> None:
    made = JournalMaker(tmp_path).write(3000)
    counted = of_journal(tmp_path)

    assert sum(n for (_, what), n in counted.items() if what == "sessions") == made.events["conn"]
    assert counted["", "errors"] == made.events["err"]


@pytest.mark.parametrize("counts", [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
def test_one_different_count_is_a_difference(counts: tuple[int, int, int]) -> None:
    assert not Row("/", "sends", *counts).agrees
    assert "DIFFERENT" in str(Row("/", "sends", *counts))
    assert Row("/", "sends", 1, 1, 1).agrees


@pytest.fixture
def demonstrated(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories in which a demonstration would have taken place."""
    directories: list[Path] = []

    def demonstrate(directory: Path, rounds: int, size: int, *, cluster: bool) -> int:
        directories.append(directory)
        return 0

    monkeypatch.setattr(program, "_interrupt_by_signals", lambda: None)
    monkeypatch.setattr(program, "_demonstrate", demonstrate)
    return directories


def test_what_an_earlier_demonstration_left_is_removed_and_nothing_else(
    tmp_path: Path, demonstrated: list[Path]
) -> None:
    for name in ("journal/d=2026-11-21", "lake/events", "spark/worker-1", "mine"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "report.html").touch()

    assert program.main(["--directory", str(tmp_path)]) == 0
    assert demonstrated == [tmp_path]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "mine"]


def test_two_demonstrations_do_not_share_a_directory(
    tmp_path: Path, demonstrated: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "journal").mkdir()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        assert program.main(["--directory", str(tmp_path)]) == 1
    assert f"demo: Another demonstration runs in {tmp_path}" in capsys.readouterr().err
    assert demonstrated == []
    assert (tmp_path / "journal").exists()


@pytest.mark.usefixtures("demonstrated")
def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()

    assert program.main(["--directory", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("demo: Cannot write")

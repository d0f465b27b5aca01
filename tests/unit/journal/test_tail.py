from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli.command_line import build_parser
from gateway.errors import ExitCode, UsageError
from gateway.journal import tail as tailing
from gateway.journal.reading import Follower, JournalEntry, Segment, UnreadableError, decode, list_segments
from gateway.journal.schema import ParsedLine
from gateway.journal.segments import SegmentName
from gateway.journal.tail import LineFilter, describe, last_entries
from tests.support.journals import SECOND, START, JournalMaker


def _parse(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["journal", "tail", *arguments])


def _run(*arguments: str | Path) -> ExitCode:
    options = _parse(*map(str, arguments))
    code = options.run(options)
    assert isinstance(code, ExitCode)
    return code


def _raw(directory: Path) -> list[str]:
    """All lines, by time, and by boot and number where that is equal."""
    found = []
    for segment in list_segments(directory).segments:
        lines = segment.finished.read_text().splitlines()
        found += [(json.loads(line)["t"], *segment.order[:3], json.loads(line)["q"], line) for line in lines]
    return [line for *_, line in sorted(found)]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    JournalMaker(tmp_path, seed=1, span=60 * SECOND).write(400, per_segment=70)
    JournalMaker(tmp_path, seed=2, node="node2", start=START + 20 * SECOND).write(200, per_segment=50)
    JournalMaker(tmp_path, seed=3, node="old", start=START - 86_400 * SECOND).write(200, per_segment=50)
    for segment in (segments := list_segments(tmp_path).segments):
        _put_in_order(segment, [other for other in segments if other.order[:3] == segment.order[:3]])
    return tmp_path


def _put_in_order(segment: Segment, boot: list[Segment]) -> None:
    """Let no line of a boot be earlier than the one before it, as a gateway writes them."""
    if segment is not boot[0]:
        return
    t = 0
    for each in boot:
        lines = [json.loads(line) for line in each.finished.read_text().splitlines()]
        for line in lines:
            line["t"] = t = max(t, line["t"])
        each.finished.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("number", [1, 7, 60, 300, 10_000])
def test_the_last_lines_are_the_last_by_time(journal: Path, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(journal, "-n", str(number), "--json") == ExitCode.OK
    found = capsys.readouterr().out.splitlines()
    expected = _raw(journal)[-number:]
    times = [json.loads(line)["t"] for line in found]
    assert times == [json.loads(line)["t"] for line in expected]
    inner = [line for line in expected if json.loads(line)["t"] > times[0]]
    assert set(inner) <= set(found)


def test_older_days_are_not_opened_for_it(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Segment] = []
    part = tailing._part

    def noted(segment: Segment, follower: Follower) -> tailing._SegmentPart | None:
        opened.append(segment)
        return part(segment, follower)

    monkeypatch.setattr(tailing, "_part", noted)
    for day in range(1, 9):
        JournalMaker(journal, seed=day + 50, start=START - (day + 10) * 86_400 * SECOND).write(50)
    last_entries(journal, 5, LineFilter(), Follower(journal))
    assert {segment.directory.name for segment in opened} == {"d=2026-11-21", "d=2026-11-20"}


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        (["--event", "send,err"], lambda line: line["e"] in ("send", "err")),
        (["--session", "3"], lambda line: line.get("c") == 3),
        (["--user", "app1"], lambda line: line.get("u") == "app1"),
        (["--destination", "/queue/d[12]"], lambda line: line.get("d") in ("/queue/d1", "/queue/d2")),
        (["--destination", "/topic/*", "--event", "dlv"], lambda line: line["e"] == "dlv" and "/topic/" in line["d"]),
    ],
)
def test_a_choice_of_lines(
    journal: Path, options: list[str], fits: Callable[[dict[str, str]], bool], capsys: pytest.CaptureFixture[str]
) -> None:
    _run(journal, "-n", "100000", "--json", *options)
    found = capsys.readouterr().out.splitlines()
    assert sorted(found) == sorted(line for line in _raw(journal) if fits(json.loads(line)))
    assert found


def test_bad_lines_are_shown_unless_something_else_is_asked_for(tmp_path: Path) -> None:
    day = tmp_path / "d=2026-11-21"
    day.mkdir()
    (day / str(SegmentName("gateway", "n", "0" * 16, 1, 0))).write_bytes(b'{"e":"close","t":5,"q":0}\njunk\n')

    def found(choice: LineFilter) -> list[bytes]:
        return [entry.raw for entry in last_entries(tmp_path, 10, choice, Follower(tmp_path))]

    assert len(found(LineFilter())) == 2
    assert found(LineFilter(events=frozenset({"bad"}))) == [b"junk"]
    assert found(LineFilter(user="x")) == []
    assert found(LineFilter(session=0)) == []


def test_an_event_that_does_not_exist_is_refused(journal: Path) -> None:
    with pytest.raises(UsageError, match="--event sned: there are open, close"):
        _run(journal, "--event", "send,sned")
    with pytest.raises(UsageError, match="--lines -1"):
        _run(journal, "-n", "-1")


def test_a_journal_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot read the journal"):
        _run(tmp_path / "none")


class StopError(Exception):
    pass


def test_following_goes_on_where_the_last_lines_ended(
    journal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    day = journal / "d=2026-11-21"
    name = SegmentName("gateway", "n", "0" * 16, 1, 0)
    t = START + 86_000 * SECOND
    lines = [json.dumps({"e": "use", "t": t + number, "q": number, "x": str(number)}) + "\n" for number in range(6)]
    path = day / name.while_open
    path.write_text("".join(lines[:2]) + lines[2][:10])

    def step(_: float) -> None:
        steps.pop(0)()

    def finish() -> None:
        path.write_text("".join(lines[:5]))
        path.rename(day / str(name))

    def stop() -> None:
        raise StopError

    steps = [
        lambda: path.write_text("".join(lines[:4])),
        finish,
        lambda: (day / str(SegmentName("gateway", "n", "0" * 16, 1, 1))).write_text(lines[5]),
        lambda: None,
        stop,
    ]
    monkeypatch.setattr(time, "sleep", step)
    with pytest.raises(StopError):
        _run(journal, "-n", "1", "-f", "--json")
    assert capsys.readouterr().out == "".join(lines[1:])


def test_following_from_nothing_shows_only_what_comes(
    journal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_: float) -> None:
        raise StopError

    monkeypatch.setattr(time, "sleep", stop)
    (journal / "d=2026-11-21" / SegmentName("gateway", "n", "0" * 16, 1, 0).while_open).write_text(
        '{"e":"close","t":1,"q":0}\n'
    )
    with pytest.raises(StopError):
        _run(journal, "-n", "0", "--follow")
    assert capsys.readouterr().out == ""


def test_lines_in_words_are_aligned_and_say_the_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    day = tmp_path / "d=2026-11-21"
    day.mkdir()
    t = START + 43_471 * SECOND
    lines = [
        {"e": "open", "t": t, "q": 0, "v": 1, "node": "n", "boot": "0" * 16, "pid": 7, "impl": "gateway",
         "gw": "1.0", "seg": 0},
        {"e": "send", "t": t + 123456, "q": 1, "c": 17, "vh": "/", "u": "app1", "d": "/queue/orders",
         "dk": "queue", "m": 1,
         "b": 256, "p": True, "rc": True},
        {"e": "conf", "t": t + 2 * 43_200 * SECOND, "q": 2, "c": 17, "vh": "/", "u": "app1", "d": "/queue/orders",
         "dk": "queue", "m": 1, "l": 3412},
    ]  # fmt: skip
    name = str(SegmentName("gateway", "n", "0" * 16, 1, 0))
    (day / name).write_text("".join(json.dumps(line) + "\n" for line in lines) + "ju\x1bnk\n")
    _run(tmp_path)
    first, opened, send, second, conf, bad = capsys.readouterr().out.splitlines()
    assert (first, second) == ("-- 2026-11-21 (UTC)", "-- 2026-11-22 (UTC)")
    assert send == "12:04:31.123456     #17  app1@/  SEND  /queue/orders 256 B persistent receipt"
    assert conf == "12:04:31.000000     #17  app1@/  CONF  /queue/orders message 1 in 3.41 ms"
    assert opened.endswith("  OPEN  segment 0 of boot 0000000000000000, gateway 1.0 on n, pid 7")
    assert "BAD   JSON is malformed" in bad
    assert r"ju\x1bnk" in bad


def test_long_values_do_not_spoil_the_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    day = tmp_path / "d=2026-11-21"
    day.mkdir()
    lines = [
        {"e": "close", "t": START, "q": 1, "c": 1, "vh": "/", "u": "u" * 100},
        {"e": "close", "t": START, "q": 2, "c": 2, "vh": "/", "u": "v"},
        {"e": "later", "t": START, "q": 3, "z": "z" * 5000},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + "j" * 5000 + "\n"
    (day / str(SegmentName("gateway", "n", "0" * 16, 1, 0))).write_text(text)
    _run(tmp_path)
    _, _, short, later, bad = capsys.readouterr().out.splitlines()
    assert short.index("CLOSE") < 60
    assert later.count("z") < 200
    assert 100 < bad.count("j") <= 201


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('"e":"close"', "the boot ended in good order"),
        ('"e":"drop","n":7', "7 events were not written"),
        ('"e":"conn","c":1,"ip":"192.0.2.1","tls":true,"ver":"1.2","hb":"0,5000","l":900',
         "STOMP 1.2 TLS from 192.0.2.1 in 900 us heart-beats 0,5000"),
        ('"e":"end","c":1,"x":"disconnect","f":{"frames_in":2,"bytes_in":50,"unacked":3,"us":2500000}',
         "disconnect after 2.5 s, 2 frames (50 B) in, 0 (0 B) out 3 unacknowledged"),
        ('"e":"use","x":"receipt","ver":"1.2"', "receipt STOMP 1.2"),
        ('"e":"sub","d":"/topic/a","s":"0","am":"client","pf":5,"ex":true,"sn":"s1"',
         "/topic/a id 0 durable as s1 ack client prefetch 5 exclusive"),
        ('"e":"unsub","d":"/topic/a","s":"0","x":"deleted","n":2', "/topic/a id 0 deleted 2 unacknowledged"),
        ('"e":"send","d":"/queue/a","tx":true,"w":4,"hv":{"k":"v"}', "/queue/a 0 B transaction k=v (stands for 4)"),
        ('"e":"conf","d":"/queue/a","m":1,"x":"rejected"', "/queue/a message 1 rejected"),
        ('"e":"dlv","d":"/queue/a","s":"1","m":3,"b":2048,"r":true', "/queue/a id 1 message 3 2 KiB redelivered"),
        ('"e":"dlv","d":"/queue/a","s":"1","m":3,"ql":1500', "/queue/a id 1 message 3 0 B published 1.5 ms before"),
        ('"e":"ack","d":"/queue/a","s":"1","m":3,"n":2,"l":3400', "/queue/a id 1 2 messages up to 3 in 3.4 ms"),
        ('"e":"nack","d":"/queue/a","s":"1","m":3,"x":"requeue"', "/queue/a id 1 message 3 requeue"),
        ('"e":"err","x":"not_found","ip":"192.0.2.9"', "not_found from 192.0.2.9"),
        ('"e":"blk","x":"window","l":1500000', "window for 1.5 s"),
        ('"e":"stat","d":"/queue/a","cnt":{"send":3,"send_bytes":3000},'
         '"h":{"conf:5":2,"conf:junk":1,"conf:' + "9" * 5000 + '":9}',
         "/queue/a send 3, send 2.93 KiB, conf p50 5 us, p99 5 us"),
        ('"e":"later","z":1', '{"t":1,"q":1,"e":"later","z":1}'),
    ],
)  # fmt: skip
def test_each_event_in_words(line: str, words: str, journal: Path) -> None:
    raw = ('{"t":1,"q":1,' + line + "}").encode()
    read = decode(raw)
    assert isinstance(read, ParsedLine)
    segment = list_segments(journal).segments[0]
    assert describe(JournalEntry(segment, raw, read, 1), read) == words


def test_any_time_can_be_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    day = tmp_path / "d=2026-11-21"
    day.mkdir()
    times = (-5, 1 << 62)
    text = "".join(json.dumps({"e": "close", "t": t, "q": 0}) + "\n" for t in times)
    (day / str(SegmentName("gateway", "n", "0" * 16, 1, 0))).write_text(text)
    _run(tmp_path)
    assert "-- 9999-12-31 (UTC)" in capsys.readouterr().out

"""A bounded run of the fuzzers, the same inputs each time; `make fuzz` runs them for longer, and guided by coverage."""

import asyncio
from pathlib import Path

import pytest

from tests.fuzz import findings, loop
from tests.fuzz.__main__ import main
from tests.fuzz.mutator import LONGEST
from tests.fuzz.rooms import ROOMS
from tests.fuzz.script import EVENTS, Event, read_script, write_script
from tests.fuzz.seeds import TRANSCRIPTS, recorded, seeds
from tests.fuzz.targets import TARGETS, starts
from tests.fuzz.violation import ViolationError

# Beyond the starting inputs; together some seconds.
RUNS = {
    "decoder": 1500, "session": 4000, "splitter": 4000, "properties": 10_000, "broker": 1000, "configuration": 500,
    "proxy": 5000, "handshake": 800, "conf": 200, "terms": 500,
}  # fmt: skip

# What each target goes through, by what an error there would look like.
PLACES = {
    "decoder": "gateway.stomp.decoder.Decoder.next_frame",
    "session": "gateway.session.session.Session.run",
    "splitter": "gateway.amqp.splitter.Splitter._data",
    "properties": "gateway.amqp.properties._PropertyReader._table",
    "broker": "gateway.amqp.splitter._read_return",
    "configuration": "gateway.config.loader.contradictions",
    "proxy": "gateway.server.listen.proxy_protocol._parse_binary",
    "handshake": "gateway.server.listen.websocket_handshake._answer",
    "conf": "gateway.migrate.rabbitmq_conf.effective_lines",
    "terms": "gateway.migrate.source_files._properties",
}

# Two frames, of which the first breaks a target that looks for it.
STREAM = b"\0CONNECT\n\n\0SEND\ndestination:/queue/q\n\nhello\0ACK\n\n\0"


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks_a_promise(target: str) -> None:
    pool = starts(target)
    assert pool
    assert target in ROOMS
    outcome = loop.run(target, pool, seed=20, runs=len(pool) + RUNS[target])
    for data, error in outcome.findings:
        small = findings.reduced(target, data, error)
        raise AssertionError(f"{small!r} breaks a promise") from findings.broken(target, small)
    assert outcome.runs == len(pool) + RUNS[target]


def test_receipts_of_sends_that_are_read_together_are_no_finding() -> None:
    sends = b"".join(b"SEND\ndestination:/queue/q\nreceipt:%d\n\nhello\0" % number for number in range(9))
    TARGETS["session"](b"\0CONNECT\nlogin:guest\npasscode:guest\n\n\0" + sends)


def test_a_finding_is_looked_for_in_every_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that catches everything would find nothing."""
    for target, place in PLACES.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, _raise)
            outcome = loop.run(target, starts(target), seed=1, runs=50)
        assert [type(error) for _, error in outcome.findings] == [ZeroDivisionError], target


def _raise(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def test_every_transcript_is_a_start() -> None:
    pool = seeds()
    said = [b"".join(step for step in read_script(data).steps if isinstance(step, bytes)) for data in pool]
    assert sum(data.startswith(b"CONNECT\n") for data in said) > len(pool) // 2
    assert any(b"COMMIT\n" in data for data in said)
    path = TRANSCRIPTS / "acknowledge" / "individual.stomp"
    assert write_script(0, asyncio.run(recorded(path))) in pool, "recorded once more it is the same"


def test_a_script_is_read_as_it_was_written() -> None:
    events = [Event(letter, number) for number, letter in enumerate(EVENTS)]
    steps: tuple[bytes | Event, ...] = (b"a\xff\xffb", *events, b"\0c", Event("m", 0xFF), b"\xff")
    assert read_script(write_script(3, steps)).steps == steps


def test_what_means_nothing_is_left_out_of_a_script() -> None:
    assert read_script(b"\x07a\xff?\x01b\xff").steps == (b"ab",)
    assert read_script(b"").steps == ()


def test_a_finding_is_made_small_kept_and_seen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(data: bytes) -> None:
        if b"SEND" in data:
            raise ViolationError("no SEND")

    monkeypatch.setitem(TARGETS, "session", breaks)
    monkeypatch.chdir(tmp_path)
    assert main(["--target", "session", "--engine", "mutation", "--seconds", "60"]) == 1
    said = capsys.readouterr().out
    (kept,) = (tmp_path / findings.DIRECTORY).iterdir()
    assert kept.read_bytes()[1:] == b"SEND"
    assert f"python -m tests.fuzz --target session {findings.DIRECTORY / kept.name}" in said
    assert main([str(kept)]) == 1
    monkeypatch.undo()
    assert main([str(kept)]) == 0


def test_inputs_stay_short() -> None:
    outcome = loop.run("decoder", [STREAM * 200, STREAM], seed=1, runs=300)
    assert outcome.inputs
    assert max(map(len, outcome.inputs)) <= LONGEST

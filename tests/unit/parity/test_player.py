"""A transcript passes if the server does as written, and fails otherwise; then the broker is cleaned up."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.parity.amqp_broker import BrokerLostError
from gateway.parity.broker_fixture import CleanupLog
from gateway.parity.play_state import Identity, MismatchError
from gateway.parity.player import play
from gateway.parity.steps import Side
from gateway.parity.stomp_peer import Received, ServerFrame, SilenceError
from gateway.parity.transcript import Transcript, parse_transcript
from tests.support.model_broker import ModelBroker
from tests.support.scripted_peer import ScriptedPeer

HEAD = "title: t\nrule: r\n\n"


def _transcript(steps: str, head: str = HEAD) -> Transcript:
    return parse_transcript(head + steps, Path("inline.stomp"))


async def check(transcript: Transcript, peer: ScriptedPeer, side: Side = "gateway") -> None:
    """Play without a broker, and raise MismatchError if the server does something else."""
    (await play(transcript, peer, None, side)).raise_for_mismatch()


REFUSAL = ServerFrame(b"ERROR", (b"message:Illegal command", b"content-length:2"), b"no")
EXPECTED = "C> SEND\n   destination:/topic/a\n\nS< ERROR\n   message:Illegal command\n\n   no\n"


async def test_a_server_that_does_as_written_passes() -> None:
    await check(_transcript(EXPECTED), ScriptedPeer(REFUSAL))


@pytest.mark.parametrize(
    ("steps", "difference"),
    [
        (EXPECTED.replace("S< ERROR", "S< RECEIPT"), "is not RECEIPT"),
        (EXPECTED.replace("   message:Illegal command\n", ""), "has the unexpected header message:Illegal command"),
        (EXPECTED.replace("Illegal", "Legal"), "lacks the header message:Legal command"),
        (EXPECTED.replace("   message", "   receipt-id:1\n   message"), "lacks the header receipt-id:1"),
        (EXPECTED.replace("   no\n", "   yes\n"), "has another body"),
        (EXPECTED.replace("   no\n", "   no{lf}\n"), "has another body"),
        (EXPECTED.replace("   message", "   content-length:3\n   message"), "lacks the header content-length:3"),
        (EXPECTED + "S< closed\n", "nothing more"),
        (EXPECTED + "S< ERROR\n   ...\n\n   {*}\n", "nothing more"),
        (
            EXPECTED.replace("S< ERROR\n   message:Illegal command\n\n   no", "S< closed"),
            "expected the connection",
        ),
        (EXPECTED.replace("Illegal command", "{a:digits}"), "lacks the header message:{a:digits}"),
        (EXPECTED.replace("Illegal command", "{*:words}command"), "lacks the header message:{*:words}command"),
        (EXPECTED.replace("S< ERROR", "in any order\nS< RECEIPT") + "in order\n", "expected, in any order"),
    ],
)
async def test_a_server_that_does_something_else_fails(steps: str, difference: str) -> None:
    with pytest.raises(MismatchError, match="inline") as failure:
        await check(_transcript(steps), ScriptedPeer(REFUSAL))
    assert difference in str(failure.value)


@pytest.mark.parametrize("message", ["{*:words}Illegal command", "Illegal {*:words}command"])
async def test_words_may_be_none(message: str) -> None:
    await check(_transcript(EXPECTED.replace("Illegal command", message)), ScriptedPeer(REFUSAL))


async def test_a_surplus_frame_fails_at_the_end() -> None:
    with pytest.raises(MismatchError, match="lacks the header message:Illegal command"):
        await check(_transcript(EXPECTED), ScriptedPeer(REFUSAL, ServerFrame(b"ERROR", (), b"")))


async def test_long_lines_are_shortened_in_errors_but_compared_in_full() -> None:
    long = "x" * 65536
    answer = ServerFrame(b"ERROR", (b"message:Illegal command", b"content-length:65536"), long.encode())
    expected = EXPECTED.replace("   no", "   {repeat:65536:x}")
    await check(_transcript(expected), ScriptedPeer(answer))
    with pytest.raises(MismatchError) as failure:
        await check(_transcript(expected.replace("x}", "x}y")), ScriptedPeer(answer))
    assert f"\n    {long[:200]}... (65536 characters)\n" in str(failure.value)
    assert f"{long[:200]}... (65537 characters)" in failure.value.problem
    assert "x" * 201 not in str(failure.value)


async def test_a_wrong_content_length_fails() -> None:
    answer = ServerFrame(b"ERROR", (b"message:Illegal command", b"content-length:7"), b"no")
    with pytest.raises(MismatchError, match="about a body of 2 bytes"):
        await check(_transcript(EXPECTED), ScriptedPeer(answer))


async def test_clients_use_the_identity_and_the_passcode_is_not_recorded() -> None:
    refusal = ServerFrame(b"ERROR", (b"message:Bad CONNECT", b"content-length:13"), b"no nice:\\user")
    heard = "C> CONNECT\n   login:{login}\n   passcode:{passcode}\n\nS< ERROR\n   ...\n\n   no {login}\n"
    peer = ScriptedPeer(refusal)
    result = await play(_transcript(heard), peer, None, "plugin", Identity("nice:\\user", "se:cret"))
    assert peer.heard.startswith(b"CONNECT\nlogin:nice\\c\\\\user\npasscode:se\\ccret\n\n\0")
    assert "cret" not in str(result.mismatch) + str(result.recording.events)


@pytest.mark.parametrize("broken_off", [True, False])
async def test_the_broker_is_cleaned_up_after_success_and_failure(broken_off: bool) -> None:
    broker = ModelBroker()
    steps = (
        "B> declare queue {run} durable\nB> declare exchange {run}-x fanout\nB> bind queue {run} to {run}-x with k\n"
    )
    wrong = EXPECTED.replace("Illegal", "Legal") if broken_off else EXPECTED
    result = await play(_transcript(steps + wrong), ScriptedPeer(REFUSAL), broker, "plugin")
    assert bool(result.mismatch) is broken_off
    run = result.recording.run
    assert await broker.count(run) is None
    await broker.declare_exchange(run + "-x", "direct", internal=False)  # refused if it still exists


class RememberingBroker(ModelBroker):
    """Remembers every queue that was declared."""

    def __init__(self) -> None:
        super().__init__()
        self.declared: list[str] = []
        self.deleting = asyncio.Event()

    async def declare_queue(self, name: str, *, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> None:
        self.declared.append(name)
        await super().declare_queue(name, durable=durable, auto_delete=auto_delete, arguments=arguments)

    async def delete_queue(self, name: str) -> None:
        self.deleting.set()
        await asyncio.sleep(0)  # a point at which the caller may be cancelled
        await super().delete_queue(name)


class LostBroker(ModelBroker):
    """Loses its connection at the first deletions."""

    def __init__(self, losses: int) -> None:
        super().__init__()
        self._losses = losses

    async def delete_queue(self, name: str) -> None:
        if self._losses:
            self._losses -= 1
            raise BrokerLostError("the connection to the broker is lost")
        await super().delete_queue(name)


@pytest.mark.parametrize(("losses", "is_left"), [(1, False), (1000, True)])
async def test_a_deletion_is_retried_and_what_is_left_is_logged(losses: int, is_left: bool) -> None:
    broker, log = LostBroker(losses), CleanupLog()
    transcript = _transcript("B> declare queue {run} durable\n" + EXPECTED)
    result = await play(transcript, ScriptedPeer(REFUSAL), broker, "plugin", cleanup_log=log)
    run = result.recording.run
    assert log.leftovers == ({f"queue {run}"} if is_left else set())
    assert (await broker.count(run) is not None) is is_left


async def test_the_broker_is_cleaned_up_after_cancellation() -> None:
    broker, asked = RememberingBroker(), asyncio.Event()

    class SilentPeer(ScriptedPeer):
        async def receive(self, _client: str) -> Received:
            asked.set()
            await asyncio.Event().wait()
            raise SilenceError

    transcript = _transcript("B> declare queue {run} durable\n" + EXPECTED)
    playing = asyncio.create_task(play(transcript, SilentPeer(), broker, "plugin"))
    await asked.wait()
    playing.cancel()
    await broker.deleting.wait()
    playing.cancel()  # during the clean-up
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert [await broker.count(name) for name in broker.declared] == [None]

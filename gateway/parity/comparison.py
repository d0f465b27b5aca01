"""Plays transcripts on the plugin and the gateway at the same time, and judges whether both did the same."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest

from gateway.parity.amqp_broker import Broker, BrokerLostError, BrokerRefusalError, finish
from gateway.parity.broker_fixture import CleanupLog
from gateway.parity.play_state import Identity
from gateway.parity.player import PlayResult, play
from gateway.parity.recording import EventGroup, normalised
from gateway.parity.steps import ORACLE, SIDES, Release, Side
from gateway.parity.stomp_peer import Address, SocketPeer
from gateway.parity.transcript import SETUPS, Setup, Transcript

_TIMEOUT = 10.0  # seconds: longer than any answer takes, but bearable if many transcripts fail
_SERVER_DELAY = 0.5  # seconds until a server has handled all frames of clients that are gone
_MAX_DELETIONS = 16  # at the same time


class Outcome(Enum):
    """How a transcript compares on the two servers, in the word that the report prints."""

    EQUAL = "equal"
    DEPARTURE = "departure"
    DIFFERENT = "DIFFERENT"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one transcript; remarks are paragraphs."""

    transcript: Transcript
    outcome: Outcome
    remarks: tuple[str, ...] = ()
    exchanges: tuple[list[EventGroup], list[EventGroup]] | None = None
    """What was said on the plugin and on the gateway, normalised; None if nothing was played."""


def judge(transcript: Transcript, plugin: PlayResult, gateway: PlayResult) -> Verdict:
    """Compare what one transcript gave on the two servers.

    The servers are equal if they said exactly the same: it is not enough that a wildcard accepts both. In a departure
    each server must do what the transcript says for it, and in the steps for both they must say the same. If the
    transcript names a departure that exists on other releases only, the servers must be equal on this one.
    """
    mismatches = [plugin.mismatch, gateway.mismatch]
    exchanges = normalised(plugin.recording), normalised(gateway.recording)
    outcome = Outcome.DIFFERENT
    remarks = tuple(
        f"the {side} goes otherwise than written in line {mismatch.line}:\n{mismatch.problem}"
        for side, mismatch in zip(SIDES, mismatches, strict=True)
        if mismatch
    )
    if transcript.expects_departure:
        if not any(mismatches):
            lines = transcript.lines_for_both
            if group := _first_difference(normalised(plugin.recording, lines), normalised(gateway.recording, lines)):
                remarks = (f"both go as written, but what they said in line {group.line} is not the same",)
            else:
                outcome = Outcome.DEPARTURE
    elif _first_difference(*exchanges) is None:
        if not any(mismatches):
            outcome = Outcome.EQUAL
        elif all(mismatch and mismatch.is_answer for mismatch in mismatches):
            outcome = Outcome.EQUAL
            line = min(mismatch.line for mismatch in mismatches if mismatch)
            remarks = (f"neither goes as written in line {line}; up to there both said the same",)
    elif not any(mismatches):
        remarks = ("both go as written, but what they said is not the same",)
    return Verdict(transcript, outcome, remarks, exchanges)


def _first_difference(left: Sequence[EventGroup], right: Sequence[EventGroup]) -> EventGroup | None:
    pairs = zip_longest(left, right)
    return next((one or other for one, other in pairs if not (one and other and one.matches(other))), None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Plays transcripts on two servers."""

    servers: Mapping[Side, Address]
    broker: Broker | None
    """The broker of both servers; None if it cannot be reached."""
    release: Release | None
    """The broker's; None if it is not known."""
    identity: Identity
    setups: Collection[Setup]
    """The setups that both servers are configured for."""
    jobs: int
    """How many transcripts to play at the same time."""
    cleanup_log: CleanupLog = field(default_factory=CleanupLog)

    async def run(
        self, transcripts: Sequence[Transcript], on_verdict: Callable[[Verdict], None], on_finished: Callable[[], None]
    ) -> None:
        """Play the transcripts, and delete what they made in the broker, also when this is cancelled.

        `on_verdict` gets the verdicts in the order of the transcripts; `on_finished` is called as soon as a transcript
        has been played. A BrokenPipeError that they raise ends the comparison.
        """
        free = asyncio.Semaphore(self.jobs)

        async def compare(transcript: Transcript) -> Verdict:
            async with free:
                verdict = await self._compare(transcript)
            on_finished()
            return verdict

        try:
            async with asyncio.TaskGroup() as group:
                for task in [group.create_task(compare(transcript)) for transcript in transcripts]:
                    on_verdict(await task)
        except ExceptionGroup as group:
            if isinstance(group.exceptions[0], BrokenPipeError):
                raise group.exceptions[0] from None
            raise
        finally:
            await finish(self._delete_queues_again())

    async def _delete_queues_again(self) -> None:
        """Delete late queues: the plugin declares them without waiting for the broker, perhaps after the clean-up."""
        broker = self.broker
        if broker is None:
            return
        await asyncio.sleep(_SERVER_DELAY)
        free = asyncio.Semaphore(_MAX_DELETIONS)

        async def delete(queue: str) -> None:
            async with free:
                # What cannot be deleted is in the log already.
                with suppress(BrokerRefusalError, BrokerLostError, OSError):
                    await broker.delete_queue(queue)

        await asyncio.gather(*map(delete, self.cleanup_log.deleted_queues))

    async def _compare(self, transcript: Transcript) -> Verdict:
        if reason := self._skip_reason(transcript):
            return Verdict(transcript, Outcome.SKIPPED, (reason,))
        # If the release is unknown, only transcripts that do not depend on it get here.
        transcript = transcript.for_release(self.release or ORACLE)
        async with asyncio.TaskGroup() as group:
            plugin, gateway = (group.create_task(self._play(transcript, side, side)) for side in SIDES)
        verdict = judge(transcript, plugin.result(), gateway.result())
        if verdict.outcome is Outcome.DIFFERENT and transcript.expects_departure and not plugin.result().mismatch:
            # A gateway may be configured not to depart, for example with the virtual host "*".
            same = await self._play(transcript, "gateway", "plugin")
            exchanges = normalised(plugin.result().recording), normalised(same.recording)
            if same.mismatch is None and _first_difference(*exchanges) is None:
                return Verdict(transcript, Outcome.EQUAL, ("this gateway does as the plugin does",), exchanges)
        return verdict

    async def _play(self, transcript: Transcript, server: Side, steps: Side) -> PlayResult:
        """Play what a transcript says for one side, on a server."""
        peer = SocketPeer(self.servers[server], _TIMEOUT)
        return await play(transcript, peer, self.broker, steps, self.identity, self.cleanup_log)

    def _skip_reason(self, transcript: Transcript) -> str | None:
        if transcript.setup not in self.setups:
            return f"needs {SETUPS[transcript.setup]} (--setup {transcript.setup})"
        if self.broker is None and transcript.uses_broker:
            return "looks at the broker, which cannot be reached over AMQP (--amqp)"
        if self.broker is None and transcript.leaves_queues:
            return "leaves queues behind, and the broker cannot be reached over AMQP to remove them (--amqp)"
        if self.release is None and transcript.depends_on_release:
            return "depends on the release of RabbitMQ, which neither the plugin nor the broker tells (--amqp)"
        return None

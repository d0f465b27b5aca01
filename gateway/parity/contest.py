"""Two servers that are asked the same, at the same time."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gateway.parity.broker import Broker, BrokerLostError, BrokerRefusalError
from gateway.parity.identity import Identity
from gateway.parity.player import Performance, perform
from gateway.parity.release import ORACLE, Release
from gateway.parity.script import SETUPS, Conversation, Setup, Side
from gateway.parity.shelter import to_the_end
from gateway.parity.verdict import Outcome, Verdict, judge
from gateway.parity.wire import Address, SocketPeer

_PATIENCE = 10.0  # seconds; more than any server waits before it acts, and few enough for many that fail
_LATE = 0.5  # seconds that a server may still be at what it was asked last
_AT_ONCE = 16  # deletions


@dataclass(frozen=True, slots=True)
class Contest:
    """The plugin and the gateway, and what is needed to ask them.

    Args:
        plugin: where the plugin listens.
        gateway: where the gateway listens.
        broker: the broker of both; None where it cannot be reached.
        release: of the broker; None where nothing tells it.
        identity: who the clients are.
        setups: what both servers are set up for.
        jobs: how many conversations go on at the same time, each on both servers.
        leftovers: what could not be removed from the broker, in words; filled while conversations are played.
    """

    plugin: Address
    gateway: Address
    broker: Broker | None
    release: Release | None
    identity: Identity
    setups: Collection[Setup]
    jobs: int
    leftovers: set[str] = field(default_factory=set)
    _deleted: set[str] = field(default_factory=set)

    async def run(
        self, conversations: Sequence[Conversation], tell: Callable[[Verdict], None], count: Callable[[], None]
    ) -> None:
        """Play all conversations.

        When this ends, also by cancellation, nothing of them is left in the broker but `leftovers`.

        Args:
            conversations: what to play.
            tell: called with each verdict, in the order of the conversations.
            count: called whenever a conversation is over, in whatever order.

        Raises:
            BrokenPipeError: `tell` or `count` did.
        """
        free = asyncio.Semaphore(self.jobs)

        async def judged(conversation: Conversation) -> Verdict:
            async with free:
                verdict = await self._verdict(conversation)
            count()
            return verdict

        try:
            async with asyncio.TaskGroup() as group:
                for task in [group.create_task(judged(conversation)) for conversation in conversations]:
                    tell(await task)
        except ExceptionGroup as group:
            if isinstance(group.exceptions[0], BrokenPipeError):
                raise group.exceptions[0] from None
            raise
        finally:
            await to_the_end(self._sweep())

    async def _sweep(self) -> None:
        """Delete all queues once more: the plugin declares without waiting, perhaps after all else is over."""
        broker = self.broker
        if broker is None:
            return
        await asyncio.sleep(_LATE)
        free = asyncio.Semaphore(_AT_ONCE)

        async def delete(queue: str) -> None:
            async with free:
                with suppress(BrokerRefusalError, BrokerLostError, OSError):  # told already, where it was there
                    await broker.delete_queue(queue)

        await asyncio.gather(*map(delete, self._deleted))

    async def _verdict(self, conversation: Conversation) -> Verdict:
        if obstacle := self._obstacle(conversation):
            return Verdict(conversation, Outcome.SKIPPED, (obstacle,))
        conversation = conversation.on(self.release or ORACLE)  # without a release, those that depend on none
        async with asyncio.TaskGroup() as group:
            plugin = group.create_task(self._perform(conversation, self.plugin, "plugin"))
            gateway = group.create_task(self._perform(conversation, self.gateway, "gateway"))
        return judge(conversation, plugin.result(), gateway.result())

    async def _perform(self, conversation: Conversation, address: Address, side: Side) -> Performance:
        return await perform(
            conversation,
            SocketPeer(address, _PATIENCE),
            self.broker,
            side,
            self.identity,
            self.leftovers,
            self._deleted,
        )

    def _obstacle(self, conversation: Conversation) -> str | None:
        """Say in words why a conversation cannot be played; None where it can."""
        if conversation.setup not in self.setups:
            return f"needs {SETUPS[conversation.setup]} (--setup {conversation.setup})"
        if self.broker is None and conversation.uses_broker:
            return "looks at the broker, which cannot be reached over AMQP (--amqp)"
        if self.broker is None and conversation.leaves_queues:
            return "leaves queues behind, and the broker cannot be reached over AMQP to remove them (--amqp)"
        if self.release is None and conversation.depends_on_release:
            return "depends on the release of RabbitMQ, which neither the plugin nor the broker tells (--amqp)"
        return None

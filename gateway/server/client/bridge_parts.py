"""The parts of one session's bridge. They are created when the session first needs a channel.

Many sessions only connect and stay idle, and so take less memory and time.
"""

from __future__ import annotations

from gateway.server.broker.broker_errors import UpstreamError
from gateway.server.client.bridge_context import BridgeContext
from gateway.server.client.consumers import Consumers
from gateway.server.client.consuming_channels import ConsumingChannels
from gateway.server.client.leaving_links import LeavingLinks
from gateway.server.client.lost_consumers import LostConsumers
from gateway.server.client.passing_refusals import PassingRefusals
from gateway.server.client.publishing_channel import PublishingChannel
from gateway.server.client.recovery import Recovery, Restorer
from gateway.server.client.session_queues import SessionQueues


class BridgeParts:
    """See `Bridge`."""

    __slots__ = ("channels", "consumers", "context", "leaving", "lost", "publishing", "queues", "recovery", "refusals")

    def __init__(self, context: BridgeContext) -> None:
        self.context = context
        channels = self.channels = ConsumingChannels(context)
        queues = self.queues = SessionQueues(context, channels)
        publishing = self.publishing = PublishingChannel(context, queues)
        lost = self.lost = LostConsumers(context, channels, queues)
        self.consumers = Consumers(context, channels, queues, lost)
        leaving = self.leaving = LeavingLinks(context, channels, publishing, queues)
        self.recovery = Recovery(Restorer(context, channels, queues, lost, publishing, leaving))
        self.refusals = PassingRefusals(context)

    @property
    def use_links(self) -> bool:
        """Whether the session has channels or work on its links."""
        return self.publishing.is_open or self.channels.has_any or self.queues.exclusive.has_queues

    def end(self) -> None:
        """Write the last messages, and stop all waiting, because the session has ended."""
        self.publishing.write_rest()
        self.recovery.stop()
        self.lost.give_up()
        self.publishing.give_up()
        self.leaving.give_up()
        self.channels.client_gone()

    async def close(self, *, counts: bool) -> None:
        """Close everything after ``end``, even if the broker refuses. ``counts``: see `ConsumingChannels.close`."""
        try:
            await self.close_channels(counts=counts)
        except UpstreamError:
            pass
        finally:
            await self.channels.pausable.close()

    async def close_channels(self, *, counts: bool) -> None:
        """Close all channels. Afterwards the broker has handled all publishes.

        ``counts``: see `ConsumingChannels.close`.

        Raises:
            UpstreamError: the link or the channel is lost, and perhaps also publishes.
        """
        self.queues.exclusive.start_closing()
        publishing = self.publishing.take()
        if publishing is not None:
            # Awaited below, while the other channels close.
            _ = publishing.start_closing()
        try:
            await self.channels.close_all(self.queues.exclusive.to_delete_with, counts=counts)
        finally:
            await self.queues.exclusive.delete()
        # Last, because during an alarm the broker does not answer on this link.
        await self.publishing.close(publishing)

    def forget(self) -> None:
        """Break the reference cycle of the parts. No work of the session is left."""
        del self.lost.restore

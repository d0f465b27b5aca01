"""What the broker has delivered on one channel and not heard of again, and what acknowledgements do to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pamqp import commands

from tests.support.playbook import amqp_frames


class UnknownTagError(AssertionError):
    """RabbitMQ closes the channel: PRECONDITION_FAILED - unknown delivery tag."""


@dataclass(slots=True)
class Unacked:
    """The account on the broker's side, kept by nothing but the AMQP frames that it is sent.

    ``waiting`` are the tags not settled, in order; ``acked``, ``requeued`` and ``discarded`` those that were, by how.
    """

    waiting: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    requeued: set[int] = field(default_factory=set)
    discarded: set[int] = field(default_factory=set)

    def apply(self, data: bytes) -> None:
        """Carry out acknowledgements as RabbitMQ does.

        Raises:
            UnknownTagError: one names a tag that is not waiting.
        """
        for _, found in amqp_frames(data):
            if isinstance(found, commands.Basic.Ack):
                self.acked |= self._take(found.delivery_tag, found.multiple)
            else:
                assert isinstance(found, commands.Basic.Nack | commands.Basic.Reject), found
                where = self.requeued if found.requeue else self.discarded
                where |= self._take(found.delivery_tag or 0, isinstance(found, commands.Basic.Nack) and found.multiple)

    def _take(self, tag: int, multiple: bool) -> set[int]:
        if multiple and tag == 0:
            taken, self.waiting = self.waiting, set()
            return taken
        if tag not in self.waiting:
            raise UnknownTagError(f"unknown delivery tag {tag}; {sorted(self.waiting)} are waiting")
        taken = {each for each in self.waiting if each <= tag} if multiple else {tag}
        self.waiting -= taken
        return taken

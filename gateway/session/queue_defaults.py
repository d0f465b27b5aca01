"""Arguments that an operator wants queues declared with, laid below those that a client asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.config.rules import QueueArguments
from gateway.session.arguments import Argument

TYPE: Final = "x-queue-type"
REPLICATED: Final = ("quorum", "stream")
"""Types of queues that must be durable, not exclusive and not auto-delete."""
_CLASSIC: Final = "classic"

# What every queue knows, and what a stream does: RabbitMQ refuses an argument that a queue's type does not know.
_COMMON: Final = frozenset(
    (
        "x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange",
        "x-dead-letter-routing-key", "x-single-active-consumer",
    )
)  # fmt: skip
_COMMON_TO_STREAMS: Final = frozenset(("x-max-length-bytes",))


def with_defaults(
    own: Mapping[str, Argument],
    defaults: tuple[QueueArguments, ...],
    canonical: tuple[bytes, ...],
    *,
    may_be_replicated: bool,
) -> Mapping[str, Argument]:
    """A client's own arguments, and below them those of the first entry that fits.

    A queue that becomes of another type than the entry means, because the client names one or because it cannot be a
    replicated queue, takes from the entry only what all types know. Otherwise the broker would refuse it.

    Args:
        own: the client's.
        defaults: the operator's, in order.
        canonical: the destination in all its spellings.
        may_be_replicated: whether the queue is durable, not exclusive and not auto-delete.
    """
    wanted = _first_that_fits(defaults, canonical)
    if not wanted:
        return own
    meant = wanted.get(TYPE, _CLASSIC)
    becomes = own.get(TYPE, meant)
    if becomes in REPLICATED and TYPE not in own and not may_be_replicated:
        becomes = _CLASSIC
    if becomes != meant:
        common = _COMMON_TO_STREAMS if becomes == "stream" else _COMMON
        wanted = {name: value for name, value in wanted.items() if name in common}
    return {**wanted, **own}


def _first_that_fits(defaults: tuple[QueueArguments, ...], canonical: tuple[bytes, ...]) -> Mapping[str, str | int]:
    for entry in defaults:
        if any(entry.destination.match(text) is not None for text in canonical):
            return entry.arguments
    return {}

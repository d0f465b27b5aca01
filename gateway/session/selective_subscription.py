"""Subscriptions with a selector: the gateway acknowledges messages that do not match, and the client never sees them.

Such a message has a delivery tag, so the numbers in message-ids have gaps. With ack:auto it is settled with the
messages around it. Otherwise it is settled in the same event loop iteration, so that it takes no room in the prefetch.
"""

from __future__ import annotations

from typing import ClassVar, Final
from weakref import WeakKeyDictionary

from gateway.amqp import properties as amqp
from gateway.amqp.codec import encode_ack
from gateway.errors import CodecError
from gateway.message_selectors.selector import Selector
from gateway.pieces import Body
from gateway.session import translate
from gateway.session.delivery_ledger import OUT_OF_ORDER, AckMode, DeliveryLedger
from gateway.session.message_headers import LARGEST_CACHED_BLOCK, RECEIPT_ENTRY, destination_of
from gateway.session.subscription import Subscription
from gateway.stomp.block_cache import BlockCache

_MOST_BYTES: Final = 100_000
# The memory of a cache entry in bytes besides its key, as measured.
_ENTRY: Final = 150


class SelectiveLedger(DeliveryLedger):
    """A `DeliveryLedger` for deliveries some of which are filtered out."""

    __slots__ = ("_unsettled_filtered",)

    def __init__(self, mode: AckMode) -> None:
        super().__init__(mode)
        # With ack:auto, the messages that were filtered out since everything was last settled.
        self._unsettled_filtered = 0

    @property
    def outstanding(self) -> int:
        """The number of deliveries to the client that are not settled."""
        return super().outstanding - self._unsettled_filtered

    def filter_out(self, tag: int, count: int) -> None:
        """Acknowledge ``count`` consecutive deliveries, from this tag on, that were filtered out.

        Raises CodecError if the tag is not the next one.
        """
        if tag != self.last_tag + 1:
            raise CodecError(OUT_OF_ORDER)
        self.last_tag = last = self.last_tag + count
        self.filtered += count
        if self._mode is AckMode.AUTO:
            # The basic.ack for all deliveries settles these, too.
            self._unsettled_filtered += count
        elif tag == self._settled_up_to + 1 and not self._unsettled_below:
            self._settled_up_to = self._pending_multiple = last
        else:
            for each in range(tag, last + 1):
                self._frames.append(encode_ack(self.channel, each, multiple=False))
                self._settle_one(each)

    def settle_delivered(self) -> bool:
        """See `DeliveryLedger.settle_delivered`."""
        is_settled = super().settle_delivered()
        if is_settled:
            self._unsettled_filtered = 0
        return is_settled

    def requeue_dropped(self) -> None:
        """See `DeliveryLedger.requeue_dropped`. Its nacks precede the acknowledgements of filtered messages."""
        if not self._dropped:
            return
        filtered = self.take_frames()
        super().requeue_dropped()
        self._unsettled_filtered = 0
        if filtered:
            self._frames.append(filtered)


# The results of each selector, by route and properties. All subscriptions with the same selector share them.
_VERDICTS: Final = WeakKeyDictionary[Selector, BlockCache[bool]]()


class Selection:
    """Applies a selector. ``is_selected`` is the result for the last message."""

    __slots__ = ("_selector", "_verdicts", "is_selected", "properties", "route")

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._verdicts = _verdicts_of(selector)
        self.is_selected = False
        # Those of the last message; empty if they are too large to keep.
        self.route = self.properties = b""

    def look(self, route: bytes, properties: bytes) -> None:
        """Apply the selector to a message. The result for the same route and properties is cached."""
        key = route + properties
        is_small = len(key) <= LARGEST_CACHED_BLOCK
        self.route, self.properties = (route, properties) if is_small else (b"", b"")
        known = self._verdicts.get(key)
        if known is None:
            headers = translate.shown_headers(amqp.decode(properties))
            known = self._selector.matches([(b"destination", destination_of(route)), *headers])
            if is_small and RECEIPT_ENTRY not in properties:
                self._verdicts.enter(key, known)
        self.is_selected = known


class SelectiveSubscription(Subscription):
    """A `Subscription` with a selector, which it applies to each message first."""

    __slots__ = ("selection",)

    selects: ClassVar[bool] = True

    _ledger_type: ClassVar[type[DeliveryLedger]] = SelectiveLedger

    ledger: SelectiveLedger
    selection: Selection

    def deliver(self, tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body) -> None:
        """See `Subscription.deliver`. HOT: once per message, or once for many similar ones."""
        selection = self.selection
        if route is not selection.route or properties is not selection.properties:
            if self.is_stream is not False:
                # A restored subscription continues after the last message, whether it matched or not.
                self._follow_stream(properties)
            selection.look(route, properties)
        if selection.is_selected:
            super().deliver(tag, redelivered, route, properties, body)
        else:
            self._filter_out(tag, 1)

    def deliver_alike(self, tag: int, bodies: list[bytes]) -> None:
        """See `Subscription.deliver_alike`. HOT: once for many messages."""
        if self.selection.is_selected:
            super().deliver_alike(tag, bodies)
        else:
            self._filter_out(tag, len(bodies))

    def _filter_out(self, tag: int, count: int) -> None:
        self.ledger.filter_out(tag, count)
        if self.mode is AckMode.AUTO:
            while self.ledger.last_tag > self._notify_above:
                self._note_auto_ack(self._notify_above + 1)
            return
        if not self._is_pending:
            self._is_pending = True
            self._auto_acks.subscriptions.append(self)
        self._auto_acks.is_urgent = True

    def settle_delivered(self) -> bool:
        """See `Subscription.settle_delivered`. Without ack:auto, only filtered messages are settled."""
        if self.mode is AckMode.AUTO:
            return super().settle_delivered()
        self._is_pending = False
        return True


def _verdicts_of(selector: Selector) -> BlockCache[bool]:
    verdicts = _VERDICTS.get(selector)
    if verdicts is None:
        verdicts = _VERDICTS[selector] = BlockCache[bool](_MOST_BYTES, _size_of_block)
    return verdicts


def _size_of_block(block: bytes) -> int:
    return _ENTRY + len(block)

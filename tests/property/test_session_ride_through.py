"""However often the link is lost: nothing is lost, each receipt comes once, and first deliveries keep their order.

A client talks to a pure session on the model of a broker. The broker goes away at any moment: with messages that it has
taken and not confirmed, with deliveries that are not settled, with an operation that it has not answered.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.parity.stomp_peer import ServerFrame
from gateway.session import ops
from gateway.session.context import State
from tests.support.model_broker import ModelBroker
from tests.support.playbook import stomp
from tests.support.session_peer import ModelBridge, SessionPeer


class _MuteBridge(ModelBridge):
    """May keep from the session what the broker says, until the link is lost with it."""

    is_mute = False

    def flush(self) -> bool:
        if not self.is_mute:
            return super().flush()
        session = self._session
        if self._publishing is not None:
            self._publishing.write(b"".join(session.publisher.output.take()))
        for subscription, settlements in session.subscriptions.take_settlements():
            if (channel := self._consuming.get(subscription)) is not None:
                channel.write(settlements)
        return False

    def lose_link(self, code: int = 320, text: str = "CONNECTION_FORCED - gone") -> None:
        self.is_mute = False
        # An operation that was asked for gets no answer.
        operation = self._session.take_operation()
        super().lose_link(code, text)
        if operation is not None and self._session.state is State.CONNECTED:
            self._session.handle(ops.OperationInterrupted(code, text))


class Riding(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.broker = ModelBroker()
        self.broker.declare("q", durable=True)
        self.peer = SessionPeer(self.broker)
        self.peer.say("C", stomp("CONNECT", "accept-version:1.2", "login:guest"))
        assert isinstance(self.peer.hear("C"), ServerFrame)
        client = self.peer._clients["C"]
        self.session = client.session
        client.bridge = self.bridge = _MuteBridge(client.session, self.broker)
        self.names = iter(range(1, 1_000_000))
        self.sent: list[str] = []
        self.wanted: set[str] = set()
        self.receipts: Counter[str] = Counter()
        # In the order of their first delivery.
        self.delivered: list[str] = []
        self.held: dict[str, str] = {}
        self.acknowledged: set[str] = set()
        self.is_subscribed = False
        # What may be in the queue twice, and the highest number of a delivery that was lost.
        self.doubled: set[str] = set()
        self.lost_up_to = 0

    def say(self, command: str, *headers: str, body: str = "") -> None:
        self.peer.say("C", stomp(command, *headers, body=body))
        self.listen()

    def listen(self) -> None:
        while (heard := self.peer.hear("C")) is not None:
            assert isinstance(heard, ServerFrame), heard
            headers = dict(line.decode().partition(":")[::2] for line in heard.headers)
            if heard.command == b"RECEIPT":
                self.receipts[headers["receipt-id"]] += 1
                continue
            assert heard.command == b"MESSAGE", heard
            body = heard.body.decode()
            assert body in self.sent
            assert body not in self.acknowledged - self.doubled, "a message comes again after its acknowledgement"
            self.held[headers["ack"]] = body
            if body not in self.delivered:
                self.delivered.append(body)

    def receipt(self) -> str:
        name = f"r{next(self.names)}"
        self.wanted.add(name)
        return name

    # What happens.

    @rule(receipt=st.booleans())
    def send(self, receipt: bool) -> None:
        body = f"m{next(self.names):04}"
        self.sent.append(body)
        self.say("SEND", "destination:/queue/q", *([f"receipt:{self.receipt()}"] if receipt else []), body=body)

    @rule(prefetch=st.integers(0, 4))
    def subscribe(self, prefetch: int) -> None:
        if not self.is_subscribed:
            self.is_subscribed = True
            headers = ("id:1", "destination:/queue/q", "ack:client-individual", f"prefetch-count:{prefetch}")
            self.say("SUBSCRIBE", *headers, f"receipt:{self.receipt()}")

    @rule(place=st.integers(0, 9))
    def acknowledge(self, place: int) -> None:
        if self.held:
            ack = sorted(self.held)[place % len(self.held)]
            body = self.held.pop(ack)
            is_current = int(ack.rpartition("@@")[2]) > self.lost_up_to and not self.bridge.is_mute
            self.say("ACK", f"id:{ack}", f"receipt:{self.receipt()}")
            if is_current:
                self.acknowledged.add(body)

    @rule()
    def fall_silent(self) -> None:
        """The broker takes what it gets; what it says does not arrive."""
        self.bridge.is_mute = True

    @rule()
    def lose_the_link(self) -> None:
        for *_, body, _ in self.session.confirms.messages:
            assert body is not None
            # The broker may have it already, and gets it again.
            self.doubled.add(bytes(body).decode())
        self.bridge.lose_link()
        self.lost_up_to = max((each.base for each in self.session.subscriptions.all), default=0)
        self.listen()

    # What must be true.

    @invariant()
    def nothing_comes_twice_that_may_not(self) -> None:
        assert all(count == 1 for count in self.receipts.values())
        assert self.receipts.keys() <= self.wanted

    @invariant()
    def first_deliveries_are_in_order(self) -> None:
        assert self.delivered == sorted(self.delivered)

    def teardown(self) -> None:
        if self.bridge.is_mute:
            self.bridge.lose_link()
        self.listen()
        assert self.receipts.keys() == self.wanted, "every receipt comes in the end"
        ready = {place.message.body.decode() for place in self.broker.queues["q"].ready}
        assert ready | set(self.held.values()) | set(self.delivered) >= set(self.sent), "every message is somewhere"
        self.peer.leave("C")


TestRiding = Riding.TestCase
TestRiding.settings = settings(stateful_step_count=40)

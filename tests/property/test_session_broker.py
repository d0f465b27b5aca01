"""Whatever clients do with the messages of a queue, in the end exactly those are gone that somebody acknowledged.

Two clients talk to pure sessions on the model of a broker, which is as strict as RabbitMQ about what it is sent. The
test keeps its own account, from nothing but what the clients say and hear.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.parity.stomp_peer import ServerFrame
from tests.support.model_broker import ModelBroker
from tests.support.playbook import stomp
from tests.support.session_peer import SessionPeer

CLIENTS = ("A", "B")
MODES = ("auto", "client", "client-individual")

clients = st.sampled_from(CLIENTS)
identifiers = st.sampled_from(["1", "2"])


@dataclass
class Held:
    """A message that a client has and did not settle."""

    ack: str
    body: str
    in_transaction: bool = False


@dataclass
class Client:
    """What a client knows of itself."""

    modes: dict[str, str] = field(default_factory=dict)  # of its subscriptions
    held: dict[str, list[Held]] = field(default_factory=dict)
    receipts: set[str] = field(default_factory=set)
    is_in_transaction: bool = False
    sends: list[str] = field(default_factory=list)
    acks: list[tuple[str, Held]] = field(default_factory=list)


class TwoClients(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.broker = ModelBroker()
        self.broker.declare("q", durable=True)
        self.peer = SessionPeer(self.broker)
        self.clients: dict[str, Client] = {}
        self.names = iter(range(1, 1_000_000))
        self.sent: set[str] = set()
        self.consumed: set[str] = set()
        for client in CLIENTS:
            self.connect(client)

    def connect(self, client: str) -> None:
        self.clients[client] = Client()
        self.peer.say(client, stomp("CONNECT", "accept-version:1.2", "login:guest"))
        heard = self.peer.hear(client)
        assert isinstance(heard, ServerFrame)
        assert heard.command == b"CONNECTED"

    def say(self, client: str, command: str, *headers: str, receipt: bool, body: str = "") -> None:
        wanted: tuple[str, ...] = ()
        if receipt:
            name = f"r{next(self.names)}"
            self.clients[client].receipts.add(name)
            wanted = (f"receipt:{name}",)
        self.peer.say(client, stomp(command, *headers, *wanted, body=body))
        for each in CLIENTS:
            self.listen(each)

    def listen(self, client: str) -> None:
        while (heard := self.peer.hear(client)) is not None:
            assert isinstance(heard, ServerFrame), heard
            headers = dict(line.decode().partition(":")[::2] for line in heard.headers)
            if heard.command == b"RECEIPT":
                self.clients[client].receipts.remove(headers["receipt-id"])
                continue
            assert heard.command == b"MESSAGE", heard
            body = heard.body.decode()
            assert body in self.sent, "a message that nobody sent"
            assert body not in self.consumed, "a message that was settled before"
            subscription = headers["subscription"]
            if self.clients[client].modes[subscription] == "auto":
                self.consumed.add(body)
            else:
                self.clients[client].held[subscription].append(Held(headers["ack"], body))

    # What clients do.

    @rule(client=clients, receipt=st.booleans())
    def send(self, client: str, receipt: bool) -> None:
        body = f"m{next(self.names)}"
        self.sent.add(body)
        self.say(client, "SEND", "destination:/queue/q", receipt=receipt, body=body)

    @rule(client=clients, identifier=identifiers, mode=st.sampled_from(MODES), prefetch=st.integers(0, 3))
    def subscribe(self, client: str, identifier: str, mode: str, prefetch: int) -> None:
        known = self.clients[client]
        if identifier not in known.modes:
            known.modes[identifier], known.held[identifier] = mode, []
            headers = (f"id:{identifier}", "destination:/queue/q", f"ack:{mode}", f"prefetch-count:{prefetch}")
            self.say(client, "SUBSCRIBE", *headers, receipt=True)

    @rule(client=clients, identifier=identifiers)
    def unsubscribe(self, client: str, identifier: str) -> None:
        known = self.clients[client]
        if identifier in known.modes and not any(held.in_transaction for held in known.held[identifier]):
            del known.held[identifier]
            self.say(client, "UNSUBSCRIBE", f"id:{identifier}", receipt=True)
            del known.modes[identifier]

    @rule(client=clients, identifier=identifiers, place=st.integers(0, 20), receipt=st.booleans(),
          settling=st.sampled_from(["ACK", "NACK", "NACK requeue:false"]))  # fmt: skip
    def settle(self, client: str, identifier: str, place: int, receipt: bool, settling: str) -> None:
        known = self.clients[client]
        held = known.held.get(identifier, [])
        if not held or held[place % len(held)].in_transaction:
            return
        chosen = held[place % len(held)]
        # Client mode is cumulative within its subscription.
        meant = held[: held.index(chosen) + 1] if known.modes[identifier] == "client" else [chosen]
        known.held[identifier] = [each for each in held if each not in meant]
        if settling != "NACK":
            self.consumed.update(each.body for each in meant)
        command, *headers = settling.split()
        self.say(client, command, f"id:{chosen.ack}", *headers, receipt=receipt)

    @rule(client=clients, way=st.sampled_from(["hang up", "DISCONNECT"]))
    def go_and_come_back(self, client: str, way: str) -> None:
        if way == "DISCONNECT":
            self.peer.say(client, stomp("DISCONNECT", "receipt:bye"))
            heard = self.peer.hear(client)
            assert isinstance(heard, ServerFrame)
            assert (heard.command, heard.headers) == (b"RECEIPT", (b"receipt-id:bye",))
        self.peer.leave(client)
        self.connect(client)
        for each in CLIENTS:
            self.listen(each)

    # Transactions.

    @rule(client=clients)
    def begin(self, client: str) -> None:
        known = self.clients[client]
        if not known.is_in_transaction:
            known.is_in_transaction = True
            self.say(client, "BEGIN", "transaction:t", receipt=True)

    @rule(client=clients)
    def send_in_transaction(self, client: str) -> None:
        if self.clients[client].is_in_transaction:
            body = f"t{next(self.names)}"
            self.clients[client].sends.append(body)
            self.say(client, "SEND", "destination:/queue/q", "transaction:t", receipt=False, body=body)

    @rule(client=clients, identifier=identifiers, place=st.integers(0, 20))
    def acknowledge_in_transaction(self, client: str, identifier: str, place: int) -> None:
        known = self.clients[client]
        held = known.held.get(identifier, [])
        if known.is_in_transaction and held and known.modes[identifier] == "client-individual":
            chosen = held[place % len(held)]
            if not chosen.in_transaction:
                chosen.in_transaction = True
                known.acks.append((identifier, chosen))
                self.say(client, "ACK", f"id:{chosen.ack}", "transaction:t", receipt=True)

    @rule(client=clients, command=st.sampled_from(["COMMIT", "ABORT"]))
    def end_transaction(self, client: str, command: str) -> None:
        known = self.clients[client]
        if not known.is_in_transaction:
            return
        if command == "COMMIT":
            self.sent.update(known.sends)
            self.consumed.update(held.body for _, held in known.acks)
            for identifier, held in known.acks:
                known.held[identifier].remove(held)
        for _, held in known.acks:
            held.in_transaction = False
        known.is_in_transaction, known.sends, known.acks = False, [], []
        self.say(client, command, "transaction:t", receipt=True)

    # What must be true.

    @invariant()
    def every_receipt_came(self) -> None:
        assert [client.receipts for client in self.clients.values()] == [set(), set()]

    @invariant()
    def every_message_is_somewhere(self) -> None:
        ready = [place.message.body.decode() for place in self.broker.queues["q"].ready]
        held = [each.body for client in self.clients.values() for some in client.held.values() for each in some]
        assert sorted([*ready, *held, *self.consumed]) == sorted(self.sent)

    def teardown(self) -> None:
        self.peer.leave("A")
        self.listen("B")  # who gets what A gave back
        self.peer.leave("B")
        left = [place.message.body.decode() for place in self.broker.queues["q"].ready]
        assert sorted(left) == sorted(self.sent - self.consumed)


TestTwoClients = TwoClients.TestCase
TestTwoClients.settings = settings(stateful_step_count=40)

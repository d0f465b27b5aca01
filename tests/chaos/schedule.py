"""What one run does: the clients, what they send, and the faults with their moments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.support.chaos import Direction


class Transport(Enum):
    """How a client speaks to the gateway: our own client over TCP, TLS or WebSocket, or stomp.py."""

    TCP = "tcp"
    TLS = "tls"
    WEBSOCKET = "websocket"
    STOMP_PY = "stomp.py"


class Receipts(Enum):
    """Which of its messages a producer asks a receipt for."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


class Ack(Enum):
    """The ``ack`` header of SUBSCRIBE."""

    AUTO = "auto"
    CLIENT = "client"
    INDIVIDUAL = "client-individual"


class Kind(Enum):
    """What a destination is: a queue, classic or quorum, or a stream; a topic with durable or transient subscriptions.

    Each consumer of a stream, or with a transient subscription, is to get all messages that are sent meanwhile.
    """

    QUEUE = "queue"
    QUORUM = "quorum"
    DURABLE = "durable"
    TOPIC = "topic"
    STREAM = "stream"


FOR_EACH: Final = frozenset({Kind.TOPIC, Kind.STREAM})
"""Where each consumer gets its own messages, and only while it is subscribed."""


@dataclass(frozen=True)
class Place:
    """A destination. All consumers of a place have the same ack mode, because the promises depend on it.

    With ``declared`` the gateway itself declares a quorum queue or a stream, as it does a classic queue.
    """

    name: str
    kind: Kind
    ack: Ack
    declared: bool = False

    @property
    def is_declared(self) -> bool:
        """Whether the gateway declares the queue, so that a SEND brings it back if it was deleted."""
        return self.declared or self.kind is Kind.QUEUE

    @property
    def destination(self) -> str:
        """As a STOMP header."""
        if self.kind in (Kind.DURABLE, Kind.TOPIC):
            return f"/topic/{self.name}"
        return f"/queue/{self.name}" if self.is_declared else f"/amq/queue/{self.name}"


@dataclass(frozen=True)
class ProducerPlan:
    """A client that sends.

    ``units`` are transactions of ``unit_size`` messages, or single messages if that is 0. ``persistent`` is the share
    of persistent messages. ``window`` bounds the units without an answer. The client sleeps ``pace`` seconds after
    each burst. ``requests`` asks for a reply to each message. After ``stays`` units it leaves in good order and comes
    back; 0 for never.
    """

    name: str
    transport: Transport
    places: tuple[str, ...]
    units: int
    unit_size: int
    receipts: Receipts
    persistent: float
    sizes: tuple[int, int]
    window: int
    burst: int
    pace: float
    requests: bool = False
    stays: int = 0


@dataclass(frozen=True)
class ConsumerPlan:
    """A client that subscribes to one place.

    It acknowledges every ``batch`` messages, in a transaction if ``transactional``. Each ``nacks``-th message is
    refused once; 0 for none. ``leaves`` is the moment at which it goes in good order and comes back, and ``pause`` is
    the time that it takes for each message. ``exclusive`` is for the queue of a transient subscription.
    """

    name: str
    transport: Transport
    version: str
    place: str
    queue: str
    prefetch: int
    batch: int
    transactional: bool
    nacks: int
    pause: float
    leaves: float | None
    exclusive: bool = False


class Harm(Enum):
    """The kinds of faults."""

    LINK_STALL = "link stalls"
    LINK_DELAY = "link is slow"
    LINK_CUT = "link is cut in the middle"
    LINK_HALF_CLOSE = "link is half closed"
    LINK_RESET = "link is reset"
    LINK_FREEZE = "link freezes"
    LINK_SILENCE = "broker accepts and is silent"
    LINK_FLAP = "link breaks again and again"
    LINK_COMMIT_CUT = "link is cut within a COMMIT"
    CLOSE_CONNECTIONS = "operator closes the links"
    ALARM = "broker has an alarm"
    VHOST_DELETION = "virtual host is deleted and made again"
    NODE_KILL = "node is killed"
    NODE_STOP = "node is stopped in good order"
    NODE_FREEZE = "node stands still"
    NODE_CUT = "node is cut off"
    NODE_DRAIN = "node is drained and revived"
    NODE_ALARM = "node has an alarm"
    ROLLING_RESTART = "all nodes are restarted, one by one"
    ALL_DOWN = "all nodes are down, and up in another order"
    LEADERS_MOVE = "leaders are moved"
    QUEUE_DELETION = "queue is deleted and made again"
    PERMISSION_LOSS = "permissions are taken for a while"
    BROKER_KILL = "broker is killed"
    BROKER_RESTART = "broker is restarted"
    GATEWAY_KILL = "gateway is killed"
    GATEWAY_RESTART = "gateway is restarted"
    WORKER_KILL = "worker is killed"
    CLIENT_STALL = "client stalls"
    CLIENT_DELAY = "client is slow"
    CLIENT_CUT = "client is cut in the middle"
    CLIENT_COMMIT_CUT = "client is cut within a COMMIT"
    CLIENT_HALF_CLOSE = "client is half closed"
    CLIENT_RESET = "client is reset"


NODE_KILLS: Final = frozenset({Harm.NODE_KILL, Harm.ALL_DOWN})
NODE_ENDS: Final = NODE_KILLS | {Harm.NODE_STOP, Harm.NODE_FREEZE, Harm.NODE_CUT, Harm.ROLLING_RESTART}
"""A node ends, or pauses because it sees no majority; then its classic queues are away, and what they had in memory.

Before ``ALL_DOWN`` the nodes are killed.
"""
NODE_SILENCES: Final = frozenset({Harm.NODE_FREEZE, Harm.NODE_CUT})
OF_ALL_NODES: Final = frozenset({Harm.ROLLING_RESTART, Harm.ALL_DOWN})
OF_NODES: Final = NODE_ENDS | {Harm.NODE_DRAIN, Harm.NODE_ALARM, Harm.LEADERS_MOVE}
OF_CLUSTERS: Final = OF_NODES | {Harm.QUEUE_DELETION, Harm.PERMISSION_LOSS}
LINK_LOSSES: Final = frozenset(
    {
        Harm.LINK_CUT,
        Harm.LINK_HALF_CLOSE,
        Harm.LINK_RESET,
        Harm.LINK_FREEZE,
        Harm.LINK_SILENCE,
        Harm.LINK_FLAP,
        Harm.LINK_COMMIT_CUT,
        Harm.CLOSE_CONNECTIONS,
        *NODE_ENDS,
        Harm.NODE_DRAIN,
        Harm.LEADERS_MOVE,
    }
)
"""After these the gateway has lost links, or consumers and confirms at another node.

The broker, or the others of its cluster, runs on.
"""

BROKER_ENDS: Final = frozenset({Harm.BROKER_KILL, Harm.BROKER_RESTART})
GATEWAY_KILLS: Final = frozenset({Harm.GATEWAY_KILL, Harm.WORKER_KILL})
GATEWAY_ENDS: Final = GATEWAY_KILLS | {Harm.GATEWAY_RESTART}
CLIENT_LOSSES: Final = frozenset({Harm.CLIENT_CUT, Harm.CLIENT_COMMIT_CUT, Harm.CLIENT_HALF_CLOSE, Harm.CLIENT_RESET})
OF_CLIENTS: Final = CLIENT_LOSSES | {Harm.CLIENT_STALL, Harm.CLIENT_DELAY}
COMMIT_CUTS: Final = frozenset({Harm.CLIENT_COMMIT_CUT, Harm.LINK_COMMIT_CUT})
"""These wait until their client writes a COMMIT."""


class Target(Enum):
    """Which node a fault hits: the one with most of the gateway's links, with a classic queue, or with a leader."""

    LINK = "link"
    CLASSIC = "classic queue"
    LEADER = "leader of a quorum queue or stream"


@dataclass(frozen=True)
class FaultPlan:
    """One fault: at ``at`` seconds, for ``lasts`` seconds; ``client`` is whom it hits, or whose COMMIT it waits for.

    ``size`` is of what is cut, or says which worker is killed, or which node of several; ``target`` says what the node
    has, and ``queue`` what is deleted.
    """

    at: float
    harm: Harm
    lasts: float = 0.0
    direction: Direction = Direction.UP
    size: int = 0
    client: str = ""
    target: Target | None = None
    queue: str = ""


class Variant(Enum):
    """The configuration of the gateway."""

    SHARED = "shared"
    DEDICATED = "dedicated"
    HEARTBEAT = "heartbeat"
    WORKERS = "workers"


@dataclass(frozen=True)
class Schedule:
    """Everything that a run does."""

    seed: int
    variant: Variant
    places: tuple[Place, ...]
    producers: tuple[ProducerPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    faults: tuple[FaultPlan, ...]

    def place(self, name: str) -> Place:
        """The place of a name."""
        return next(place for place in self.places if place.name == name)

    def queues(self, place: str) -> set[str]:
        """The queues that get a copy of each message for a place, and that outlive their consumers."""
        match self.place(place).kind:
            case Kind.QUEUE | Kind.QUORUM:
                return {place}
            case Kind.DURABLE:
                return set(SUBSCRIPTIONS[place])
            case Kind.TOPIC | Kind.STREAM:
                return set()


PROBE: Final = ProducerPlan(
    name="probe", transport=Transport.TCP, places=(), units=0, unit_size=0, receipts=Receipts.ALL, persistent=1.0,
    sizes=(10, 20), window=1, burst=1, pace=0.0,
)  # fmt: skip
"""The client that shows at the end that every consumer is still served."""

QUEUES: Final = ("chaos-queue-0", "chaos-queue-1", "chaos-queue-2")
QUORUMS: Final = ("chaos-quorum-0",)
STREAMS: Final = ("chaos-stream-0",)
DURABLES: Final = ("chaos.durable.0", "chaos.durable.1")
TOPICS: Final = ("chaos.topic.0", "chaos.topic.1")
SUBSCRIPTIONS: Final = {place: tuple(f"chaos-sub-{place[-1]}-{each}" for each in "ab") for place in DURABLES}
"""The queues of the durable subscriptions, by topic."""
QUORUM_SUBSCRIPTIONS: Final = SUBSCRIPTIONS[DURABLES[0]]
"""Those that are quorum queues in a cluster."""
CLASSIC: Final = (*QUEUES, *SUBSCRIPTIONS[DURABLES[1]])
"""The queues that are classic ones in a cluster, too, and so on one node each."""

"""What one run does, drawn from its seed: the clients, what they send, and the faults with their moments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.support.chaos import Direction


class Transport(Enum):
    """How a client speaks to the gateway: our own client over TCP or WebSocket, or stomp.py."""

    TCP = "tcp"
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
    """What a destination is: a queue, classic or quorum; a topic with durable subscriptions, or with transient ones."""

    QUEUE = "queue"
    QUORUM = "quorum"
    DURABLE = "durable"
    TOPIC = "topic"


@dataclass(frozen=True)
class Place:
    """A destination. All consumers of a place have the same ack mode, because the promises depend on it."""

    name: str
    kind: Kind
    ack: Ack

    @property
    def destination(self) -> str:
        """As a STOMP header."""
        prefix = {Kind.QUEUE: "/queue/", Kind.QUORUM: "/amq/queue/"}.get(self.kind, "/topic/")
        return prefix + self.name


@dataclass(frozen=True)
class ProducerPlan:
    """A client that sends.

    ``units`` are transactions of ``unit_size`` messages, or single messages if that is 0. ``persistent`` is the share
    of persistent messages. ``window`` bounds the units without an answer. The client sleeps ``pace`` seconds after
    each burst. ``requests`` asks for a reply to each message.
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


@dataclass(frozen=True)
class ConsumerPlan:
    """A client that subscribes to one place.

    It acknowledges every ``batch`` messages, in a transaction if ``transactional``. Each ``nacks``-th message is
    refused once; 0 for none. ``leaves`` is the moment at which it goes in good order and comes back, and ``pause`` is
    the time that it takes for each message.
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
    CLOSE_CONNECTIONS = "operator closes the links"
    BROKER_KILL = "broker is killed"
    BROKER_RESTART = "broker is restarted"
    GATEWAY_KILL = "gateway is killed"
    GATEWAY_RESTART = "gateway is restarted"
    CLIENT_STALL = "client stalls"
    CLIENT_DELAY = "client is slow"
    CLIENT_CUT = "client is cut in the middle"
    CLIENT_HALF_CLOSE = "client is half closed"
    CLIENT_RESET = "client is reset"


LINK_LOSSES: Final = frozenset(
    {
        Harm.LINK_CUT,
        Harm.LINK_HALF_CLOSE,
        Harm.LINK_RESET,
        Harm.LINK_FREEZE,
        Harm.LINK_SILENCE,
        Harm.LINK_FLAP,
        Harm.CLOSE_CONNECTIONS,
    }
)
"""After these the gateway has lost links, and the broker runs on."""

BROKER_ENDS: Final = frozenset({Harm.BROKER_KILL, Harm.BROKER_RESTART})
GATEWAY_ENDS: Final = frozenset({Harm.GATEWAY_KILL, Harm.GATEWAY_RESTART})
CLIENT_LOSSES: Final = frozenset({Harm.CLIENT_CUT, Harm.CLIENT_HALF_CLOSE, Harm.CLIENT_RESET})


@dataclass(frozen=True)
class FaultPlan:
    """One fault: at ``at`` seconds, for ``lasts`` seconds; ``client`` is whom it hits, if it hits one."""

    at: float
    harm: Harm
    lasts: float = 0.0
    direction: Direction = Direction.UP
    size: int = 0
    client: str = ""


class Variant(Enum):
    """The configuration of the gateway."""

    SHARED = "shared"
    DEDICATED = "dedicated"
    HEARTBEAT = "heartbeat"


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
            case Kind.TOPIC:
                return set()


PROBE: Final = ProducerPlan(
    name="probe", transport=Transport.TCP, places=(), units=0, unit_size=0, receipts=Receipts.ALL, persistent=1.0,
    sizes=(10, 20), window=1, burst=1, pace=0.0,
)  # fmt: skip
"""The client that shows at the end that every consumer is still served."""

QUEUES: Final = ("chaos-queue-0", "chaos-queue-1", "chaos-queue-2")
QUORUMS: Final = ("chaos-quorum-0",)
DURABLES: Final = ("chaos.durable.0", "chaos.durable.1")
TOPICS: Final = ("chaos.topic.0", "chaos.topic.1")
SUBSCRIPTIONS: Final = {place: tuple(f"chaos-sub-{place[-1]}-{each}" for each in "ab") for place in DURABLES}
"""The queues of the durable subscriptions, by topic."""

_TOGETHER: Final = 0.25
"""The share of the heavy faults of the broker in which the gateway ends, too."""

_LASTS: Final = 1.6
"""Seconds in which faults begin; the producers send a little longer."""

_LINK_HARMS: Final = (
    Harm.LINK_STALL,
    Harm.LINK_DELAY,
    Harm.LINK_CUT,
    Harm.LINK_HALF_CLOSE,
    Harm.LINK_RESET,
    Harm.LINK_FLAP,
    Harm.CLOSE_CONNECTIONS,
)
_CLIENT_HARMS: Final = (
    Harm.CLIENT_STALL, Harm.CLIENT_DELAY, Harm.CLIENT_CUT, Harm.CLIENT_HALF_CLOSE, Harm.CLIENT_RESET,
)  # fmt: skip
_HEAVY: Final = {
    Harm.BROKER_KILL: 0.08, Harm.BROKER_RESTART: 0.04, Harm.GATEWAY_KILL: 0.14, Harm.GATEWAY_RESTART: 0.08,
    Harm.LINK_FREEZE: 0.05, Harm.LINK_SILENCE: 0.07,
}  # fmt: skip
"""Faults that take seconds, and in which share of the runs they come."""


def drawn(seed: int, only: Harm | None = None) -> Schedule:
    """The schedule of a seed.

    Args:
        seed: any number.
        only: a fault to inject in place of those that would be drawn.
    """
    chance = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    places = _places(chance)
    consumers = [plan for place in places for plan in _consumers(chance, place)]
    producers = [_producer(chance, f"p{number}", places) for number in range(chance.randint(2, 4))]
    heavy = _heavy(chance) if only is None else [only]
    variant = chance.choices((Variant.SHARED, Variant.DEDICATED), (3, 1))[0]
    if Harm.LINK_FREEZE in heavy:
        variant = Variant.HEARTBEAT
    clients = [each.name for each in producers] + [each.name for each in consumers]
    faults = _faults(chance, heavy, clients, only)
    return Schedule(seed, variant, places, tuple(producers), tuple(consumers), tuple(faults))


def _places(chance: random.Random) -> tuple[Place, ...]:
    acks = (Ack.AUTO, Ack.CLIENT, Ack.INDIVIDUAL)
    queues = chance.sample(QUEUES, chance.randint(1, 3))
    places = [Place(name, Kind.QUEUE, chance.choice(acks)) for name in queues]
    for names, kind in ((DURABLES, Kind.DURABLE), (TOPICS, Kind.TOPIC), (QUORUMS, Kind.QUORUM)):
        if chance.random() < (0.3 if kind is Kind.QUORUM else 0.6):
            places.append(Place(chance.choice(names), kind, chance.choice(acks)))
    return tuple(places)


def _consumers(chance: random.Random, place: Place) -> list[ConsumerPlan]:
    count = chance.randint(1, 2)
    queues = {
        Kind.QUEUE: [place.name] * count,
        Kind.QUORUM: [place.name] * count,
        Kind.DURABLE: list(SUBSCRIPTIONS.get(place.name, ())[:count]),
        Kind.TOPIC: [f"{place.name} for {number}" for number in range(count)],
    }[place.kind]
    plans = []
    for number, queue in enumerate(queues):
        prefetch = 0 if place.ack is Ack.AUTO else chance.choice((0, 1, 10, 100))
        transport, version = _transport(chance)
        plans.append(
            ConsumerPlan(
                name=f"c-{place.name}-{number}",
                transport=transport,
                version=version,
                place=place.name,
                queue=queue,
                prefetch=prefetch,
                batch=1 if place.ack is Ack.INDIVIDUAL else min(prefetch or 100, chance.choice((1, 5, 25))),
                transactional=place.ack is not Ack.AUTO and chance.random() < 0.2,
                nacks=chance.choice((0, 7)) if place.ack is Ack.INDIVIDUAL else 0,
                pause=chance.choice((0.0, 0.0, 0.0, 0.002)),
                leaves=chance.uniform(0.3, _LASTS) if chance.random() < 0.2 else None,
            )
        )
    return plans


def _transport(chance: random.Random) -> tuple[Transport, str]:
    transport = chance.choices((Transport.TCP, Transport.WEBSOCKET, Transport.STOMP_PY), (6, 3, 2))[0]
    version = "1.2" if transport is Transport.STOMP_PY else chance.choice(("1.0", "1.1", "1.2", "1.2"))
    return transport, version


def _producer(chance: random.Random, name: str, places: Sequence[Place]) -> ProducerPlan:
    unit_size = chance.choice((0, 0, 0, 1, 3, 20))
    units = chance.randint(60, 250) // max(1, unit_size // 2)
    burst = chance.choice((1, 5, 20))
    return ProducerPlan(
        name=name,
        transport=_transport(chance)[0],
        places=tuple(place.name for place in chance.sample(places, min(len(places), chance.choice((1, 1, 2))))),
        units=units,
        unit_size=unit_size,
        receipts=chance.choices((Receipts.ALL, Receipts.SOME, Receipts.NONE), (4, 2, 1))[0],
        persistent=chance.choice((1.0, 1.0, 0.5, 0.0)),
        sizes=chance.choice(((0, 40), (0, 40), (100, 2_000), (2_000, 60_000))),
        window=chance.choice((1, 20, 1_000)),
        burst=burst,
        pace=(_LASTS + 0.2) * burst / units * chance.uniform(0.6, 1.0),
        requests=chance.random() < 0.2,
    )


def _heavy(chance: random.Random) -> list[Harm]:
    draw = chance.random()
    for harm, share in _HEAVY.items():
        if draw < share:
            both = harm not in GATEWAY_ENDS and chance.random() < _TOGETHER
            return [harm, chance.choice((Harm.GATEWAY_KILL, Harm.GATEWAY_RESTART))] if both else [harm]
        draw -= share
    return []


def _faults(chance: random.Random, heavy: Sequence[Harm], clients: Sequence[str], only: Harm | None) -> list[FaultPlan]:
    harms = list(heavy)
    if only is None:
        harms += chance.choices(_LINK_HARMS, k=chance.randint(0 if heavy else 1, 2))
        harms += chance.choices(_CLIENT_HARMS, k=chance.randint(0, 3))
    faults = [_fault(chance, harm, clients) for harm in harms]
    return sorted(faults, key=lambda fault: fault.at)


_LONG: Final = {Harm.LINK_FREEZE: 6.0, Harm.LINK_SILENCE: 3.0}
"""Seconds, where the gateway has to notice by itself."""


def _fault(chance: random.Random, harm: Harm, clients: Sequence[str]) -> FaultPlan:
    return FaultPlan(
        at=round(chance.uniform(0.1, _LASTS), 3),
        harm=harm,
        lasts=_LONG.get(harm) or round(chance.uniform(0.05, 0.8), 3),
        direction=chance.choice(tuple(Direction)),
        size=chance.choice((0, 1, 7, 100, 4_096, 50_000)) + chance.randint(1, 50),
        client=chance.choice(clients) if harm in _CLIENT_HARMS else "",
    )

"""Draws a schedule from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tests.chaos.schedule import (
    COMMIT_CUTS,
    DURABLES,
    GATEWAY_ENDS,
    NODE_SILENCES,
    OF_CLIENTS,
    OF_CLUSTERS,
    OF_NODES,
    QUEUES,
    QUORUMS,
    STREAMS,
    SUBSCRIPTIONS,
    TOPICS,
    Ack,
    ConsumerPlan,
    FaultPlan,
    Harm,
    Kind,
    Place,
    ProducerPlan,
    Receipts,
    Schedule,
    Target,
    Transport,
    Variant,
)
from tests.support.chaos import Direction

_TOGETHER: Final = 0.25
"""The share of the heavy faults of the broker in which the gateway ends, too."""

_LASTS: Final = 1.6
"""Seconds in which faults begin; the producers send a little longer."""

_ACKS: Final = (Ack.AUTO, Ack.CLIENT, Ack.INDIVIDUAL)

_LINK_HARMS: Final = (
    Harm.LINK_STALL,
    Harm.LINK_DELAY,
    Harm.LINK_CUT,
    Harm.LINK_HALF_CLOSE,
    Harm.LINK_RESET,
    Harm.LINK_FLAP,
    Harm.LINK_COMMIT_CUT,
    Harm.CLOSE_CONNECTIONS,
)
_CLIENT_HARMS: Final = (
    Harm.CLIENT_STALL, Harm.CLIENT_DELAY, Harm.CLIENT_CUT, Harm.CLIENT_HALF_CLOSE, Harm.CLIENT_RESET,
    Harm.CLIENT_COMMIT_CUT,
)  # fmt: skip

_HEAVY: Final = {
    Harm.BROKER_KILL: 0.08, Harm.BROKER_RESTART: 0.04, Harm.GATEWAY_KILL: 0.12, Harm.GATEWAY_RESTART: 0.08,
    Harm.LINK_FREEZE: 0.05, Harm.LINK_SILENCE: 0.06, Harm.ALARM: 0.06, Harm.VHOST_DELETION: 0.06,
}  # fmt: skip
"""Faults that take seconds, and in which share of the runs they come."""

_HEAVY_IN_A_CLUSTER: Final = {
    Harm.NODE_KILL: 0.22, Harm.NODE_STOP: 0.12, Harm.NODE_FREEZE: 0.1, Harm.NODE_CUT: 0.12, Harm.NODE_DRAIN: 0.08,
    Harm.LEADERS_MOVE: 0.08, Harm.QUEUE_DELETION: 0.08, Harm.ROLLING_RESTART: 0.04, Harm.ALL_DOWN: 0.04,
    Harm.NODE_ALARM: 0.04, Harm.PERMISSION_LOSS: 0.04, Harm.GATEWAY_KILL: 0.02, Harm.LINK_FREEZE: 0.02,
}  # fmt: skip
_LASTS_IN_A_CLUSTER: Final = 6.0
"""The clients work so long that a node is killed and comes back meanwhile."""

_SILENT: Final = NODE_SILENCES | {Harm.LINK_FREEZE}
"""Where only heart-beats tell the gateway, so that they have to be quick. Nothing else may break or mend the links."""


def drawn(seed: int, only: Harm | None = None, *, is_cluster: bool = False, has_workers: bool = False) -> Schedule:
    """The schedule of a seed.

    Args:
        seed: any number.
        only: a fault to inject in place of those that would be drawn.
        is_cluster: whether there are several nodes of the broker.
        has_workers: whether the gateway has several workers; some are killed.
    """
    chance = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    places = _places_of_a_cluster(chance) if is_cluster else _places(chance)
    lasts = _LASTS_IN_A_CLUSTER if is_cluster else _LASTS
    consumers = [plan for place in places for plan in _consumers(chance, place, lasts)]
    producers = [_producer(chance, f"p{number}", places, lasts) for number in range(chance.randint(2, 4))]
    if is_cluster:
        stays = [chance.choice((0, 0, 3, 12)) for _ in producers]
        # Who asks for replies goes on until one comes, with the same numbers in each session.
        producers = [
            plan if plan.requests else replace(plan, stays=each) for plan, each in zip(producers, stays, strict=True)
        ]
    _mix_transports(chance, producers, consumers)
    heavy = _heavy(chance, _HEAVY_IN_A_CLUSTER if is_cluster else _HEAVY) if only is None else [only]
    variant = chance.choices((Variant.SHARED, Variant.DEDICATED), (3, 1))[0]
    if _SILENT & set(heavy):
        variant = Variant.HEARTBEAT
    if has_workers:
        variant = Variant.WORKERS
        # A link that freezes needs another configuration.
        heavy = [harm for harm in heavy if harm not in GATEWAY_ENDS | {Harm.LINK_FREEZE}]
        heavy += [Harm.WORKER_KILL] * chance.randint(1, 3)
    faults = _faults(chance, heavy, producers, consumers, alone=only is not None)
    if is_cluster:
        faults = _aimed(chance, faults, places)
    return Schedule(seed, variant, places, tuple(producers), tuple(consumers), tuple(faults))


def _places(chance: random.Random) -> tuple[Place, ...]:
    queues = chance.sample(QUEUES, chance.randint(1, 3))
    places = [Place(name, Kind.QUEUE, chance.choice(_ACKS)) for name in queues]
    for names, kind, share in (
        (DURABLES, Kind.DURABLE, 0.6), (TOPICS, Kind.TOPIC, 0.6), (QUORUMS, Kind.QUORUM, 0.3),
        (STREAMS, Kind.STREAM, 0.3),
    ):  # fmt: skip
        if chance.random() < share:
            places.append(Place(chance.choice(names), kind, chance.choice(_ACKS)))
    return tuple(places)


def _places_of_a_cluster(chance: random.Random) -> tuple[Place, ...]:
    places = [Place(name, Kind.QUEUE, chance.choice(_ACKS)) for name in chance.sample(QUEUES, chance.randint(1, 2))]
    for names, kind, share in (
        (QUORUMS, Kind.QUORUM, 0.7), (DURABLES, Kind.DURABLE, 0.6), (STREAMS, Kind.STREAM, 0.4),
        (TOPICS, Kind.TOPIC, 0.4),
    ):  # fmt: skip
        if chance.random() < share:
            declared = kind in (Kind.QUORUM, Kind.STREAM) and chance.random() < 0.5
            places.append(Place(chance.choice(names), kind, chance.choice(_ACKS), declared))
    return tuple(places)


def _consumers(chance: random.Random, place: Place, lasts: float) -> list[ConsumerPlan]:
    count = chance.randint(1, 2)
    queues = {
        Kind.QUEUE: [place.name] * count,
        Kind.QUORUM: [place.name] * count,
        Kind.DURABLE: list(SUBSCRIPTIONS.get(place.name, ())[:count]),
        Kind.TOPIC: [f"{place.name} for {number}" for number in range(count)],
        Kind.STREAM: [f"{place.name} for {number}" for number in range(count)],
    }[place.kind]
    plans = []
    for number, queue in enumerate(queues):
        # RabbitMQ wants a prefetch for a stream; under ``ack:auto`` the gateway has its own.
        prefetches = (10, 100) if place.kind is Kind.STREAM else (0, 1, 10, 100)
        prefetch = 0 if place.ack is Ack.AUTO else chance.choice(prefetches)
        can_refuse = place.ack is Ack.INDIVIDUAL and place.kind is not Kind.STREAM
        plans.append(
            ConsumerPlan(
                name=f"c-{place.name}-{number}",
                transport=Transport.TCP,
                version=chance.choice(("1.0", "1.1", "1.2", "1.2")),
                place=place.name,
                queue=queue,
                prefetch=prefetch,
                batch=1 if place.ack is Ack.INDIVIDUAL else min(prefetch or 100, chance.choice((1, 5, 25))),
                transactional=place.ack is not Ack.AUTO and chance.random() < 0.2,
                nacks=chance.choice((0, 7)) if can_refuse else 0,
                pause=chance.choice((0.0, 0.0, 0.0, 0.002)),
                leaves=chance.uniform(0.3, lasts) if chance.random() < 0.2 else None,
                exclusive=place.kind is Kind.TOPIC and chance.random() < 0.4,
            )
        )
    return plans


def _mix_transports(chance: random.Random, producers: list[ProducerPlan], consumers: list[ConsumerPlan]) -> None:
    """In each run one client at least speaks TLS, and one WebSocket."""
    count = len(producers) + len(consumers)
    others = (Transport.TCP, Transport.TLS, Transport.WEBSOCKET, Transport.STOMP_PY)
    transports = [Transport.TLS, Transport.WEBSOCKET, *chance.choices(others, (5, 2, 2, 2), k=count - 2)]
    chance.shuffle(transports)
    for number, producer in enumerate(producers):
        producers[number] = replace(producer, transport=transports.pop())
    for number, consumer in enumerate(consumers):
        transport = transports.pop()
        version = "1.2" if transport is Transport.STOMP_PY else consumer.version
        consumers[number] = replace(consumer, transport=transport, version=version)


def _producer(chance: random.Random, name: str, places: Sequence[Place], lasts: float) -> ProducerPlan:
    unit_size = chance.choice((0, 0, 0, 1, 3, 20))
    units = chance.randint(60, 250) // max(1, unit_size // 2)
    burst = chance.choice((1, 5, 20))
    return ProducerPlan(
        name=name,
        transport=Transport.TCP,
        places=tuple(place.name for place in chance.sample(places, min(len(places), chance.choice((1, 1, 2))))),
        units=units,
        unit_size=unit_size,
        receipts=chance.choices((Receipts.ALL, Receipts.SOME, Receipts.NONE), (4, 2, 1))[0],
        persistent=chance.choice((1.0, 1.0, 0.5, 0.0)),
        sizes=chance.choice(((0, 40), (0, 40), (100, 2_000), (2_000, 60_000))),
        window=chance.choice((1, 20, 1_000)),
        burst=burst,
        pace=(lasts + 0.2) * burst / units * chance.uniform(0.6, 1.0),
        requests=chance.random() < 0.2,
    )


def _heavy(chance: random.Random, shares: Mapping[Harm, float]) -> list[Harm]:
    draw = chance.random()
    for harm, share in shares.items():
        if draw < share:
            both = harm not in GATEWAY_ENDS and chance.random() < _TOGETHER
            return [harm, chance.choice((Harm.GATEWAY_KILL, Harm.GATEWAY_RESTART))] if both else [harm]
        draw -= share
    return []


def _faults(
    chance: random.Random,
    heavy: Sequence[Harm],
    producers: Sequence[ProducerPlan],
    consumers: Sequence[ConsumerPlan],
    *,
    alone: bool,
) -> list[FaultPlan]:
    harms = list(heavy)
    if not alone:
        links = chance.choices(_LINK_HARMS, k=chance.randint(0 if heavy else 1, 2))
        if OF_CLUSTERS & set(heavy):
            # What is found is to be the node's doing, mostly.
            links = [] if NODE_SILENCES & set(heavy) or chance.random() < _NODES_ALONE else links[:1]
        harms += links
        harms += chance.choices(_CLIENT_HARMS, k=chance.randint(0, 3))
    everybody = [each.name for each in producers] + [each.name for each in consumers]
    committing = [each.name for each in producers if each.unit_size]
    faults = [
        _fault(chance, harm, committing if harm in COMMIT_CUTS else everybody)
        for harm in harms
        if harm not in COMMIT_CUTS or committing
    ]
    return sorted(faults, key=lambda fault: fault.at)


def _aimed(chance: random.Random, faults: Sequence[FaultPlan], places: Sequence[Place]) -> list[FaultPlan]:
    """With what faults of clusters need: the node, the queue, and longer times."""
    queues = [
        queue
        for place in places
        if place.kind in (Kind.QUEUE, Kind.QUORUM, Kind.DURABLE)
        for queue in SUBSCRIPTIONS.get(place.name, (place.name,))
    ]
    return [_aimed_one(chance, fault, queues) if fault.harm in OF_CLUSTERS else fault for fault in faults]


def _aimed_one(chance: random.Random, fault: FaultPlan, queues: Sequence[str]) -> FaultPlan:
    lasts = _LASTS_OF_NODES.get(fault.harm, (0.2, 2.0))
    if fault.harm is Harm.NODE_FREEZE and chance.random() < _VERY_LONG:
        lasts = _FREEZES
    return replace(
        fault,
        lasts=round(chance.uniform(*lasts), 3),
        target=chance.choice(tuple(Target)) if fault.harm in OF_NODES else None,
        queue=chance.choice(queues) if fault.harm is Harm.QUEUE_DELETION else "",
    )


_LASTS_OF_NODES: Final = {
    Harm.NODE_KILL: (0.0, 4.0), Harm.NODE_STOP: (0.0, 4.0), Harm.NODE_FREEZE: (10.0, 16.0), Harm.NODE_CUT: (2.0, 14.0),
}  # fmt: skip
"""Seconds, at the least and at the most."""

_NODES_ALONE: Final = 0.6
_VERY_LONG: Final = 0.15
_FREEZES: Final = 30.0, 90.0

_LONG: Final = {Harm.LINK_FREEZE: 6.0, Harm.LINK_SILENCE: 3.0}
"""Seconds, where the gateway has to notice by itself."""


def _fault(chance: random.Random, harm: Harm, clients: Sequence[str]) -> FaultPlan:
    return FaultPlan(
        at=round(chance.uniform(0.1, _LASTS), 3),
        harm=harm,
        lasts=_LONG.get(harm) or round(chance.uniform(0.05, 0.8), 3),
        direction=chance.choice(tuple(Direction)),
        size=chance.choice((0, 1, 7, 100, 4_096, 50_000)) + chance.randint(1, 50),
        client=chance.choice(clients) if harm in OF_CLIENTS | COMMIT_CUTS else "",
    )

"""A seed determines a run, and the seeds together cover what there is."""

from __future__ import annotations

from tests.chaos.drawing import drawn
from tests.chaos.schedule import COMMIT_CUTS, Ack, Harm, Kind, Receipts, Transport, Variant

SCHEDULES = [drawn(seed) for seed in range(1, 201)]
CLUSTERED = [drawn(seed, is_cluster=True) for seed in range(1, 21)]


def test_a_seed_determines_everything() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_the_runs_of_make_chaos_have_everything() -> None:
    places = [place for schedule in SCHEDULES for place in schedule.places]
    producers = [plan for schedule in SCHEDULES for plan in schedule.producers]
    consumers = [plan for schedule in SCHEDULES for plan in schedule.consumers]
    harms = {fault.harm for schedule in SCHEDULES for fault in schedule.faults}
    assert harms == set(Harm) - {Harm.NODE_KILL, Harm.WORKER_KILL}
    assert {schedule.variant for schedule in SCHEDULES} == set(Variant) - {Variant.WORKERS}
    assert {(place.kind, place.ack) for place in places} == {(kind, ack) for kind in Kind for ack in Ack}
    assert {plan.transport for plan in producers} == {plan.transport for plan in consumers} == set(Transport)
    assert {plan.receipts for plan in producers} == set(Receipts)
    assert {plan.version for plan in consumers} == {"1.0", "1.1", "1.2"}
    assert any(plan.requests for plan in producers)
    assert any(plan.transactional for plan in consumers)
    assert any(plan.exclusive for plan in consumers)


def test_nodes_are_killed_in_a_cluster() -> None:
    harms = {fault.harm for schedule in CLUSTERED for fault in schedule.faults}
    assert Harm.NODE_KILL in harms
    assert not harms & {Harm.BROKER_KILL, Harm.VHOST_DELETION}


def test_workers_are_killed_where_there_are_several() -> None:
    for seed in range(1, 21):
        schedule = drawn(seed, has_workers=True)
        harms = [fault.harm for fault in schedule.faults]
        assert schedule.variant is Variant.WORKERS
        assert 1 <= harms.count(Harm.WORKER_KILL) <= 3
        assert not {Harm.GATEWAY_KILL, Harm.GATEWAY_RESTART} & set(harms)


def test_tls_and_websocket_are_in_each_run() -> None:
    for schedule in SCHEDULES:
        transports = {plan.transport for plan in schedule.producers}
        transports |= {plan.transport for plan in schedule.consumers}
        assert transports >= {Transport.TLS, Transport.WEBSOCKET}


def test_a_commit_is_cut_where_somebody_commits() -> None:
    for schedule in SCHEDULES:
        committing = {plan.name for plan in schedule.producers if plan.unit_size}
        assert {fault.client for fault in schedule.faults if fault.harm in COMMIT_CUTS} <= committing


def test_one_fault_alone() -> None:
    schedule = drawn(3, Harm.LINK_FREEZE)
    assert [fault.harm for fault in schedule.faults] == [Harm.LINK_FREEZE]
    assert schedule.variant is Variant.HEARTBEAT


def test_every_place_has_a_consumer() -> None:
    assert all({plan.place for plan in each.consumers} == {place.name for place in each.places} for each in SCHEDULES)

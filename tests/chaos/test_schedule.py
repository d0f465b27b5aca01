"""A seed determines a run, and the seeds together cover what there is."""

from __future__ import annotations

from tests.chaos.drawing import drawn
from tests.chaos.schedule import (
    CLASSIC,
    COMMIT_CUTS,
    LINK_LOSSES,
    OF_CLUSTERS,
    Ack,
    Harm,
    Kind,
    Receipts,
    Target,
    Transport,
    Variant,
)

SCHEDULES = [drawn(seed) for seed in range(1, 201)]
CLUSTERED = [drawn(seed, is_cluster=True) for seed in range(1, 201)]


def test_a_seed_determines_everything() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_the_runs_of_make_chaos_have_everything() -> None:
    places = [place for schedule in SCHEDULES for place in schedule.places]
    producers = [plan for schedule in SCHEDULES for plan in schedule.producers]
    consumers = [plan for schedule in SCHEDULES for plan in schedule.consumers]
    harms = {fault.harm for schedule in SCHEDULES for fault in schedule.faults}
    assert harms == set(Harm) - OF_CLUSTERS - {Harm.WORKER_KILL}
    assert {schedule.variant for schedule in SCHEDULES} == set(Variant) - {Variant.WORKERS}
    assert {(place.kind, place.ack) for place in places} == {(kind, ack) for kind in Kind for ack in Ack}
    assert {plan.transport for plan in producers} == {plan.transport for plan in consumers} == set(Transport)
    assert {plan.receipts for plan in producers} == set(Receipts)
    assert {plan.version for plan in consumers} == {"1.0", "1.1", "1.2"}
    assert any(plan.requests for plan in producers)
    assert any(plan.transactional for plan in consumers)
    assert any(plan.exclusive for plan in consumers)


def test_the_runs_with_a_cluster_have_everything() -> None:
    faults = [fault for schedule in CLUSTERED for fault in schedule.faults]
    harms = {fault.harm for fault in faults}
    assert harms >= OF_CLUSTERS
    assert not harms & {Harm.BROKER_KILL, Harm.BROKER_RESTART, Harm.ALARM, Harm.VHOST_DELETION}
    for harm in (Harm.NODE_KILL, Harm.NODE_STOP, Harm.NODE_FREEZE, Harm.NODE_CUT):
        assert {fault.target for fault in faults if fault.harm is harm} == set(Target)
    places = [place for schedule in CLUSTERED for place in schedule.places]
    assert {place.kind for place in places} == set(Kind)
    assert {place.is_declared for place in places if place.kind in (Kind.QUORUM, Kind.STREAM)} == {True, False}
    assert {plan.queue in CLASSIC for schedule in CLUSTERED for plan in schedule.consumers} == {True, False}
    producers = [plan for schedule in CLUSTERED for plan in schedule.producers]
    assert any(plan.stays for plan in producers)
    assert any(plan.unit_size for plan in producers)
    assert any(plan.requests for plan in producers)


def test_a_node_stands_still_for_up_to_ninety_seconds() -> None:
    freezes = [fault.lasts for each in CLUSTERED for fault in each.faults if fault.harm is Harm.NODE_FREEZE]
    assert all(10 <= lasts <= 90 for lasts in freezes)
    assert max(freezes) > 60


def test_only_the_node_is_silent_where_heart_beats_have_to_tell() -> None:
    for schedule in CLUSTERED:
        harms = {fault.harm for fault in schedule.faults}
        if harms & {Harm.NODE_FREEZE, Harm.NODE_CUT}:
            assert schedule.variant is Variant.HEARTBEAT
            assert not harms & (LINK_LOSSES - {Harm.NODE_FREEZE, Harm.NODE_CUT})


def test_a_queue_that_is_deleted_is_one_of_the_run() -> None:
    deletions = [(each, fault) for each in CLUSTERED for fault in each.faults if fault.harm is Harm.QUEUE_DELETION]
    for schedule, fault in deletions:
        assert any(fault.queue in schedule.queues(place.name) for place in schedule.places)


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

"""Queues that are taken as they are: each is logged once, and not endlessly many."""

from __future__ import annotations

import structlog

from gateway.server.broker.queue_declare import QueueConflictLog


def test_each_queue_is_logged_once_and_a_thousand_at_most() -> None:
    conflicts = QueueConflictLog()
    with structlog.testing.capture_logs() as lines:
        for number in range(1500):
            for _ in range(2):
                conflicts.write("/", f"q{number}", "y" * 5000)
    assert len(lines) == 1000
    assert {line["event"] for line in lines} == {"existing queue used"}
    assert (lines[0]["virtual_host"], lines[0]["queue"], lines[0]["reason"]) == ("/", "q0", "y" * 300)

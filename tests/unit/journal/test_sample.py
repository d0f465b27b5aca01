"""Sampling: a share of all messages, each with all its events or with none."""

from __future__ import annotations

from gateway.journal.session_lines import Sampler


def test_the_share_is_about_what_was_asked_for() -> None:
    for share in (0.01, 0.25, 0.9):
        sample = Sampler(share, "0123456789abcdef", 3)
        taken = sum(sample.takes(number) for number in range(20_000))
        assert abs(taken - share * 20_000) < 400
        assert sample.weight == 1 / share


def test_the_choice_depends_on_boot_session_and_number_only() -> None:
    chosen = [Sampler(0.5, boot, session).takes(9) for boot in ("a", "b", "c") for session in range(30)]
    again = [Sampler(0.5, boot, session).takes(9) for boot in ("a", "b", "c") for session in range(30)]
    assert chosen == again
    assert 20 < sum(chosen) < 70

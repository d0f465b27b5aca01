"""The key `workers`, and what several workers cannot do."""

from __future__ import annotations

import pytest

from gateway.config import worker_count
from gateway.config.loader import parse
from gateway.errors import ConfigError


def _mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        parse(text, environment={})
    return [mistake.path for mistake in refused.value.mistakes]


def test_there_is_one_worker_unless_more_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("", environment={}).workers == 1
    assert parse("workers: 3", environment={}).workers == 3
    monkeypatch.setattr(worker_count, "cores", lambda: 7)
    assert parse("workers: auto", environment={}).workers == 7


@pytest.mark.parametrize("value", ["0", "257", "all", "true", "1.5"])
def test_other_values_are_mistakes(value: str) -> None:
    assert _mistakes(f"workers: {value}") == ["workers"]


@pytest.mark.parametrize(
    ("limit", "path"),
    [
        ("defaults: {limits: {sessions: 5}}", "defaults.limits.sessions"),
        ("defaults: {limits: {user: {sessions: 5}}}", "defaults.limits.user.sessions"),
        ("virtual_hosts: {/: {limits: {address: {messages_per_second: 5}}}}",
         'virtual_hosts./.limits.address.messages_per_second'),
        ("defaults: {limits: {address: {bytes_per_second: 5KiB}}}", "defaults.limits.address.bytes_per_second"),
        ("listeners: [{tcp: '127.0.0.1:0', max_connections: 5}]", "listeners[0].max_connections"),
    ],
)  # fmt: skip
def test_limits_that_one_process_keeps_are_mistakes_beside_several_workers(limit: str, path: str) -> None:
    assert parse(f"{limit}\nworkers: 1", environment={}).workers == 1
    assert _mistakes(f"{limit}\nworkers: 2") == [path]

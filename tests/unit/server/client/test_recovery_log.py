"""What the log says of a session that waits for a broker which answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from gateway.config.model import GatewayConfig
from gateway.server.client.bridge_context import BridgeContext
from gateway.server.log_limits import LogLimits


def test_each_reason_is_said_once_in_a_recovery() -> None:
    limits = LogLimits(GatewayConfig().logging, lambda: 0.0)
    context = BridgeContext(
        session=cast(Any, SimpleNamespace(identity=b"s")),
        bridge=cast(Any, None),
        login=cast(
            Any, SimpleNamespace(links=SimpleNamespace(login="shop", virtual_host=SimpleNamespace(name="orders")))
        ),
        pool=cast(Any, SimpleNamespace(log_limits=limits)),
        client="10.0.0.1:1",
        spawn=cast(Any, None),
    )
    with capture_logs() as lines:
        for reason in ("queue a is down", "queue a is down", "x" * 1000):
            context.log_wait(reason)
        context.recovery_begins()
        context.log_wait("x" * 1000)
    said = [(line["event"], line["virtual_host"], line["login"], line["session"], line["peer"]) for line in lines]
    assert set(said) == {("session waits for the broker", "orders", "shop", "s", "10.0.0.1:1")}
    assert [line["reason"] for line in lines] == ["queue a is down", "x" * 300, "x" * 300]

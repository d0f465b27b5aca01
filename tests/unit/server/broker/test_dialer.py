"""The dialer's memory: brokers of an earlier configuration are forgotten."""

from __future__ import annotations

from gateway.config.model import Logging
from gateway.config.scalars import BrokerUrl
from gateway.config.virtual_host import Upstream
from gateway.server.broker.dialer import Dialer
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import PacedWork
from gateway.server.tls_contexts import TlsContexts


def upstream(*hosts: str) -> Upstream:
    return Upstream(urls=tuple(BrokerUrl("amqp", host, 5672) for host in hosts))


def test_what_is_known_of_a_broker_stays_as_long_as_the_broker_is_configured() -> None:
    dialer = Dialer(lambda: 0.0, TlsContexts(), LogLimits(Logging(), lambda: 0.0), PacedWork())
    for circuit in dialer.circuits(upstream("a", "b")):
        circuit.failed("refused", 0.0, is_trial=False)
    dialer.keep([upstream("b", "c")])
    assert [circuit.is_open for circuit in dialer.circuits(upstream("a", "b", "c"))] == [False, True, False]

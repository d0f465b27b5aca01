"""How connections are counted, apart from sockets."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.config.loader import parse
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.listen.connection_limits import ConnectionLimits, TooManyConnectionsError
from gateway.server.log_limits import LogRateLimiter


@pytest.mark.parametrize("host", ["192.0.2.1", ""])
def test_a_connection_counts_for_its_address_until_it_is_closed_also_if_that_is_not_known(host: str) -> None:
    settings = parse("listeners: [{tcp: '127.0.0.1:0', max_unauthenticated_per_address: 1}]", environment={})
    limits = ConnectionLimits("here", LogRateLimiter(lambda: 0.0), Counter())

    def connect(peer: str) -> AcceptedConnection:
        accepted = limits.accept(settings.listeners[0], Peer(peer, 1), 0.0)
        limits.admit(settings.listeners[0], accepted)
        return accepted

    first = connect(host)
    with pytest.raises(TooManyConnectionsError):
        connect(host)
    connect("192.0.2.9")
    first.on_closed()
    second = connect(host)
    second.on_login()
    connect(host)

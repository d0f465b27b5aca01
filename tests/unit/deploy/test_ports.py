"""Free ports."""

import socket

from deploy.local.ports import LOOPBACK, free_ports


def test_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports(20)

    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as listener:
            listener.bind((LOOPBACK, port))


def test_outgoing_connections_are_not_given_such_ports() -> None:
    with socket.socket() as outgoing:
        outgoing.bind((LOOPBACK, 0))
        lowest_seen = min(outgoing.getsockname()[1], 32_768)

    assert max(free_ports(20)) < lowest_seen

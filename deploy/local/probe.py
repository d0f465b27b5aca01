"""Checks of a TCP port: whether a program listens, and whether it is an AMQP broker that is ready."""

import socket

_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_METHOD_FRAME = b"\x01"


def listens(host: str, port: int, timeout: float = 1.0) -> bool:
    """Whether a TCP connection to the port can be opened.

    Args:
        host: name or address.
        port: TCP port.
        timeout: seconds to wait for the connection.
    """
    try:
        with socket.create_connection((host, port), timeout):
            return True
    except OSError:
        return False


def answers_amqp(host: str, port: int, timeout: float = 1.0) -> bool:
    """Whether an AMQP 0-9-1 broker answers the protocol header, which it does as soon as it accepts connections.

    Args:
        host: name or address.
        port: TCP port.
        timeout: seconds to wait for each of connection and answer.
    """
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(_PROTOCOL_HEADER)
            return connection.recv(1) == _METHOD_FRAME  # connection.start; a refusal would begin with "A"
    except OSError:
        return False

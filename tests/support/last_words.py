"""How a server ends a conversation."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.stomp_client import ConnectionOverError, Frame, StompClient


class Refusal(NamedTuple):
    """The words of an ERROR: its message header and its body."""

    message: str
    body: str


def refusal_of(frame: Frame) -> Refusal:
    """The words of an ERROR frame."""
    assert frame.command == "ERROR", frame
    return Refusal(frame["message"], frame.body.decode())


async def last_words(client: StompClient) -> Refusal:
    """Wait until the server closes the connection, and return the words of the ERROR with which it did.

    Frames before it are passed over, and so is a RECEIPT behind it: RabbitMQ's plugin sends one even then.
    """
    errors = []
    try:
        while True:
            frame = await client.receive()
            if frame.command == "ERROR":
                errors.append(refusal_of(frame))
    except ConnectionOverError:
        pass
    assert len(errors) == 1, errors
    return errors[0]

"""The queues to delete are found in what the clients sent."""

import pytest

from gateway.parity.amqp_broker import subscription_queue
from gateway.parity.broker_fixture import created_queues

SUBSCRIBE = "SUBSCRIBE\nid:{}\ndestination:{}\ndurable:true\n\n\0"


@pytest.mark.parametrize(
    ("identifier", "destination", "key", "meant"),
    [
        ("news", "/topic/t-1.a", "t-1.a", "news"),
        ("news", "/exchange/t-1/k", "k", "news"),
        ("news", "/exchange/t-1", "", "news"),
        ("ä\\cb", "/topic/t-1%2Fü", "t-1/ü", "ä:b"),
        ("a\\\\b\\n", "/topic/t-1", "t-1", "a\\b\n"),
    ],
)
def test_durable_subscription(identifier: str, destination: str, key: str, meant: str) -> None:
    frame = SUBSCRIBE.format(identifier, destination).encode()
    assert subscription_queue(key, meant) in created_queues(frame, b"t-1")


def test_named_queues() -> None:
    frames = b"SEND\ndestination:/queue/t-1.a%2Fb\n\n\0SUBSCRIBE\ndestination:/topic/x\nx-queue-name:t-1-c\n\n\0"
    assert created_queues(frames, b"t-1") == {"t-1.a/b", "t-1-c"}

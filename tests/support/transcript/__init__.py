"""Golden conversations: one file is played against RabbitMQ's STOMP plugin, the gateway and its pure session alike."""

from tests.support.transcript.broker import AmqpBroker, Broker, BrokerMessage, BrokerRefusalError
from tests.support.transcript.player import MismatchError, play
from tests.support.transcript.script import (
    SIDES,
    Conversation,
    ScriptError,
    Side,
    parse_conversation,
    read_conversation,
)
from tests.support.transcript.wire import (
    Closed,
    FrameReader,
    HeartBeat,
    Peer,
    Received,
    ServerFrame,
    SilenceError,
    SocketPeer,
    WireError,
)

__all__ = [
    "SIDES",
    "AmqpBroker",
    "Broker",
    "BrokerMessage",
    "BrokerRefusalError",
    "Closed",
    "Conversation",
    "FrameReader",
    "HeartBeat",
    "MismatchError",
    "Peer",
    "Received",
    "ScriptError",
    "ServerFrame",
    "Side",
    "SilenceError",
    "SocketPeer",
    "WireError",
    "parse_conversation",
    "play",
    "read_conversation",
]

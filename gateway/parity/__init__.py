"""Conversations that are played against RabbitMQ's STOMP plugin, the gateway and its pure session alike."""

from gateway.parity.broker import AmqpBroker, Broker, BrokerLostError, BrokerMessage, BrokerRefusalError
from gateway.parity.course import MismatchError
from gateway.parity.identity import Identity
from gateway.parity.player import Performance, perform, play
from gateway.parity.release import ORACLE, Release, Releases
from gateway.parity.script import (
    SETUPS,
    SIDES,
    Conversation,
    ScriptError,
    Setup,
    Side,
    parse_conversation,
    read_conversation,
)
from gateway.parity.wire import (
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
    "ORACLE",
    "SETUPS",
    "SIDES",
    "AmqpBroker",
    "Broker",
    "BrokerLostError",
    "BrokerMessage",
    "BrokerRefusalError",
    "Closed",
    "Conversation",
    "FrameReader",
    "HeartBeat",
    "Identity",
    "MismatchError",
    "Peer",
    "Performance",
    "Received",
    "Release",
    "Releases",
    "ScriptError",
    "ServerFrame",
    "Setup",
    "Side",
    "SilenceError",
    "SocketPeer",
    "WireError",
    "parse_conversation",
    "perform",
    "play",
    "read_conversation",
]

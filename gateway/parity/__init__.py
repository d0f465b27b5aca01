"""STOMP transcripts, played against RabbitMQ's STOMP plugin and against the gateway. Exported: what the tests use."""

from gateway.parity.amqp_broker import AmqpBroker, BrokerMessage, BrokerRefusalError
from gateway.parity.play_state import Identity, MismatchError
from gateway.parity.player import play
from gateway.parity.steps import ORACLE, Release, Side
from gateway.parity.stomp_peer import Closed, FrameReader, HeartBeat, Received, ServerFrame, SilenceError, SocketPeer
from gateway.parity.transcript import Setup, Transcript, read_transcript

__all__ = [
    "ORACLE",
    "AmqpBroker",
    "BrokerMessage",
    "BrokerRefusalError",
    "Closed",
    "FrameReader",
    "HeartBeat",
    "Identity",
    "MismatchError",
    "Received",
    "Release",
    "ServerFrame",
    "Setup",
    "Side",
    "SilenceError",
    "SocketPeer",
    "Transcript",
    "play",
    "read_transcript",
]

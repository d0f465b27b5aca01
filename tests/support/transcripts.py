"""The transcripts as test parameters, and one of them played on a server."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest

from gateway.parity.amqp_broker import AmqpBroker
from gateway.parity.play_state import Identity
from gateway.parity.player import play
from gateway.parity.steps import ORACLE, Side
from gateway.parity.stomp_peer import SocketPeer
from gateway.parity.transcript import Setup, Transcript, load_transcripts
from tests.support.deadline import PATIENCE
from tests.support.gateway import Address

TRANSCRIPTS = load_transcripts()


def parametrize_transcripts(*setups: Setup) -> pytest.MarkDecorator:
    """Run a test for each transcript of some setups, one setup after the other, as its argument `transcript`."""
    chosen = [transcript for setup in setups for transcript in TRANSCRIPTS if transcript.setup == setup]
    return pytest.mark.parametrize("transcript", chosen, ids=lambda transcript: transcript.name)


async def check_transcript(transcript: Transcript, address: Address, broker_url: str, side: Side) -> None:
    """Play a transcript on a server, and raise MismatchError if the server does something else.

    Args:
        transcript: what to play.
        address: of the server.
        broker_url: AMQP URL of its broker, with the credentials that the clients use too.
        side: which of the two servers it is.
    """
    async with AmqpBroker.connected(broker_url) as broker:
        for_release = transcript.for_release(broker.release or ORACLE)
        result = await play(for_release, SocketPeer(address, PATIENCE), broker, side, identity(broker_url))
    result.raise_for_mismatch()


def identity(broker_url: str) -> Identity:
    """The user and the virtual host of an AMQP URL."""
    parts = urlsplit(broker_url)
    login, passcode = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    return Identity(login, passcode, unquote(parts.path.removeprefix("/")) or "/", login)

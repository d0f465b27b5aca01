"""The transcripts as test parameters, and one of them played on a server."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from gateway.parity import ORACLE, AmqpBroker, Conversation, Identity, Setup, Side, SocketPeer, play
from gateway.parity.library import conversations
from tests.support.gateway import Address

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
EVERY = conversations()


def every_conversation(*setups: Setup) -> pytest.MarkDecorator:
    """Run a test for each conversation of some setups, one setup after the other, as its argument `conversation`."""
    chosen = [conversation for setup in setups for conversation in EVERY if conversation.setup == setup]
    return pytest.mark.parametrize("conversation", chosen, ids=lambda conversation: conversation.name)


async def play_on(conversation: Conversation, address: Address, broker_url: str, side: Side) -> None:
    """Play a conversation on a server, and raise MismatchError where it does not go as written for its broker.

    Args:
        conversation: what to play.
        address: where the server listens.
        broker_url: AMQP URL of its broker, with the credentials that the clients have, too.
        side: which of the two servers it is.
    """
    async with AmqpBroker.connected(broker_url) as broker:
        written = conversation.on(broker.release or ORACLE)
        await play(written, SocketPeer(address), broker, side, identity(broker_url))


def identity(broker_url: str) -> Identity:
    """The user and the virtual host of an AMQP URL."""
    parts = urlsplit(broker_url)
    login, passcode = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    return Identity(login, passcode, unquote(parts.path.removeprefix("/")) or "/", login)

"""Every transcript is played on pure sessions, without a socket, a clock or a real broker."""

from pathlib import Path

import pytest

from tests.support.model_broker import ModelBroker
from tests.support.session_peer import SessionPeer
from tests.support.transcript import play, read_conversation

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
FILES = sorted(TRANSCRIPTS.rglob("*.stomp"))

# What pure sessions cannot show, and why.
SKIPPED: dict[str, str] = {}


def _name(path: Path) -> str:
    return str(path.relative_to(TRANSCRIPTS).with_suffix(""))


@pytest.mark.parametrize("path", FILES, ids=_name)
async def test_transcript(path: Path) -> None:
    conversation = read_conversation(path)
    if conversation.uses_clock:
        pytest.skip("the session has no clock; its owner sends heart-beats and hears that there are none")
    if _name(path) in SKIPPED:
        pytest.skip(SKIPPED[_name(path)])
    broker = ModelBroker()
    await play(conversation, SessionPeer(broker), broker, "gateway")


def test_what_is_skipped_is_there() -> None:
    assert SKIPPED.keys() <= {_name(path) for path in FILES}

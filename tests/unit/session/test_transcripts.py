"""Every transcript is played on pure sessions, without a socket, a clock or a real broker."""

from pathlib import Path

import pytest

from gateway.parity import play, read_conversation
from tests.support.model_broker import ModelBroker
from tests.support.session_peer import SessionPeer

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"

# What a pure session cannot show, and why.
LEFT_OUT = {
    "heartbeat/from-server": "the session has no clock: its owner sends the heart-beats",
    "heartbeat/missed-by-client": "the session has no clock: its owner notices that none come",
}


def _name(path: Path) -> str:
    return str(path.relative_to(TRANSCRIPTS).with_suffix(""))


FILES = {_name(path): path for path in sorted(TRANSCRIPTS.rglob("*.stomp"))}


@pytest.mark.parametrize("name", sorted(FILES.keys() - LEFT_OUT.keys()))
async def test_transcript(name: str) -> None:
    broker = ModelBroker()
    await play(read_conversation(FILES[name]), SessionPeer(broker), broker, "gateway")


def test_only_those_are_left_out_that_wait_for_time_to_pass() -> None:
    assert LEFT_OUT.keys() == {name for name, path in FILES.items() if read_conversation(path).uses_clock}

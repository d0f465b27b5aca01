"""Every transcript is played on pure sessions, without a socket, a clock or a real broker."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from gateway.config.broker_user import User
from gateway.config.virtual_host import VirtualHost
from gateway.parity.player import play
from gateway.parity.steps import ORACLE, ExpectClosed, ExpectHeartBeat, Step
from gateway.parity.transcript import Setup, Transcript
from tests.support.model_broker import ModelBroker
from tests.support.session_peer import PASSCODES, PLAIN, SETTINGS, Premises, SessionPeer
from tests.support.setups import DEFAULT_USER, DEFAULT_VHOST, TOPIC_EXCHANGE
from tests.support.transcripts import TRANSCRIPTS

# What a pure session cannot show, and why.
LEFT_OUT = {
    "heartbeat/any-octet": "the session has no clock: its owner sends the heart-beats",
    "heartbeat/from-server": "the session has no clock: its owner sends the heart-beats",
    "heartbeat/missed-by-client": "the session has no clock: its owner notices that none come",
    "setups/login-timeout": "the session has no clock: its owner notices that the time is over",
    "destination/not-utf8": "the model reads AMQP with a library that takes names for UTF-8",
}
SHOWN = [each for each in TRANSCRIPTS if each.name not in LEFT_OUT and each.setup != "restricted-user"]


async def _premises(setup: Setup, broker: ModelBroker) -> Premises:
    """What the real gateway's configuration says for a setup, in the session's own terms."""
    if setup == "plain":
        return PLAIN
    if setup == "no-default-user":
        nobody = SETTINGS.model_copy(update={"default_user": None})
        return Premises(lambda host: nobody if host in (None, "/") else None, implicit_connect=True)
    user = User(login=DEFAULT_USER["login"], passcode=SecretStr(DEFAULT_USER["passcode"]))
    here = VirtualHost(
        name="/",
        default_user=user,
        default_topic_exchange=TOPIC_EXCHANGE.encode(),
        default_nack_requeue=False,
        hide_server_info=True,
    )
    known = {"/": here, DEFAULT_VHOST: here.model_copy(update={"name": DEFAULT_VHOST})}
    other = ModelBroker(DEFAULT_VHOST)
    for virtual_host in (broker, other):
        await virtual_host.declare_exchange(TOPIC_EXCHANGE, "topic", internal=False)

    def resolve(host: str | None) -> VirtualHost | None:
        return known.get(DEFAULT_VHOST if host is None else host)

    passcodes = PASSCODES | dict([user.credentials])
    return Premises(resolve, passcodes, implicit_connect=True, elsewhere={DEFAULT_VHOST: other})


@pytest.mark.parametrize("transcript", SHOWN, ids=lambda transcript: transcript.name)
async def test_transcript(transcript: Transcript) -> None:
    broker = ModelBroker()
    peer = SessionPeer(broker, await _premises(transcript.setup, broker))
    (await play(transcript.for_release(ORACLE), peer, broker, "gateway")).raise_for_mismatch()


def _waits(step: Step) -> bool:
    return isinstance(step, ExpectHeartBeat) or (isinstance(step, ExpectClosed) and step.timed)


def test_those_are_left_out_that_wait_for_time_to_pass() -> None:
    """And those of a restricted user: the model has no permissions."""
    assert {name for name, why in LEFT_OUT.items() if "clock" in why} == {
        each.name for each in TRANSCRIPTS if any(map(_waits, each.steps))
    }
    assert LEFT_OUT.keys() <= {each.name for each in TRANSCRIPTS}

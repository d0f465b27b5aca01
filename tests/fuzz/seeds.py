"""Where fuzzing starts: the client's side of every transcript, recorded while it is played, and the words of STOMP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from gateway.parity.player import play
from gateway.parity.steps import ORACLE
from gateway.parity.stomp_peer import Received
from gateway.parity.transcript import read_transcript
from gateway.stomp.frame import CLIENT_COMMANDS
from tests.fuzz.script import Event, write_script
from tests.support.model_broker import ModelBroker
from tests.support.session_peer import SessionPeer

TRANSCRIPTS: Final = Path(__file__).parents[1] / "transcripts"

# The part of names that differs from one playing to the next.
_RUN: Final = re.compile(rb"t-[0-9a-f]{12}")

_SESSION: Final = b"session-%022d" % 1

WORDS: Final = (
    *(command + b"\n" for command in CLIENT_COMMANDS),
    b"\0", b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b":", b"\\n", b"\\r", b"\\c", b"\\\\", b"\\t", b"\0\n",
    b"destination:/queue/q\n", b"destination:/topic/a.b\n", b"destination:/exchange/amq.topic/a.b\n",
    b"destination:/amq/queue/full\n", b"destination:/exchange/none/k\n", b"destination:/topic/#\n",
    b"destination:/reply-queue/reply\n", b"destination:q\n", b"reply-to:/temp-queue/t\n", b"%2F",
    b"id:1\n", b"id:2\n", b"ack:auto\n", b"ack:client\n", b"ack:client-individual\n", b"prefetch-count:2\n",
    b"receipt:r\n", b"receipt: r\\c1\n", b"transaction:t\n", b"transaction:u\n", b"transaction:v\n",
    b"content-length:3\n", b"content-length:0\n", b"content-length:99999999999\n",
    b"selector:type = 'a' OR number > 5\n", b"selector:priority IS NOT NULL\n", b" AND NOT x LIKE 'a%'",
    b"durable:true\n", b"persistent:true\n", b"auto-delete:true\n", b"exclusive:true\n", b"requeue:false\n",
    b"x-queue-name:own\n", b"x-max-length:1\n", b"x-expires:1000\n", b"x-message-ttl:-1\n", b"priority:9\n",
    b"timestamp:18446744073709551615\n", b"expiration:1000\n", b"user-id:guest\n", b"user-id:other\n",
    b"content-type:text/plain\n", b"correlation-id:c\n", b"message-id:1\n", b"heart-beat:1000,1000\n",
    b"accept-version:1.0\n", b"accept-version:1.1\n", b"accept-version:1.2\n", b"host:/\n", b"host:none\n",
    b"login:guest\n", b"passcode:guest\n", b"passcode:wrong\n",
    b"id:T_1@@" + _SESSION + b"@@1\n", b"id:T_1@@" + _SESSION + b"@@0\n", b"id:T_1@@" + _SESSION + b"@@3\n",
    b"id:T_2@@" + _SESSION + b"@@2\n",
    b"message-id:T_1@@" + _SESSION + b"@@1\n", b"message-id:Q_/queue/q@@" + _SESSION + b"@@1\n", b"@@",
)  # fmt: skip
"""What means something to a decoder or a session."""

_CONNECT: Final = "CONNECT\naccept-version:1.2\n\n\0"
_SEND: Final = "SEND\ndestination:/queue/q\n\nx\0"

LIVES: Final = (
    # Acknowledgements in and out of order.
    _CONNECT + "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client-individual\n\n\0" + 4 * _SEND +
    "ACK\nid:T_1@@S@@2\n\n\0ACK\nid:T_1@@S@@1\n\n\0NACK\nid:T_1@@S@@3\n\n\0UNSUBSCRIBE\nid:1\n\n\0"
    "DISCONNECT\nreceipt:bye\n\n\0",
    _CONNECT + "SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\nprefetch-count:3\n\n\0<m0><m1><m2><m3>"
    "ACK\nid:T_1@@S@@2\n\n\0<w129><m0><w0>NACK\nid:T_1@@S@@3\n\n\0",
    # A selector, which some messages do not fulfil.
    _CONNECT + "SUBSCRIBE\nid:1\ndestination:/topic/a.b\nack:client\nselector:priority IS NULL\n\n\0"
    "<m8><m10><m8><m10><w129><m8><w0>ACK\nid:T_1@@S@@1\n\n\0<m10><l0><b1><m10>UNSUBSCRIBE\nid:1\n\n\0",
    # Transactions.
    _CONNECT + "BEGIN\ntransaction:t\n\n\0BEGIN\ntransaction:u\n\n\0BEGIN\ntransaction:v\n\n\0"
    "SEND\ndestination:/topic/a.b\ntransaction:t\n\nhello\0COMMIT\ntransaction:t\nreceipt:r\n\n\0<t200>",
    "STOMP\naccept-version:1.1\n\n\0SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n\0<m2>"
    "BEGIN\ntransaction:t\n\n\0ACK\nmessage-id:T_1@@S@@1\ntransaction:t\n\n\0"
    "SEND\ndestination:/queue/q\nreply-to:/temp-queue/t\ntransaction:t\n\nask\0<z1>COMMIT\ntransaction:t\n\n\0<x0><b3>",
    # Automatic acknowledgement, of a client that falls behind, and of a subscription that goes.
    "CONNECT\n\n\0SUBSCRIBE\ndestination:/queue/q\n\n\0<m0><m4><m2><w1><m1><w129><m0><m0><s0><w0><m3>",
    _CONNECT + "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0<z1><m0><x2>UNSUBSCRIBE\nid:1\n\n\0<x2><b7>",
    _CONNECT + "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0<w1><m0>UNSUBSCRIBE\nid:1\n\n\0<w0>",
    # A producer whose confirms come late, or are none.
    _CONNECT + 6 * "SEND\ndestination:/queue/q\nreceipt:r\ncontent-length:3\n\na\0b\0" + "<z1>" +
    6 * "SEND\ndestination:/queue/q\nreceipt:r\n\nx\0" + "<b1><n1><a1><b7><a0>SEND\ndestination:/queue/q\n\nx\0<q0>",
    _CONNECT + "<z1>" + 3 * "SEND\ndestination:/queue/q\nreceipt:r\n\nx\0" + "<b3><b3><k1><l0>",
    # Ends while the broker is being asked.
    _CONNECT + "<z1>SUBSCRIBE\nid:1\ndestination:/queue/q\nreceipt:r\n\n\0<m0><l0><b1>",
    "<z1>" + _CONNECT + "<d0>" + _CONNECT + "<b1>DISCONNECT\nreceipt:bye\n\n\0<q0><b1>",
    # More header blocks than a decoder remembers.
    _CONNECT + "".join(2 * f"SEND\ndestination:/topic/t\nn:{number}\ncontent-length:0\n\n\0" for number in range(70)),
)  # fmt: skip
"""Lives of clients in a few frames, for what no transcript has. ``<z1>`` is the event ``z`` with argument 1."""

_EVENT: Final = re.compile(rb"<([a-z|])(\d+)>")


def _life(text: str) -> Iterator[bytes | Event]:
    said, *rest = _EVENT.split(text.replace("@S@", f"@{_SESSION.decode()}@").encode())
    yield said
    for letter, argument, data in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        yield Event(letter.decode(), int(argument))
        if data:
            yield data


@cache
def seeds() -> tuple[bytes, ...]:
    """Every start as an input, without those that are equal; the same ones in the same order each time."""
    conversations = [
        *asyncio.run(_all_recorded(sorted(TRANSCRIPTS.rglob("*.stomp")))),
        *(tuple(_life(text)) for text in LIVES),
    ]
    inputs = (write_script(setting, steps) for steps in conversations for setting in (0, 1) if steps)
    return tuple(dict.fromkeys(inputs))


async def _all_recorded(paths: Iterable[Path]) -> list[tuple[bytes | Event, ...]]:
    """Of all transcripts at once, since some of them wait for a second."""
    return await asyncio.gather(*map(recorded, paths))


async def recorded(path: Path) -> tuple[bytes | Event, ...]:
    """Play a transcript, and take note of what its clients do."""
    transcript = read_transcript(path)
    broker = ModelBroker()
    recorder = _Recorder(broker)
    # A mismatch does no harm: some transcripts need a clock or another configuration.
    await play(transcript.for_release(ORACLE), recorder, broker, "gateway")
    return tuple(recorder.steps())


class _Recorder:
    """A peer that takes note of what the clients do."""

    def __init__(self, broker: ModelBroker) -> None:
        self._peer = SessionPeer(broker)
        self._clients: list[str] = []
        self._heard: list[tuple[str, bytes | None]] = []

    async def send(self, client: str, data: bytes) -> None:
        self._note(client, _RUN.sub(b"t", data))
        await self._peer.send(client, data)

    async def receive(self, client: str) -> Received:
        return await self._peer.receive(client)

    async def hang_up(self, client: str) -> None:
        self._note(client, None)
        await self._peer.hang_up(client)

    async def close(self) -> None:
        await self._peer.close()

    def steps(self) -> Iterator[bytes | Event]:
        """What was noted: bytes, the hanging up, and who does it."""
        speaking = self._clients[0] if self._clients else ""
        for client, data in self._heard:
            if client != speaking:
                speaking = client
                yield Event("c", self._clients.index(client))
            yield Event("d", 0) if data is None else data

    def _note(self, client: str, data: bytes | None) -> None:
        if client not in self._clients:
            self._clients.append(client)
        self._heard.append((client, data))

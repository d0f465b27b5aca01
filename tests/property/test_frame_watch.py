"""A trace misses no frame, shows none twice and changes nothing, wherever it begins and whatever it has room for."""

from __future__ import annotations

import json

from hypothesis import event, given
from hypothesis import strategies as st

from gateway.errors import CloseReason
from gateway.server.client import trace as trace_module
from gateway.server.client.trace import TraceTarget
from gateway.server.client.traces import Traces
from tests.property.cuts import cut, points
from tests.support.traced_client import TracedClient

# What a client may say; a heart-beat is none of its frames.
frames = st.sampled_from((
    b"SEND\ndestination:/queue/a\n\nhello\0\n", b"SEND\ncontent-length:4\n\n\0\n\0\n\0", b"SEND\r\nx:1\r\n\r\n\0\r\n",
    b"ACK\nid:T_1@@session-a@@1\n\n\0", b"SUBSCRIBE\nid:1\ndestination:/queue/a\n\nbody\0", b"\n",
))  # fmt: skip

# At which piece the trace begins, and before which ones a second passes; and which pieces find the session held.
choices = st.lists(st.integers(0, 12), max_size=5)


@given(
    st.lists(frames, min_size=1, max_size=12).map(b"".join), points, st.integers(0, 3), choices, choices,
    st.integers(1, 4),
)  # fmt: skip
def test_frames_shown_and_left_out_are_those_that_the_client_sent(
    stream: bytes, at: list[int], begins: int, seconds: list[int], held: list[int], room: int
) -> None:
    now = 0.0
    plain, client, traces = TracedClient(), TracedClient(), Traces(lambda: now)
    per_second, trace_module.FRAMES_PER_SECOND = trace_module.FRAMES_PER_SECOND, room  # type: ignore[misc]
    try:
        pieces = cut(stream, at)
        before = 0
        for number, piece in enumerate(pieces):
            if number == begins:
                traces.begin("a", TraceTarget(session="session-a"), 1e6, [client])
                before = plain.session.traffic.frames_received
            now += number in seconds
            plain.receive(piece)
            client.is_held = number in held
            client.receive(piece)
        client.release()
        assert client.session.traffic.frames_received == plain.session.traffic.frames_received
        assert client.decoder.buffered == plain.decoder.buffered
        if begins >= len(pieces):
            return
        traces.left(client, CloseReason.CLIENT_GONE)
        part = traces.take("a")
        shown = [item for item in (json.loads(line.encoded) for line in part.lines) if "command" in item]
        whole = [item for item in shown if "incomplete" not in item]
        event(f"shown: {min(len(whole), 4)}, left out: {min(part.left_out, 4)}")
        passed = client.session.traffic.frames_received - before
        # A frame that was under way when the trace began may be neither.
        assert 0 <= passed - len(whole) - part.left_out <= 1
    finally:
        trace_module.FRAMES_PER_SECOND = per_second  # type: ignore[misc]

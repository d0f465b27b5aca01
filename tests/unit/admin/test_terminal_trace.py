"""`stomp-gateway trace`, asking a stand-in for the admin listener."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gateway.cli import main
from gateway.errors import ExitCode

EVIL = "\x1b]0;owned\x07"
FACTS = {"time": "2026-11-23T06:06:02.620123Z", "session": "session-a", "peer": "10.1.2.3:4711"}
STARTED = {"time": FACTS["time"], "event": "trace started", "target": "login billing", "clients": 1, "until": "06:11"}
ENDED = {"time": FACTS["time"], "event": "trace ended", "reason": "its time was over", "frames": 2, "left_out": 1}


class _Stream:
    """Answers each request with these lines, and remembers what was asked."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any] | None] = []
        self.status = 200
        self.asked = ""


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Stream]:
    stream = _Stream()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            stream.asked = self.path
            self.send_response(stream.status)
            self.end_headers()
            for line in stream.lines:
                self.wfile.write((b"" if line is None else json.dumps(line).encode()) + b"\n")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        monkeypatch.setenv("STOMP_GATEWAY_ADMIN_URL", f"http://127.0.0.1:{server.server_port}")
        yield stream
        server.shutdown()
        serving.join()


def a_frame(command: str, direction: str = "from-client", size: int = 0, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {**FACTS, "direction": direction, "command": command, "headers": {}, "body_bytes": size, **more}


def test_each_frame_is_a_line_and_no_text_of_a_client_moves_the_terminal(
    stream: _Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    stream.lines = [
        STARTED,
        {**FACTS, "event": "connected", "listener": "0.0.0.0:61613"},
        a_frame("CONNECT", headers={"login": EVIL, "x": "a b", "y": ""}, headers_left_out=3),
        None,
        a_frame("MESSAGE", "to-client", 2048),
        a_frame("", size=7, incomplete=True),
        {**FACTS, "event": "unreadable", "direction": "from-client", "reason": "this is not a STOMP command"},
        {**FACTS, "event": "heart-beats", "from_client": 2, "to_client": 3},
        {**FACTS, "event": "closed", "reason": "client-gone"},
        {"time": FACTS["time"], "event": "frames left out", "frames": 1},
        {"time": FACTS["time"], "event": "clients left out", "clients": 2},
        {**FACTS, "event": "something new"},
        ENDED,
    ]  # fmt: skip
    assert main(["trace", "--login", "billing", "--for", "2m"]) == ExitCode.OK
    assert stream.asked == "/api/trace?login=billing&seconds=120"
    begin = "06:06:02.620 session-a "
    assert capsys.readouterr().out.splitlines() == [
        "06:06:02.620 -- tracing login billing, 1 client now, until 06:11",
        f"{begin}-- connected from 10.1.2.3:4711 to 0.0.0.0:61613",
        f'{begin}>> CONNECT login:\\x1b]0;owned\\x07 x:"a b" y:"" (and 3 more headers)',
        f"{begin}<< MESSAGE (2 KiB)",
        f"{begin}>> (no whole header block) (7 B) INCOMPLETE",
        f"{begin}-- what comes from-client cannot be read: this is not a STOMP command",
        f"{begin}-- heart-beats: 2 from the client, 3 to it",
        f"{begin}-- closed, client-gone",
        "06:06:02.620 -- 1 frame left out, because there were too many",
        "06:06:02.620 -- 2 clients not traced, because there were too many",
        f"{begin}-- something new",
        "06:06:02.620 -- the trace has ended, its time was over: 2 frames, 1 left out",
    ]


def test_json_is_as_the_gateway_has_it(stream: _Stream, capsys: pytest.CaptureFixture[str]) -> None:
    frame = a_frame("SEND", headers={"login": EVIL + "\x7f"})
    stream.lines = [frame, None, ENDED]
    assert main(["trace", "--address", "10.0.0.0/8", "--json"]) == ExitCode.OK
    assert stream.asked == "/api/trace?address=10.0.0.0%2F8&seconds=300"
    out = capsys.readouterr().out
    assert [json.loads(line) for line in out.splitlines()] == [frame, ENDED]
    assert out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("status", "lines", "text"),
    [(200, [STARTED], "the gateway has gone"), (404, [{"error": "There is nothing here."}], "There is nothing here.")],
)
def test_a_trace_that_is_cut_off_or_refused_fails(
    stream: _Stream, capsys: pytest.CaptureFixture[str], status: int, lines: list[Any], text: str
) -> None:
    stream.status, stream.lines = status, lines
    assert main(["trace", "session-a"]) == ExitCode.FAILURE
    assert text in capsys.readouterr().err

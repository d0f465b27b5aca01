"""Traces over HTTP: a response that goes on for as long as the trace, one JSON object on each line.

The lines wait in the process that saw the frames, within bounds, and are fetched a few times a second when the reader
has taken those before. So a slow reader costs memory of that bound, and lines; nobody waits for it. Of several
workers each has its part of a trace.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp import web

from gateway.admin.http_exchange import HEADERS, error_answer
from gateway.admin.listing import QueryError, check_parameters, number
from gateway.server.client.trace import TracePart, TraceTarget, TraceTargetError
from gateway.times import iso

if TYPE_CHECKING:
    from gateway.admin.http_exchange import HttpTimeouts
    from gateway.admin.workers_view import View

log = structlog.get_logger("gateway.admin")

# At the same time.
_MOST_TRACES: Final = 4

# Seconds: that a trace takes if the request does not say, and at most; that its end may take beyond; between two looks
# for new lines; and after which an empty line shows both sides that the other one is there.
_USUAL_TIME: Final = 300
_MOST_TIME: Final = 3600
_MARGIN: Final = 30.0
_INTERVAL: Final = 0.2
_SILENCE: Final = 3.0


class TraceStreams:
    """The traces that operators read now; ``begun`` is called for the request of each when it has begun."""

    def __init__(self, view: View, timeouts: HttpTimeouts, begun: Callable[[web.Request], None]) -> None:
        self._view = view
        self._begun = begun
        self._timeouts = timeouts
        self._count = 0
        self.is_stopping = False

    async def answer(self, request: web.Request, operator: str) -> web.StreamResponse:
        """Trace as the query of a request says, until it is over or the reader has gone.

        Raises:
            QueryError: the query makes no sense.
            web.HTTPNotFound: there is no such session.
        """
        query = request.query
        check_parameters(query, "session", "login", "address", "seconds")
        try:
            target = TraceTarget(*(query.get(name) for name in ("session", "login", "address")))
        except TraceTargetError as error:
            raise QueryError(str(error)) from None
        seconds = number(query, "seconds", _USUAL_TIME, _MOST_TIME)
        if self._count >= _MOST_TRACES:
            return error_answer(409, f"There are {_MOST_TRACES} traces already; end one of them.")
        self._count += 1
        name = secrets.token_hex(8)
        try:
            clients = await self._view.trace_begin(name, target, seconds)
            if target.session is not None and not clients:
                raise web.HTTPNotFound
            self._timeouts.response_takes(request.transport, seconds + _MARGIN)
            log.info("trace started", target=str(target), seconds=seconds, clients=clients, asked_by=operator)
            self._begun(request)
            started = {"event": "trace started", "target": str(target), "clients": clients, "until": _moment(seconds)}
            return await self._stream(request, name, started)
        finally:
            self._count -= 1
            await self._view.trace_end(name)

    async def _stream(self, request: web.Request, name: str, started: dict[str, object]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", **HEADERS})
        frames = left_out = 0
        reason: str | None = None
        try:
            await response.prepare(request)
            await response.write(_line(**started))
            written_at = time.monotonic()
            while reason is None:
                await asyncio.sleep(_INTERVAL)
                part = await self._view.trace_take(name)
                frames, left_out = frames + part.frames, left_out + part.left_out
                text = b"".join(_lines_of(part))
                reason = part.end or ("the gateway is stopping" if self.is_stopping else None)
                if reason is not None:
                    text += _line(event="trace ended", reason=reason, frames=frames, left_out=left_out)
                if text or time.monotonic() - written_at > _SILENCE:
                    await response.write(text or b"\n")
                    written_at = time.monotonic()
            await response.write_eof()
        except ConnectionError:
            reason = "its reader has gone"
        finally:
            log.info("trace ended", target=started["target"], reason=reason, frames=frames, left_out=left_out)
        return response


def _lines_of(part: TracePart) -> Iterator[bytes]:
    for line in part.lines:
        yield line.encoded + b"\n"
    if part.left_out:
        yield _line(event="frames left out", frames=part.left_out)
    if part.clients_left_out:
        yield _line(event="clients left out", clients=part.clients_left_out)


def _line(**facts: object) -> bytes:
    return json.dumps({"time": _moment(0), **facts}, separators=(",", ":")).encode() + b"\n"


def _moment(seconds: float) -> str:
    """The time in this many seconds."""
    return iso((time.time() + seconds) * 1e6, "microseconds")

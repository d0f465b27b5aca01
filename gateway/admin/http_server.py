"""HTTP of the admin listener: the resources, and what all responses have in common."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp import web

from gateway.admin.access import Access, Guesses, WrongPasscodeError, credentials, may
from gateway.admin.gateway_view import LISTINGS
from gateway.admin.http_exchange import (
    HEADERS,
    OTHER_PAGE,
    HttpTimeouts,
    error_answer,
    is_own_page,
    json_answer,
    peer_of,
)
from gateway.admin.listing import QueryError, check_parameters, number
from gateway.admin.traces import TraceStreams
from gateway.config.effective import effective
from gateway.errors import ConfigError
from gateway.server.client.failed_logins import TooManyFailedLoginsError
from gateway.server.client_address import network_of
from gateway.server.listen.accepted_connection import AcceptedConnection
from gateway.server.log_limits import LogRateLimiter
from gateway.server.process.logs import CONFIGURED, LEVELS
from gateway.server.process.readiness import MOST_WORKERS_DIE
from gateway.server.process.reload import StoppingError
from gateway.server.process.worker_channel import WorkerGoneError

if TYPE_CHECKING:
    from gateway.admin.workers_view import View
    from gateway.config.broker_user import AdminUser
    from gateway.config.listener_settings import AdminSettings
    from gateway.server.process.served import Outcome

log = structlog.get_logger("gateway.admin")

# Bytes of a request's first line, and of each header. Bodies are never read.
_MAX_LINE: Final = 4096

# Seconds: how long an idle connection waits for another request, and a stopping one until its response is read.
_KEEP_ALIVE: Final = 15.0
_SHUTDOWN: Final = 2.0

# Seconds that another log level holds if the request does not say, and at most.
_USUAL_LEVEL_TIME: Final = 600
_MOST_LEVEL_TIME: Final = 86_400

# Characters of an operator's reason for closing a session.
_MAX_REASON: Final = 200

_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_SCRIPT: Final = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_API_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"
_PAGE_POLICY: Final = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

# For probes, which have no passcode and may not know this host's name.
_WITHOUT_USER: Final = frozenset(("/healthz", "/readyz"))
_WITHOUT_HOST: Final = frozenset(("/healthz",))

# Reasons of not being ready that everybody may know.
_PUBLIC_REASONS: Final = frozenset(("draining", "no listener is open", "no worker is running", MOST_WORKERS_DIE))

# Where a request keeps the user who sent it.
_USER: Final = "user"

# And that it had wrong credentials.
_FAILED_LOGIN: Final = "failed login"

# The lowest HTTP status of a request that did nothing, and the statuses of a refusal.
_ERROR: Final = 400
_REFUSED: Final = frozenset((401, 403, 429))

# Characters of a request in the log.
_MAX_ASKED: Final = 300

_ERROR_TEXTS: Final = {
    404: "There is no such thing here. A session may have ended.",
    405: "This cannot be done here.",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminHttpServer:
    """The HTTP server of an admin listener; ``view`` is what it shows, ``guesses`` bounds wrong passcodes."""

    def __init__(self, view: View, settings: AdminSettings, guesses: Guesses) -> None:
        self._view = view
        self._guesses = guesses
        self._access = Access(settings)
        self._log_rate_limiter = LogRateLimiter(asyncio.get_running_loop().time)
        page = files("gateway.admin").joinpath("page.html").read_text("utf-8")
        self._page, self._page_policy = page.encode(), _page_policy(page)
        application = web.Application(middlewares=[self._respond])
        # A route with a name changes something, or shows what clients say: it is audited under this name.
        application.add_routes(
            [
                web.get("/", self._get_page),
                web.get("/healthz", self._get_health),
                web.get("/readyz", self._get_readiness),
                web.get("/metrics", self._get_metrics),
                web.get("/api/overview", self._get_overview),
                *(web.get(f"/api/{name}", partial(self._get_list, name)) for name in LISTINGS),
                web.get("/api/sessions/{id}", self._get_session),
                web.delete("/api/sessions/{id}", self._delete_session, name="close-session"),
                web.post("/api/reload", self._post_reload, name="reload"),
                web.post("/api/trace", self._post_trace, name="trace"),
                web.get("/api/config", self._get_config),
                web.get("/api/log-level", self._get_log_level),
                web.post("/api/log-level", self._post_log_level, name="log-level"),
                web.post("/api/links/fail-back", self._post_fail_back, name="fail-back"),
            ]
        )
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_silent_logger(),
            handle_signals=False,
            keepalive_timeout=_KEEP_ALIVE,
            shutdown_timeout=_SHUTDOWN,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_LINE,
        )
        self._timeouts = HttpTimeouts(self._protocol)
        self._traces = TraceStreams(view, self._timeouts, self._audit)

    def use(self, settings: AdminSettings) -> None:
        """Let other users and host names in from now on."""
        self._access = Access(settings)

    async def start(self) -> None:
        """Prepare for connections; `connection` may be called afterwards."""
        await self._runner.setup()

    async def stop(self) -> None:
        """Answer the requests that have come, and close every connection."""
        self._traces.is_stopping = True
        await self._runner.cleanup()

    def connection(self, accepted: AcceptedConnection) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return self._timeouts.connection(accepted.on_closed)

    def _protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        if server is None:
            raise RuntimeError("not started")
        return server()

    @web.middleware
    async def _respond(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._timeouts.request_complete(request.transport)
        try:
            response = await self._refusal(request) or await handler(request)
        except QueryError as error:
            response = error_answer(400, str(error))
        except WorkerGoneError as error:
            response = error_answer(503, str(error))
        except web.HTTPException as error:
            response = error_answer(error.status, _ERROR_TEXTS.get(error.status, error.reason))
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except Exception as error:
            log.error("admin request failed", path=request.path[:100], exc_info=error)
            response = error_answer(500, "A fault of the gateway; its log has it whole.")
        if not response.prepared:
            self._audit(request, response)
        response.headers.update(HEADERS)
        response.headers.setdefault("Content-Security-Policy", _API_POLICY)
        self._timeouts.response_made(request.transport)
        return response

    async def _refusal(self, request: web.Request) -> web.Response | None:
        path, host = request.path, request.headers.get("Host")
        # Every browser sends a Host header; a load balancer's health check may not.
        if path not in _WITHOUT_HOST and host is not None and not self._access.is_host_known(host):
            return error_answer(
                403, "This name is not known here: ask by an IP address, or list the name under admin.allowed_hosts."
            )
        if not self._access.is_open and path not in _WITHOUT_HOST:
            refusal = await self._identify(request)
            if path in _WITHOUT_USER or refusal is not None:
                return None if path in _WITHOUT_USER else refusal
            user: AdminUser = request[_USER]
            if not may(user, request.method, path):
                return error_answer(403, f"The role of this user, {user.role}, does not allow this.")
        return None if request.match_info.route.name is None else self._change_refused(request)

    async def _identify(self, request: web.Request) -> web.Response | None:
        """Find out who asks, and note it in the request; what to answer if that is nobody."""
        authorization = request.headers.get("Authorization")
        if authorization is None:
            return _asked_for_user()
        try:
            request[_USER] = await self._guesses.check(peer_of(request), *credentials(authorization), self._access)
        except WrongPasscodeError:
            request[_FAILED_LOGIN] = True
            return _asked_for_user()
        except TooManyFailedLoginsError as failed:
            request[_FAILED_LOGIN] = True
            refusal = error_answer(429, f"Too many failed logins. Try again in {failed.seconds} seconds.")
            refusal.headers["Retry-After"] = str(failed.seconds)
            return refusal
        return None

    def _audit(self, request: web.Request, response: web.StreamResponse | None = None) -> None:
        """Note an action, or why there was none; without a response it has just begun. Looks are not noted."""
        status = 200 if response is None else response.status
        outcome: Outcome = "done" if status < _ERROR else "refused" if status in _REFUSED else "failed"
        peer, user, action = peer_of(request), self._user(request), request.match_info.route.name
        login: str | None = None
        if _FAILED_LOGIN in request:
            # A name that is none may be a passcode in the wrong place.
            action, outcome, claimed = action or "login", "refused", credentials(request.headers["Authorization"])[0]
            login = claimed if self._access.has_user(claimed) else None
        elif action is None and user is not None and outcome == "refused":
            action = "request"
        if action is None:
            return
        left_out = 0
        if outcome == "refused":
            limited = self._log_rate_limiter.left_out(user or network_of(peer.host))
            if limited is None:
                return
            left_out = limited
        asked = f"{request.method} {request.path_qs}"[:_MAX_ASKED]
        reason = None if response is None or outcome == "done" else _error_of(response)
        self._view.gateway.audit.write(
            action, outcome, user, peer, asked=asked, login=login, reason=reason, left_out=left_out or None
        )

    def _user(self, request: web.Request) -> str | None:
        user = request.get(_USER)
        return None if user is None else user.login

    def _may_look(self, request: web.Request) -> bool:
        user: AdminUser | None = request.get(_USER)
        return user is not None and may(user, "GET", "/")

    def _change_refused(self, request: web.Request) -> web.Response | None:
        """Why a request that changes something, or shows what clients say, gets another answer."""
        if self._user(request) is None and not peer_of(request).is_local:
            return error_answer(403, "Only this machine may do this, unless users are configured for admin.")
        return None if is_own_page(request) else error_answer(403, OTHER_PAGE)

    def _operator(self, request: web.Request) -> str:
        peer, user = peer_of(request), self._user(request)
        return f"{peer} as {user}" if user else str(peer)

    async def _get_health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _get_readiness(self, request: web.Request) -> web.Response:
        check_parameters(request.query, "virtual_host")
        readiness = await self._view.readiness()
        if (name := request.query.get("virtual_host")) is not None:
            if name not in readiness.virtual_hosts:
                raise web.HTTPNotFound
            readiness = readiness.of(name)
        reasons = list(readiness.reasons)
        if reasons and not self._access.is_open and not self._may_look(request):
            # The reasons may hold addresses of brokers, which are not for everybody.
            reasons = [reason if reason in _PUBLIC_REASONS else "no broker can be reached" for reason in reasons[:1]]
        status = 200 if readiness.is_ready else 503
        warnings = {"warnings": list(readiness.warnings)} if readiness.warnings else {}
        return json_answer({"ready": readiness.is_ready, "reasons": reasons, **warnings}, status)

    async def _get_metrics(self, request: web.Request) -> web.Response:
        text, content_type = await self._view.metrics(request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": content_type})

    async def _get_page(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": self._page_policy}
        return web.Response(body=self._page, headers=headers)

    async def _get_overview(self, request: web.Request) -> web.Response:
        check_parameters(request.query)
        return json_answer(await self._view.overview())

    async def _get_list(self, name: str, request: web.Request) -> web.Response:
        return json_answer(await self._view.page(name, LISTINGS[name].read(request.query)))

    async def _get_session(self, request: web.Request) -> web.Response:
        check_parameters(request.query)
        found = await self._view.session(request.match_info["id"])
        if found is None:
            raise web.HTTPNotFound
        return json_answer(found)

    async def _delete_session(self, request: web.Request) -> web.Response:
        check_parameters(request.query, "reason")
        peer, user = peer_of(request), self._user(request)
        reason = _UNPRINTABLE.sub(" ", request.query.get("reason", "")).strip()[:_MAX_REASON]
        if not await self._view.close_session(request.match_info["id"], reason, str(peer), user):
            raise web.HTTPNotFound
        return web.Response(status=204)

    async def _post_reload(self, request: web.Request) -> web.Response:
        check_parameters(request.query)
        if self._view.gateway.reload is None:
            return error_answer(409, "This gateway has no configuration file.")
        try:
            done = await self._view.gateway.reload(self._operator(request))
        except StoppingError:
            return error_answer(409, "The gateway is stopping and does not read its configuration any more.")
        except ConfigError as refused:
            mistakes = [asdict(mistake) for mistake in refused.mistakes]
            return json_answer({"error": str(refused), "file": refused.file, "mistakes": mistakes}, 422)
        restart = [{"key": key, "in_use": value} for key, value in done.restart.items()]
        warnings = [str(warning) for warning in self._view.gateway.config.warnings]
        return json_answer({"changes": done.changes, "restart": restart, "warnings": warnings})

    async def _get_config(self, request: web.Request) -> web.Response:
        check_parameters(request.query)
        return json_answer(effective(self._view.gateway.config))

    async def _post_trace(self, request: web.Request) -> web.StreamResponse:
        return await self._traces.answer(request, self._operator(request))

    async def _get_log_level(self, request: web.Request) -> web.Response:
        check_parameters(request.query)
        return json_answer(self._view.gateway.log_level.shown())

    async def _post_log_level(self, request: web.Request) -> web.Response:
        check_parameters(request.query, "level", "seconds")
        level, known = request.query.get("level"), (*LEVELS, CONFIGURED)
        if level not in known:
            raise QueryError(f"level is one of {', '.join(known)}.")
        seconds = number(request.query, "seconds", _USUAL_LEVEL_TIME, _MOST_LEVEL_TIME)
        self._view.gateway.log_level.change(level, seconds, self._operator(request))
        return json_answer(self._view.gateway.log_level.shown())

    async def _post_fail_back(self, request: web.Request) -> web.Response:
        check_parameters(request.query, "virtual_host")
        items = await self._view.fail_back(request.query.get("virtual_host"))
        if not items:
            return error_answer(404, "The configuration has no such virtual host.")
        for item in items:
            log.info("links fail back", operator=str(peer_of(request)), user=self._user(request), **item)
        return json_answer({"items": items})


def _error_of(response: web.StreamResponse) -> str | None:
    """The text of an `error_answer`; None for any other, as that to a probe with a wrong passcode."""
    if not isinstance(response, web.Response) or response.content_type != "application/json":
        return None
    error = json.loads(response.text or "{}").get("error")
    return error if isinstance(error, str) else None


def _asked_for_user() -> web.Response:
    refusal = error_answer(401, "This needs a user and a passcode.")
    refusal.headers["WWW-Authenticate"] = 'Basic realm="stomp-gateway", charset="UTF-8"'
    return refusal


def _silent_logger() -> logging.Logger:
    """For the HTTP library, whose own log lines quote requests, passcodes included."""
    logger = logging.getLogger("gateway.admin.http")
    logger.setLevel(logging.CRITICAL + 1)
    return logger


def _page_policy(page: str) -> str:
    """A content security policy that lets the page's own scripts run, and no others."""
    digests = (hashlib.sha256(script.encode()).digest() for script in _SCRIPT.findall(page))
    scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return _PAGE_POLICY.format(scripts=scripts or "'none'")

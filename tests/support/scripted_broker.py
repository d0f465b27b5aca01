"""A broker of a few lines for unit tests of a session's bridge: its answers and the loss of links are a script."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pamqp.frame
from pamqp import commands
from pamqp.base import Frame

from gateway.config.model import Logging
from gateway.config.virtual_host import VirtualHost
from gateway.pieces import joined
from gateway.server.broker.broker_errors import CONNECTION_FORCED, LinkDownError
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.connector import Credentials
from gateway.server.broker.link import Link, Tuning
from gateway.server.broker.login_links import LoginLinks
from gateway.server.client.bridge import Bridge
from gateway.server.client.login_handler import LoginHandler
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import OperationStarts, PacedWork
from gateway.session import ops
from gateway.session.connect import ClientFacts
from gateway.session.session import Session
from gateway.stomp.decoder import Decoder, FrameLimits
from tests.support.virtual_time import run_in_virtual_time

_LATENCY = 0.001
BEFORE_ANSWERS = _LATENCY / 2
"""A pause in seconds in which methods reach the broker, but no answers come back."""
_LIMITS = FrameLimits(frame=65536)


def usual_answer(method: Frame) -> Frame | None:
    """What a broker answers that refuses nothing; None to what has no answer, such as a publish."""
    if getattr(method, "nowait", False):
        return None
    if isinstance(method, commands.Queue.Declare):
        return commands.Queue.DeclareOk(method.queue, 0, 0)
    if isinstance(method, commands.Queue.Delete):
        return commands.Queue.DeleteOk(0)
    if isinstance(method, commands.Basic.Consume):
        return commands.Basic.ConsumeOk(method.consumer_tag)
    if isinstance(method, commands.Basic.Cancel):
        return commands.Basic.CancelOk(method.consumer_tag)
    plain = (
        commands.Channel.OpenOk,
        commands.Channel.CloseOk,
        commands.Queue.BindOk,
        commands.Confirm.SelectOk,
        commands.Basic.QosOk,
    )
    return next((answer() for answer in plain if answer.name == f"{method.name}Ok"), None)


def answer_without_queue(method: Frame) -> Frame | None:
    """What a broker answers in which no queue exists, if it is asked for one; else the usual answer."""
    if isinstance(method, commands.Queue.Declare) and method.passive:
        return commands.Channel.Close(404, f"NOT_FOUND - no queue '{method.queue}' in vhost '/'", 50, 10)
    if isinstance(method, commands.Queue.Declare) and "x-max-length" in (method.arguments or {}):
        return commands.Channel.Close(406, f"PRECONDITION_FAILED - invalid arg for queue '{method.queue}'", 50, 10)
    return usual_answer(method)


class ScriptedBroker:
    """Answers on all links; ``script`` gives the answer to a method of a link."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.paced = PacedWork()
        # How long a link takes to open, in seconds.
        self.link_latency = 0.0
        # Whether no broker answers any more who wants to open a link.
        self.is_gone = False
        # How many channels a link may have.
        self.channel_max = 2047
        # What its links tell as its version; nothing by default.
        self.version: tuple[int, ...] = ()
        # The methods that came, by name, and the channel of the last one.
        self.methods: list[str] = []
        self.channel = 0
        self.script: Callable[[Link, Frame], Frame | None] = lambda link, method: usual_answer(method)

    async def open_link(self, virtual_host: VirtualHost, credentials: Credentials, purpose: str, *more: object) -> Link:
        """Open a link, as a dialer does."""
        if self.is_gone:
            raise LinkDownError(CONNECTION_FORCED, "no broker answers")
        if self.link_latency:
            await asyncio.sleep(self.link_latency)
        log_limits = LogLimits(Logging(), lambda: 0.0)
        whose, broker = ClientProperties(purpose, virtual_host.name, "guest"), virtual_host.upstream.urls[0]
        link = Link(whose, broker, lambda: None, log_limits, self.paced)
        transport = SimpleNamespace(
            get_write_buffer_size=lambda: 0,
            abort=lambda: None,
            write=lambda data: self._read(link, data),
            writelines=lambda pieces: self._read(link, b"".join(pieces)),
        )
        under = SimpleNamespace(connection=SimpleNamespace(close=partial(self._close, link)))
        connection = SimpleNamespace(transport=under, close=partial(asyncio.sleep, 0))
        tap = SimpleNamespace(transport=transport, resume_reading=lambda reason: None)
        link.opened(cast(Any, connection), cast(Any, tap), Tuning(131072, self.channel_max, self.version))
        self.links.append(link)
        return link

    def _read(self, link: Link, data: bytes) -> None:
        while data:
            length, channel, method = cast("tuple[int, int, Frame]", pamqp.frame.unmarshal(data))
            data = data[length:]
            self.methods.append(method.name)
            self.channel = channel
            answer = self.script(link, method)
            if answer is not None:
                frame = pamqp.frame.marshal(answer, channel)
                asyncio.get_running_loop().call_later(_LATENCY, self.tell, link, frame)

    @staticmethod
    def tell(link: Link, frame: bytes) -> None:
        """Send something over a link."""
        if link.closed is None:
            link.splitter.receive(frame)
            link.batch_done()

    @staticmethod
    async def _close(link: Link) -> None:
        link.connection_lost(None, by_broker=False)

    def lose(self, *links: Link) -> None:
        """Cut links, or all if none is given."""
        for link in links or tuple(self.links):
            if link.closed is None:
                link.connection_lost(None, by_broker=True)

    @staticmethod
    def close(link: Link, code: int) -> None:
        """Close a link because of something that was sent on it."""
        if link.closed is None:
            link.closed = LinkDownError(code, f"{code} - it was bad")
            link.connection_lost(None, by_broker=True)


class BridgedClient:
    """A client with its session and its bridge to a broker, without a socket.

    It may share the links of another one, or have a login of its own.
    """

    def __init__(
        self,
        broker: ScriptedBroker,
        settings: VirtualHost,
        other: BridgedClient | None = None,
        login: LoginHandler | None = None,
    ) -> None:
        self.output = b""
        # How often something has happened that it may have to act upon.
        self.advances = 0
        # Whether nobody else needs the time.
        self.has_time = True
        self.failures: list[Exception] = []
        # What the end of the session has given back.
        self.released: list[str] = []
        self.session = Session(b"session-x", b"gateway", lambda host: settings, _LIMITS)
        self.session.set_client(ClientFacts())
        self._decoder = Decoder(_LIMITS)
        self._tasks: set[asyncio.Task[None]] = set()
        fresh = LoginLinks(settings, Credentials("guest", "guest"), broker.open_link)
        self.links: LoginLinks = fresh if other is None else other.links
        always = SimpleNamespace(
            links=self.links,
            is_kept_back=False,
            log_in_at_once=lambda operation: None,
            log_in=self._log_in,
            log_out=lambda: None,
            close=lambda: self.released.append("login"),
            release_links=lambda: self.released.append("links"),
        )
        # Whether a broker went or came lately.
        self.brokers_changed = False
        self.changed_ago = 0.0
        self.slots = asyncio.Semaphore(32)
        pool = SimpleNamespace(
            queue_conflicts=SimpleNamespace(write=lambda *texts: None),
            brokers_changed=lambda host, within=math.inf: self.brokers_changed and self.changed_ago < within,
            queue_away=lambda host: setattr(self, "brokers_changed", True),
            drain=SimpleNamespace(slots=self.slots),
            starts=OperationStarts(),
            log_limits=LogLimits(Logging(), lambda: 0.0),
        )
        self.bridge = Bridge(self.session, self, cast(Any, pool), login or cast(Any, always), "client", self._spawn)

    @staticmethod
    async def _log_in(operation: ops.Login) -> ops.Event:
        return ops.LoggedIn((3, 10, 8))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def advance(self) -> None:
        """Go on as far as it goes."""
        self.advances += 1
        self.session.run(self._decoder)
        while self.bridge.flush():
            self.session.run(self._decoder)
        self.output += joined(self.session.output)
        self.session.output.clear()

    def flush_batch(self) -> None:
        """Go on after a read from the broker."""
        self.advance()

    def advance_paced(self) -> None:
        """Go on when there is time."""
        if self.has_time:
            self.advance()

    def advance_rest(self) -> None:
        """Go on with what waits in the decoder."""
        self.advance_paced()

    def failed(self, error: Exception) -> None:
        """A fault of the gateway."""
        self.failures.append(error)

    async def say(self, *frames: str, seconds: float = 1.0) -> None:
        """Send frames, and let some time pass."""
        self._decoder.feed("".join(f"{frame}\0" for frame in frames).encode())
        self.advance()
        await asyncio.sleep(seconds)

    async def connect(self) -> None:
        """Log in."""
        await self.say("CONNECT\naccept-version:1.2\nlogin:guest\npasscode:guest\nhost:/\n\n")

    def leave(self) -> None:
        """Hang up."""
        self.session.client_gone()
        self.bridge.release()


Scene = Callable[[ScriptedBroker, BridgedClient], Coroutine[Any, Any, None]]


def play(scene: Scene, **settings: object) -> None:
    """Play a scene with a client that has logged in; nothing in it may be a fault of the gateway."""

    async def work() -> None:
        broker = ScriptedBroker()
        client = BridgedClient(broker, VirtualHost.model_validate({"name": "/", **settings}))
        await client.connect()
        await scene(broker, client)
        assert client.failures == []

    run_in_virtual_time(work())

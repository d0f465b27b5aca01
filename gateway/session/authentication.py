"""The part of a session before it is connected: CONNECT, or what comes in its place, and the broker's answer."""

from __future__ import annotations

from typing import Final

from gateway.config.virtual_host import FindVirtualHost
from gateway.errors import CloseReason, StompError
from gateway.session import error_frames, ops
from gateway.session.connecting import Connect, read_connect
from gateway.session.context import SessionContext
from gateway.session.transitions import State
from gateway.stomp.encoder import encode
from gateway.stomp.frame import Frame
from gateway.stomp.heartbeat import Heartbeats


class Authentication:
    """Who the client is, and what was agreed with it.

    Args:
        context: of the session.
        server: value of the server header.
        resolve: finds the settings of a virtual host.
    """

    __slots__ = (
        "_connect", "_context", "_resolve", "_server", "certificate_name", "credentials", "heartbeats",
        "implicit_connect", "is_local",
    )  # fmt: skip

    def __init__(self, context: SessionContext, server: bytes, resolve: FindVirtualHost) -> None:
        self.heartbeats: Heartbeats = _NO_HEARTBEATS
        # About the client, known to the owner: whether it connects from this machine, the name in its certificate where
        # that may stand in for a login, and whether its listener lets it leave out CONNECT.
        self.is_local = True
        self.certificate_name: str | None = None
        # Login and passcode that came before CONNECT and count for more, with HTTP.
        self.credentials: tuple[bytes, bytes] | None = None
        self.implicit_connect = False
        self._context = context
        self._server = server
        self._resolve = resolve
        self._connect: Connect | None = None

    def connect(self, frame: Frame) -> None:
        """CONNECT or STOMP."""
        headers = frame.headers
        if self.credentials is not None:
            login, passcode = self.credentials
            headers = {**headers, b"login": login, b"passcode": passcode}
        self._ask(read_connect(headers, self._resolve, self.certificate_name), frame)

    def connect_implicitly(self, frame: Frame) -> None:
        """A frame that should have come after CONNECT. Where the listener allows it, it is carried out all the same.

        Raises:
            StompError: where it does not, or where there is nobody to log in as.
        """
        if not self.implicit_connect:
            raise error_frames.not_connected()
        # The client speaks STOMP 1.0, whether it is let in or not.
        self._context.trims = True
        try:
            connect = read_connect({}, self._resolve, self.certificate_name, implicit=True)
        except StompError as error:
            raise error_frames.closed_for(error, CloseReason.BROKER_ERROR) from None
        self._ask(connect, frame)

    def _ask(self, connect: Connect, frame: Frame) -> None:
        self._connect = connect
        context = self._context
        context.strict = connect.login.settings.strict
        context.ask(connect.login, frame, again=connect.implicit)
        context.move(State.AUTHENTICATING)

    def accepted(self) -> bool:
        """The broker accepted the login.

        Returns:
            Whether the session is connected now. It is not where the gateway has reasons of its own to refuse.
        """
        connect, context = self._connect, self._context
        if connect is None or context.state is not State.AUTHENTICATING:
            context.answered()
            return False
        try:
            self.heartbeats = connect.accept(is_local=self.is_local)
        except StompError as error:
            self._refuse(error)
            return False
        self._connect = None
        context.answered()
        context.version = connect.version
        context.trims = connect.version == b"1.0"
        context.login = connect.login.login
        context.settings = connect.login.settings
        context.move(State.CONNECTED)
        context.observer = context.observe()
        if connect.implicit:
            context.used("implicit-connect")
        if not connect.implicit:
            context.output.append(self._connected(connect))
        return True

    def _connected(self, connect: Connect) -> bytes:
        headers = [
            (b"session", self._context.identity),
            (b"heart-beat", self.heartbeats.header),
            (b"version", connect.version),
        ]
        if not connect.login.settings.hide_server_info:
            headers.insert(0, (b"server", self._server))
        return encode(b"CONNECTED", headers)

    def failed(self, event: ops.LoginFailed) -> None:
        """The broker refused the login."""
        if self._connect is not None:
            login = self._connect.login
            self._refuse(error_frames.login_failed(event.code, event.text, login.login, login.settings))

    def impossible(self) -> None:
        """No broker answered."""
        self._refuse(error_frames.broker_unreachable())

    def refused(self, error: StompError) -> None:
        """The gateway lets nobody more in."""
        self._refuse(error)

    def _refuse(self, error: StompError) -> None:
        """The client may send another CONNECT; one that sent none at all has no business here."""
        connect, self._connect = self._connect, None
        context = self._context
        frame = context.waiting
        context.again = False
        context.answered()
        if context.state is not State.AUTHENTICATING:
            return
        context.move(State.CONNECTING)
        if connect is not None and connect.implicit and error.close is None:
            error = error_frames.closed_for(error, CloseReason.BROKER_ERROR)
        context.fail(error, context.receipt_of(frame) if frame else None)


_NO_HEARTBEATS: Final = Heartbeats()

"""The part of a session before it is connected: CONNECT, or what comes in its place, and the broker's answer."""

from __future__ import annotations

from typing import Final

from gateway.errors import CloseReason, StompError
from gateway.session import ops, refusals
from gateway.session.connecting import Connect, read_connect
from gateway.session.conversation import Conversation
from gateway.session.settings import Resolve
from gateway.session.transitions import State
from gateway.stomp.encoder import encode
from gateway.stomp.frame import Frame
from gateway.stomp.heartbeat import Heartbeats


class Authentication:
    """Who the client is, and what was agreed with it.

    Args:
        conversation: of the session.
        server: value of the server header.
        resolve: finds the settings of a virtual host.
    """

    __slots__ = (
        "_connect", "_conversation", "_resolve", "_server", "certificate_name", "credentials", "heartbeats",
        "implicit_connect", "is_local",
    )  # fmt: skip

    def __init__(self, conversation: Conversation, server: bytes, resolve: Resolve) -> None:
        self.heartbeats: Heartbeats = _NO_HEARTBEATS
        # About the client, known to the owner: whether it connects from this machine, the name in its certificate where
        # that may stand in for a login, and whether its listener lets it leave out CONNECT.
        self.is_local = True
        self.certificate_name: str | None = None
        # Login and passcode that came before CONNECT and count for more, with HTTP.
        self.credentials: tuple[bytes, bytes] | None = None
        self.implicit_connect = False
        self._conversation = conversation
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
            raise refusals.not_connected()
        # The client speaks STOMP 1.0, whether it is let in or not.
        self._conversation.trims = True
        try:
            connect = read_connect({}, self._resolve, self.certificate_name, implicit=True)
        except StompError as error:
            raise refusals.closed_for(error, CloseReason.BROKER_ERROR) from None
        self._ask(connect, frame)

    def _ask(self, connect: Connect, frame: Frame) -> None:
        self._connect = connect
        conversation = self._conversation
        conversation.strict = connect.login.settings.strict
        conversation.ask(connect.login, frame, again=connect.implicit)
        conversation.move(State.AUTHENTICATING)

    def accepted(self) -> bool:
        """The broker accepted the login.

        Returns:
            Whether the session is connected now. It is not where the gateway has reasons of its own to refuse.
        """
        connect, conversation = self._connect, self._conversation
        if connect is None or conversation.state is not State.AUTHENTICATING:
            conversation.answered()
            return False
        try:
            self.heartbeats = connect.accept(is_local=self.is_local)
        except StompError as error:
            self._refuse(error)
            return False
        self._connect = None
        conversation.answered()
        conversation.version = connect.version
        conversation.trims = connect.version == b"1.0"
        conversation.login = connect.login.login
        conversation.settings = connect.login.settings
        conversation.move(State.CONNECTED)
        conversation.witness = conversation.observe()
        if connect.implicit:
            conversation.used("implicit-connect")
        if not connect.implicit:
            conversation.output.append(self._connected(connect))
        return True

    def _connected(self, connect: Connect) -> bytes:
        headers = [
            (b"session", self._conversation.identity),
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
            self._refuse(refusals.login_failed(event.code, event.text, login.login, login.settings))

    def impossible(self) -> None:
        """No broker answered."""
        self._refuse(refusals.broker_unreachable())

    def refused(self, error: StompError) -> None:
        """The gateway lets nobody more in."""
        self._refuse(error)

    def _refuse(self, error: StompError) -> None:
        """The client may send another CONNECT; one that sent none at all has no business here."""
        connect, self._connect = self._connect, None
        conversation = self._conversation
        frame = conversation.waiting
        conversation.again = False
        conversation.answered()
        if conversation.state is not State.AUTHENTICATING:
            return
        conversation.move(State.CONNECTING)
        if connect is not None and connect.implicit and error.close is None:
            error = refusals.closed_for(error, CloseReason.BROKER_ERROR)
        conversation.fail(error, conversation.receipt_of(frame) if frame else None)


_NO_HEARTBEATS: Final = Heartbeats()

"""The exception tree of the gateway, and the exit codes of its command.

Everything that the gateway raises on purpose is a `GatewayError`, and its text is one that a user can act upon.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum


class ExitCode(IntEnum):
    """What the `stomp-gateway` command returns to its caller. The numbers are a contract: scripts test them."""

    OK = 0
    """Done: `serve` drained and stopped, `check` found a usable upstream for every virtual host."""
    FAILURE = 1
    """Failed while running; `check`: a virtual host has no usable upstream; `parity`: a difference; `pipeline check`:
    something is missing; `migrate`: the file is written, and something has to be done before it can be used."""
    CONFIGURATION = 2
    """The configuration or the command line is wrong; nothing was started. (argparse uses the same number.)"""
    LISTEN = 3
    """A listener's address cannot be taken: in use, not permitted, or not one of this machine's."""
    INTERRUPTED = 130
    """Ctrl-C before the gateway was up, or during another command (128 + SIGINT, as shells count it)."""
    TERMINATED = 143
    """SIGTERM during `parity` or `pipeline ingest` (128 + SIGTERM)."""


class GatewayError(Exception):
    """Base of every error that the gateway raises on purpose."""


@dataclass(frozen=True)
class Mistake:
    """One mistake in a configuration file. No field ever holds a secret's value."""

    path: str
    """Where in the file, for example `virtual_hosts.orders.upstream.urls[0]`; empty for the file as a whole."""
    sentence: str
    """What is wrong."""
    suggestion: str | None = None
    """What to write instead, where that can be guessed."""
    line: int | None = None
    """Line in the file, counted from 1; None when the file does not mention the place at all."""
    column: int | None = None
    """Column in the line, counted from 1, where no path says what in the line is meant."""

    def __str__(self) -> str:
        numbers = f"line {self.line}" if self.line else ""
        numbers += f", column {self.column}" if self.column else ""
        place = ", ".join(part for part in (numbers, self.path) if part)
        text = f"{place}: {self.sentence}" if place else self.sentence
        return f"{text} {self.suggestion}" if self.suggestion else text


class ConfigError(GatewayError):
    """A configuration that cannot be used, with all mistakes in it, in the order of the file; at least one."""

    def __init__(self, mistakes: Sequence[Mistake], file: str) -> None:
        self.mistakes = tuple(mistakes)
        self.file = file
        count = "1 mistake" if len(self.mistakes) == 1 else f"{len(self.mistakes)} mistakes"
        super().__init__("\n".join([f"{file}: {count}", *(f"  {mistake}" for mistake in self.mistakes)]))


class SocketGroupError(OSError):
    """The file of a Unix-domain socket cannot be given to its group."""


class ListenError(GatewayError):
    """A listener's address, `host:port` or `unix:PATH` as configured under ``key``, cannot be taken."""

    def __init__(self, address: str, cause: OSError, key: str = "listeners") -> None:
        self.address = address
        self.cause = cause
        advice = _socket_advice(cause, key) if address.startswith("unix:") else _listen_advice(cause, key)
        super().__init__(f"cannot listen on {address}: {advice}")


def _listen_advice(cause: OSError, key: str) -> str:
    if cause.errno == errno.EADDRINUSE:
        return f"the port is taken. Stop what uses it, or give another port under {key} in the configuration."
    if cause.errno in (errno.EACCES, errno.EPERM):
        return "not permitted. Choose a port of 1024 or above, or give the gateway the right to use this one."
    if cause.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address. Use one of its own, or 0.0.0.0 for all of them."
    return f"{cause.strerror or cause}. Check this address under {key} in the configuration."


def _socket_advice(cause: OSError, key: str) -> str:
    """Of a Unix-domain socket, or of what the gateway does with its file."""
    reason = cause.strerror or str(cause)
    if cause.errno == errno.EADDRINUSE:
        return f"another program answers there. Stop it, or give another path under {key} in the configuration."
    if cause.errno == errno.EEXIST:
        return f"a file that is no socket is in the way. Give another path under {key} in the configuration."
    if isinstance(cause, SocketGroupError):
        return (
            f"the socket cannot be given to its group ({reason}). The gateway's user has to be in socket_group; in a "
            "service of systemd the unit has to permit it, see docs/deploy.md."
        )
    if cause.errno in (errno.EACCES, errno.EPERM):
        return (
            "not permitted. Give the gateway's user the right to read and write this directory; if another user's "
            "socket is in the way, delete it."
        )
    return f"{reason}. Check this path under {key} in the configuration."


class UsageError(GatewayError):
    """A command line that cannot be carried out, although each option by itself is well-formed."""


class JournalError(GatewayError):
    """A directory that the configuration names for the journal cannot be used, for the operating system's reason."""

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(
            f"the journal cannot be written to {directory}: {reason}. Give the gateway's user the right to write "
            "there, name another directory under journal in the configuration, or set its level to off."
        )


class JournalKeyError(GatewayError):
    """The key that the journal hashes logins with cannot be used."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"the key for logins in the journal, {path}, cannot be used: {reason}. Put another file there."
        )


class PipelineError(GatewayError):
    """The pipeline cannot do, or finish, what was asked; the text says what to do."""


class FrameError(GatewayError):
    """A client's bytes break the grammar of STOMP or a limit; the stream cannot be read any further.

    The text names the violation and quotes at most a few bytes of it.
    """


class CertificateUnreadableError(GatewayError):
    """A client's certificate has parts that cannot be read; the text says which, for the log only."""


class TlsHandshakeError(FrameError):
    """A client speaks TLS where STOMP is expected; it could not read an answer in the clear."""


class HttpRequestError(FrameError):
    """A client speaks HTTP where STOMP is expected."""


class SelectorError(GatewayError):
    """A text is no selector, or one that is too long or too deep; the words say what is wrong with it."""


class CodecError(GatewayError):
    """Bytes break AMQP 0-9-1, or a value does not fit into it."""


class CloseReason(Enum):
    """Why a session ended, for the log, the journal and the metrics."""

    DISCONNECT = "disconnect"
    """The client sent DISCONNECT."""
    CLIENT_GONE = "client-gone"
    """The client closed its connection without DISCONNECT."""
    MALFORMED_FRAME = "malformed-frame"
    TLS_ON_PLAIN_PORT = "tls-on-plain-port"
    """The client began a TLS handshake on a port without TLS."""
    HTTP_ON_STOMP_PORT = "http-on-stomp-port"
    """The client sent an HTTP request to a port for STOMP."""
    PROTOCOL_ERROR = "protocol-error"
    SESSION_LIMIT = "session-limit"
    """The virtual host, the user or the address had as many sessions as it may have."""
    FAILED_LOGINS = "failed-logins"
    """Too many logins from the client's address had failed."""
    LOGIN_TIMEOUT = "login-timeout"
    HEART_BEAT_TIMEOUT = "heart-beat-timeout"
    SLOW_CONSUMER = "slow-consumer"
    BROKER_ERROR = "broker-error"
    """The broker closed a channel of the session with an error."""
    BROKER_UNREACHABLE = "broker-unreachable"
    """No broker answered, so nobody could log in."""
    DESTINATION_DENIED = "destination-denied"
    """A destination rule of the operator's denied what the client asked for."""
    LOGIN_REFUSED = "login-refused"
    """The login of a client that left CONNECT out was refused."""
    LINK_LOST = "link-lost"
    """The AMQP connection that carried the session is gone."""
    OPERATION_TIMEOUT = "operation-timeout"
    """The broker did not answer in time."""
    ACCESS_REVOKED = "access-revoked"
    """The broker, asked again, does not accept the login any more."""
    OPERATOR = "operator"
    """An operator closed it."""
    TOKEN_EXPIRED = "token-expired"  # noqa: S105 - no password
    """The token that the client logged in with, or sent since, has expired."""
    SHUTDOWN = "shutdown"
    """The gateway is stopping."""
    INTERNAL_ERROR = "internal-error"
    """A fault of the gateway; the log has the details."""


@dataclass(frozen=True, slots=True)
class RefusedLogin:
    """A login that an ERROR refuses, for the log: what the client gave, and the virtual host that it asked for.

    ``hint``: what an operator may do about it. ``reason``: why, if the ERROR's body says more than that. ``is_logged``:
    whoever refused it has written the line.
    """

    virtual_host: str = ""
    login: bytes | None = None
    hint: str = ""
    reason: bytes = b""
    is_logged: bool = False


class StompError(GatewayError):
    """A frame that cannot be carried out, with the headers and the body of the ERROR frame that answers it.

    ``close`` is why the session ends with it, None when the connection stays open. ``reason`` is the same, also of an
    error that would have ended a session which goes on. ``subscription`` is the value of the
    ERROR's subscription header, if it has one. ``refused_login`` is set if the frame is a CONNECT with a login.
    """

    refused_login: RefusedLogin | None = None
    is_sent = True
    """False for an ERROR that is logged and counted, but not sent."""

    def __init__(
        self, message: str, body: str | bytes, close: CloseReason | None = None, subscription: bytes | None = None
    ) -> None:
        self.message = message
        self.body = body.encode() if isinstance(body, str) else body
        self.close = self.reason = close
        self.subscription = subscription
        super().__init__(message)

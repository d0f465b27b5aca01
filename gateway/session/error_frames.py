"""The texts of ERROR frames, equal to those of RabbitMQ's adapter wherever it has one."""

from __future__ import annotations

import re
from typing import Final

from gateway.config.virtual_host import VirtualHost
from gateway.errors import CloseReason, StompError
from gateway.stomp.frame import encode

SUPPORTED_VERSIONS: Final = "1.0,1.1,1.2"

_HTTP_TEXT: Final = (
    b"This port speaks STOMP, not HTTP. STOMP over WebSocket needs a listener with the key websocket, and "
    b"the status page and the metrics are on the port of the admin listener.\n"
)
HTTP_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
) % (len(_HTTP_TEXT), _HTTP_TEXT)
"""The answer to an HTTP client, which would not understand an ERROR."""

ACCESS_REFUSED: Final = 403
_PRECONDITION_FAILED: Final = 406
_NOT_ALLOWED: Final = 530
_NOT_IMPLEMENTED: Final = 540

# The most bytes of a client's text that an ERROR repeats.
LONGEST_NAME: Final = 255
# The width at which Erlang breaks the lines of a long list.
_LINE: Final = 78
_ERLANG_ESCAPES: Final = {
    8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 27: b"\\e", 34: b'\\"', 92: b"\\\\",
}  # fmt: skip

# AMQP 0-9-1 reply codes (section 1.2) and the names RabbitMQ gives them.
_AMQP_NAMES: Final = {
    311: "content_too_large",
    312: "no_route",
    313: "no_consumers",
    320: "connection_forced",
    402: "invalid_path",
    403: "access_refused",
    404: "not_found",
    405: "resource_locked",
    406: "precondition_failed",
    501: "frame_error",
    502: "syntax_error",
    503: "command_invalid",
    504: "channel_error",
    505: "unexpected_frame",
    506: "resource_error",
    530: "not_allowed",
    540: "not_implemented",
    541: "internal_error",
}

# RabbitMQ's words when it refuses because of an expired token, and when it closes the connection (4.3 and later).
_REFUSED_FOR_AGE: Final = "token has expired"
_CLOSED_FOR_AGE: Final = "credential expired"
# RabbitMQ's words for a user-id that is not the user's.
_FORGED_USER: Final = "user_id property set to"
# RabbitMQ's reply texts begin with the error's name in capitals.
_NAME_IN_TEXT: Final = re.compile(r"[A-Z]+(?:_[A-Z]+)* - ")
# RabbitMQ's adapter checks the permission to read a topic itself, and answers without the error's name.
_TOPIC_REFUSED: Final = re.compile(r"ACCESS_REFUSED - (?=(?:read )?access to topic )")


class ErrorText:
    """The template of an error. Each call returns a new `StompError`.

    Args:
        message: the ERROR's message header.
        body: the body, with ``%b``, ``%d`` and ``%g`` for the arguments of the call.
        close: if the error ends the session, the reason for that.
        as_term: show the only argument as Erlang prints a list of bytes.
    """

    def __init__(self, message: str, body: bytes, close: CloseReason | None = None, *, as_term: bool = False) -> None:
        self._message = message
        self._body = body
        self._close = close
        self._is_term = as_term

    def __call__(self, *words: bytes | str | float) -> StompError:
        """Make an error with these arguments. Bytes come from clients, and are cut after 255."""
        return StompError(self._message, self._body % tuple(map(self._shown, words)), self._close)

    def _shown(self, word: bytes | str | float) -> bytes | float:
        if isinstance(word, bytes):
            cut = word[:LONGEST_NAME]
            return _as_erlang(cut, self._body) if self._is_term else cut
        return word.encode() if isinstance(word, str) else word


def _as_erlang(term: bytes, template: bytes) -> bytes:
    """Show bytes as Erlang prints a list: as text in quotes, or as numbers if any is not printable Latin-1.

    A long list takes several lines, which begin below the ``%b`` of the template.
    """
    if not term:
        return b"[]"
    if all(each in _ERLANG_ESCAPES or 32 <= each <= 126 or each >= 160 for each in term):  # noqa: PLR2004
        return b'"%b"' % b"".join([_ERLANG_ESCAPES.get(each) or bytes([each]) for each in term])
    indent = len(template.partition(b"%b")[0].rpartition(b"\n")[2]) + 1
    lines = [""]
    for each in term:
        if len(lines[-1]) + len(f"{each},") > _LINE - indent:
            lines.append("")
        lines[-1] += f"{each},"
    numbers = ("\n" + " " * indent).join(lines)[:-1]
    return f"[{numbers}]".encode()


# CONNECT.

version_mismatch: Final = ErrorText("Version mismatch", b"Supported versions are 1.0,1.1,1.2\n")
not_connected: Final = ErrorText("Illegal command", b"You must log in using CONNECT first")
# RabbitMQ's adapter closes without an ERROR.
already_connected: Final = ErrorText("Illegal command", b"You are already connected.", CloseReason.PROTOCOL_ERROR)
# It closes the connection, so that the client reconnects, perhaps to another gateway.
broker_unreachable: Final = ErrorText(
    "Upstream unavailable", b"The message broker cannot be reached; try again later.\n", CloseReason.BROKER_UNREACHABLE
)
certificate_unreadable: Final = ErrorText("Bad CONNECT", b"The name in the client's certificate cannot be read.\n")
# Arguments: the user, address, virtual host or listener that has the limit, and the limit.
too_many_sessions: Final = ErrorText(
    "Session limit reached",
    b"%b has %d sessions, as many as are allowed; close one, or try again later.\n",
    CloseReason.SESSION_LIMIT,
)
too_many_connections: Final = ErrorText(
    "Too many connections",
    b"%b has %d connections, as many as are allowed; try again later.\n",
    CloseReason.SESSION_LIMIT,
)
# Argument: the seconds until the lock-out ends.
too_many_failed_logins: Final = ErrorText(
    "Too many failed logins",
    b"Too many logins from this address have failed; try again in %d seconds.\n",
    CloseReason.FAILED_LOGINS,
)
token_expired: Final = ErrorText(
    "Token expired",
    b"Your token has expired; connect again with a new one.\n",
    CloseReason.TOKEN_EXPIRED,
)
# The session continues with the old token. Argument: the reason.
token_refused: Final = ErrorText("Token refused", b"The token was not accepted: %b\n")

# Frames and headers.

# Argument: the text of the decoder's FrameError.
malformed: Final = ErrorText("Malformed frame", b"%b\n", CloseReason.MALFORMED_FRAME)
# For a SEND whose body was skipped, so that the session continues.
oversized: Final = ErrorText("Malformed frame", b"the frame is larger than %d octets\n")
bad_command: Final = ErrorText("Bad command", b"Could not interpret command %b\n", as_term=True)
# A header with an invalid value, in the terse words of RabbitMQ's adapter.
processing_error: Final = ErrorText("Processing error", b"Processing error")
# Arguments: command and header.
missing_header: Final = ErrorText("Missing header", b'"%b" must include the "%b" header\n')
invalid_ack_id: Final = ErrorText("Invalid header", b'"%b" must include a valid "%b" header\n')
# Arguments: header and size in bytes.
too_long: Final = ErrorText("Invalid header", b"The value of '%b' has %d octets; AMQP carries at most 255 there.\n")
not_for_amqp: Final = ErrorText("Invalid header", b"AMQP cannot carry these headers: %b.\n")
not_text: Final = ErrorText("Invalid header", b"The value of '%b' must be UTF-8 to name something on the broker.\n")

# SEND.

# Argument: SEND or SUBSCRIBE.
missing_destination: Final = ErrorText("Missing destination", b"\"%b\" must include a 'destination' header\n")
forbidden_message_id: Final = ErrorText("Invalid header", b"'message-id' is not allowed on 'SEND'.\n")
# In the form of a refusal by the broker. Arguments: command, destination and login.
destination_denied: Final = ErrorText(
    _AMQP_NAMES[ACCESS_REFUSED],
    b"ACCESS_REFUSED - a destination rule of the gateway denies %b to '%b' for user '%b'",
    CloseReason.DESTINATION_DENIED,
)
impossible_rewrite: Final = ErrorText(
    "Invalid destination",
    b"A destination rule of the gateway rewrites '%b' to '%b', which is not a valid destination.\n",
)
# The broker answered with basic.nack. Argument: destination.
rejected: Final = ErrorText("Message rejected", b"The broker did not accept the message for '%b'.\n")
# Arguments: destination, and the broker's reply text.
unroutable: Final = ErrorText("Unroutable message", b"No queue received the message for '%b': %b\n")
# For a SEND that is refused instead of held. Argument: the setting `hold_sends_for`.
not_taken: Final = ErrorText(
    "Upstream unavailable",
    b"The message broker has accepted no messages for at least %g seconds; this one was not sent.\n",
)

# SUBSCRIBE, UNSUBSCRIBE, ACK and NACK.

durable_needs_id: Final = ErrorText("Missing Header", b"Header 'id' is required for durable subscriptions")
invalid_selector: Final = ErrorText("Invalid selector", b"The selector cannot be read: %b.\n")
selector_on_queue: Final = ErrorText(
    "Invalid selector",
    b"Only a subscription to /topic or /exchange, without x-queue-name, may have a selector: a queue may have other "
    b"consumers, which would lose the messages that the selector does not match.\n",
)
duplicate_subscription: Final = ErrorText(
    "Duplicated subscription identifier",
    b"A subscription identified by '%b' already exists.",
    CloseReason.PROTOCOL_ERROR,
)
missing_subscription_name: Final = ErrorText(
    "Missing destination or id", b"UNSUBSCRIBE must include a 'destination' or 'id' header"
)
temporary_unsubscribe: Final = ErrorText("Invalid id", b"UNSUBSCRIBE 'id' may not start with /temp-queue/\n")
# Argument: for example ``id='x'``.
no_subscription: Final = ErrorText(
    "No subscription found",
    b"UNSUBSCRIBE must refer to an existing subscription.\nSubscription to %b not found.\n",
    as_term=True,
)
# The subscription has ended, or is another session's. Argument: the ack id.
message_without_subscription: Final = ErrorText(
    "Subscription not found", b"Message with id %b has no subscription", as_term=True
)
# The gateway does not pass such a NACK on, because the broker would close the whole link. Argument: destination.
stream_takes_nothing_back: Final = ErrorText(
    _AMQP_NAMES[_NOT_IMPLEMENTED],
    b"NOT_IMPLEMENTED - messages cannot be returned to a stream: NACK is not possible for '%b'",
    CloseReason.BROKER_ERROR,
)

# Transactions.

missing_transaction: Final = ErrorText("Missing transaction", b"\"%b\" must include a 'transaction' header\n")
bad_transaction: Final = ErrorText("Bad transaction", b"Invalid transaction identifier: %b\n", as_term=True)
too_many_transactions: Final = ErrorText("Transaction limit exceeded", b"Too many concurrent transactions (limit %d)")
# Arguments: "actions" or "bytes", and the limit.
transaction_too_large: Final = ErrorText("Transaction too large", b"Too many %b in transaction (limit %d)")
transaction_too_old: Final = ErrorText(
    "Transaction expired", b'Transaction "%b" was open for too long and has been aborted.\n'
)
commit_rejected: Final = ErrorText(
    "Message rejected", b"The broker did not accept every message of the transaction; nothing was acknowledged.\n"
)
commit_interrupted: Final = ErrorText(
    "Transaction interrupted",
    b"The connection to the broker was lost. The messages that the transaction acknowledges will be delivered again; "
    b"nothing was acknowledged.\n",
)
commit_unroutable: Final = ErrorText(
    "Unroutable message", b"A message of the transaction reached no queue; nothing was acknowledged.\n"
)

# The broker.

# Arguments: seconds, and the operation's ``purpose``.
operation_timeout: Final = ErrorText(
    "Broker timeout",
    b"The broker did not answer within %g seconds. The gateway asked it %b.\n",
    CloseReason.OPERATION_TIMEOUT,
)


def broker_error(
    code: int,
    text: str,
    settings: VirtualHost,
    close: CloseReason | None = CloseReason.BROKER_ERROR,
    *,
    is_topic: bool = False,
) -> StompError:
    """The error for a reply code and text of the broker: the code's name as message, the text as body.

    If the reason is an expired token of the client, this is `token_expired`. ``close``: why the error ends the session;
    None if it does not. ``is_topic``: the broker refused a subscription to a topic.
    """
    if is_topic:
        text = _TOPIC_REFUSED.sub("", text)
    is_closed = _CLOSED_FOR_AGE in text and settings.token_renewal is not False
    if is_closed or (_REFUSED_FOR_AGE in text and settings.token_renewal):
        return token_expired()
    if settings.next_release:
        if code == _PRECONDITION_FAILED and _FORGED_USER in text:
            code = ACCESS_REFUSED
        if name := _NAME_IN_TEXT.match(text):
            text = text[name.end() :]
    return StompError(_AMQP_NAMES.get(code, "broker_error"), text, close=close)


def access_revoked(text: str, subscription: bytes, settings: VirtualHost, *, is_topic: bool) -> StompError:
    """The user may no longer have this subscription. Only the subscription ends, and not the session."""
    error = broker_error(ACCESS_REFUSED, text, settings, close=None, is_topic=is_topic)
    error.subscription = subscription
    return error


def unknown_delivery_tag(tag: int, settings: VirtualHost) -> StompError:
    """The broker's answer to an acknowledgement of an unknown delivery. The gateway gives it without asking."""
    if settings.next_release:
        return StompError("Message not found", f"unknown delivery tag {tag}\n")
    return broker_error(_PRECONDITION_FAILED, f"PRECONDITION_FAILED - unknown delivery tag {tag}", settings)


def bad_connect(body: str | bytes) -> StompError:
    """The broker or the configuration refuses a CONNECT. The client may send another."""
    return StompError("Bad CONNECT", body)


def access_refused(login: bytes, settings: VirtualHost) -> StompError:
    """The broker refuses the login, or a certificate names no user."""
    end = b"" if settings.next_release else b"\n"
    return bad_connect(b"Access refused for user '%b'%b" % (login[:LONGEST_NAME], end))


def virtual_host_denied(name: bytes) -> StompError:
    """The virtual host does not exist, is full, or denies the user."""
    return bad_connect(b"Virtual host '%b' access denied" % name)


def unknown_virtual_host(name: bytes) -> StompError:
    """No virtual host of the configuration has this name or alias."""
    body = (
        b"Virtual host '%b' access denied\n"
        b"The gateway has no virtual host of this name. If clients are right to send it as 'host', add it to 'aliases' "
        b"of their virtual host in the gateway's configuration.\n"
    )
    return bad_connect(body % name)


def login_failed(code: int, text: str, login: bytes, settings: VirtualHost) -> StompError:
    """The broker refused connection.start-ok (403), connection.open (530), or anything else during the login."""
    if code == ACCESS_REFUSED:
        return access_refused(login, settings)
    if code == _NOT_ALLOWED:
        return virtual_host_denied(settings.name.encode())
    return bad_connect(text)


def name_too_long(name: bytes) -> StompError:
    """A header name is too long for AMQP."""
    body = b"The header name '%b...' has %d octets; AMQP carries at most 255.\n" % (name[:64], len(name))
    return StompError("Invalid header", body)


def subscription_cancelled(description: bytes | None, subscription: bytes) -> StompError:
    """The broker cancelled a consumer, for example because its queue was deleted.

    ``description``: for example ``id='x'``; None for the queue of a reply-to. ``subscription``: the ERROR's header.
    """
    template = b"The server has canceled a subscription.\nNo more messages will be delivered for %b.\n"
    shown = b"undefined" if description is None else _as_erlang(description[:LONGEST_NAME], template)
    return StompError("Server cancelled subscription", template % shown, subscription=subscription)


def closed_for(error: StompError, reason: CloseReason) -> StompError:
    """Copy an error, with a reason to close the session."""
    closing = StompError(error.message, error.body, reason, error.subscription)
    closing.refused_login = error.refused_login
    return closing


def encode_error(error: StompError, receipt: bytes | None) -> bytes:
    """Encode an ERROR frame (STOMP 1.2, "ERROR"). ``receipt``: the receipt header of the frame that caused it.

    Like RabbitMQ's adapter, the gateway puts all versions into the version header, whatever was negotiated.
    """
    headers = [
        (b"message", error.message.encode()),
        (b"content-type", b"text/plain"),
        (b"version", SUPPORTED_VERSIONS.encode()),
    ]
    if error.subscription is not None:
        headers.append((b"subscription", error.subscription))
    if receipt is not None:
        headers.append((b"receipt-id", receipt))
    return encode(b"ERROR", headers, error.body)

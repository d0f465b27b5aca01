"""The texts of ERROR frames, equal to those of RabbitMQ's adapter wherever it has one."""

from __future__ import annotations

import re
from functools import partial
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
"""For a client that does not speak STOMP and would not understand an ERROR."""

_ACCESS_REFUSED: Final = 403
_PRECONDITION_FAILED: Final = 406
_NOT_ALLOWED: Final = 530
_NOT_IMPLEMENTED: Final = 540

# Bytes of a client's text that an ERROR repeats.
LONGEST_NAME: Final = 255
# Where Erlang breaks the lines of a long list.
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
# RabbitMQ's words for a user-id that is not the sender's.
_FORGED_USER: Final = "user_id property set to"
# What RabbitMQ writes in front of a reply text: the error's name in capitals.
_NAME_IN_TEXT: Final = re.compile(r"[A-Z]+(?:_[A-Z]+)* - ")
# RabbitMQ's adapter checks the permission to read a topic itself, and answers without the error's name.
_TOPIC_REFUSED: Final = re.compile(r"ACCESS_REFUSED - (?=(?:read )?access to topic )")


# Errors that always say the same. Each is a call, because an exception that is raised keeps its traceback.

version_mismatch: Final = partial(StompError, "Version mismatch", f"Supported versions are {SUPPORTED_VERSIONS}\n")
not_connected: Final = partial(StompError, "Illegal command", "You must log in using CONNECT first")
# RabbitMQ's adapter closes without an ERROR.
already_connected: Final = partial(
    StompError, "Illegal command", "You are already connected.", close=CloseReason.PROTOCOL_ERROR
)
# The client has to connect again, perhaps to another gateway.
broker_unreachable: Final = partial(
    StompError,
    "Upstream unavailable",
    "The message broker cannot be reached; try again later.\n",
    close=CloseReason.BROKER_UNREACHABLE,
)
token_expired: Final = partial(
    StompError,
    "Token expired",
    "The token that you logged in with, or sent since, has expired; connect again with another.\n",
    close=CloseReason.TOKEN_EXPIRED,
)
certificate_unreadable: Final = partial(
    StompError, "Bad CONNECT", "The name in the client's certificate cannot be read.\n"
)
# A header with an invalid value, in the terse words of RabbitMQ's adapter.
processing_error: Final = partial(StompError, "Processing error", "Processing error")
forbidden_message_id: Final = partial(StompError, "Invalid header", "'message-id' is not allowed on 'SEND'.\n")
durable_needs_id: Final = partial(StompError, "Missing Header", "Header 'id' is required for durable subscriptions")
missing_subscription_name: Final = partial(
    StompError, "Missing destination or id", "UNSUBSCRIBE must include a 'destination' or 'id' header"
)
temporary_unsubscribe: Final = partial(StompError, "Invalid id", "UNSUBSCRIBE 'id' may not start with /temp-queue/\n")
selector_on_queue: Final = partial(
    StompError,
    "Invalid selector",
    "Only a subscription to /topic or /exchange, without x-queue-name, may have a selector: another consumer of a "
    "queue may want the messages that this one does not select.\n",
)
commit_rejected: Final = partial(
    StompError,
    "Message rejected",
    "The broker did not accept every message of the transaction; nothing was acknowledged.\n",
)
commit_interrupted: Final = partial(
    StompError,
    "Transaction interrupted",
    "The connection to the broker was lost. The messages that it acknowledges will be delivered again; nothing was "
    "acknowledged.\n",
)
commit_unroutable: Final = partial(
    StompError, "Unroutable message", "A message of the transaction reached no queue; nothing was acknowledged.\n"
)


def broker_error(
    code: int, text: str, settings: VirtualHost, close: CloseReason | None = CloseReason.BROKER_ERROR
) -> StompError:
    """An error of the broker that closed a channel or a link: its name as message, its text as body.

    It ends the session for the reason ``close``, if there is one.

    If the broker refuses or closes because the session's token has expired, this is the error for that.
    """
    is_closed = _CLOSED_FOR_AGE in text and settings.token_renewal is not False
    if is_closed or (_REFUSED_FOR_AGE in text and settings.token_renewal):
        return token_expired()
    if settings.next_release:
        if code == _PRECONDITION_FAILED and _FORGED_USER in text:
            code = _ACCESS_REFUSED
        if name := _NAME_IN_TEXT.match(text):
            text = text[name.end() :]
    return StompError(_AMQP_NAMES.get(code, "broker_error"), text, close=close)


def topic_refused(code: int, text: str, settings: VirtualHost) -> StompError:
    """The broker's refusal of a subscription to a topic, for whatever reason."""
    return broker_error(code, _TOPIC_REFUSED.sub("", text), settings)


def access_revoked(text: str, subscription: bytes, settings: VirtualHost, *, is_topic: bool) -> StompError:
    """The refusal that a SUBSCRIBE would get now, for an existing subscription. Only that subscription ends."""
    text = _TOPIC_REFUSED.sub("", text) if is_topic else text
    error = broker_error(_ACCESS_REFUSED, text, settings, close=None)
    error.subscription = subscription
    return error


def login_revoked(text: str, settings: VirtualHost) -> StompError:
    """A login that the broker does not accept any more; ``text`` may have another code, which stands in it."""
    return broker_error(_ACCESS_REFUSED, text, settings, CloseReason.ACCESS_REVOKED)


def unknown_delivery_tag(tag: int, settings: VirtualHost) -> StompError:
    """The broker's answer to an acknowledgement of an unknown delivery, given without asking it."""
    if settings.next_release:
        return StompError("Message not found", f"unknown delivery tag {tag}\n")
    return broker_error(_PRECONDITION_FAILED, f"PRECONDITION_FAILED - unknown delivery tag {tag}", settings)


def bad_connect(body: str | bytes) -> StompError:
    """A CONNECT that the broker or the configuration refuses; the client may try again."""
    return StompError("Bad CONNECT", body)


def access_refused(login: bytes, settings: VirtualHost) -> StompError:
    """A login that the broker refuses, or a name in a certificate that has no user."""
    end = b"" if settings.next_release else b"\n"
    return bad_connect(b"Access refused for user '%b'%b" % (login[:LONGEST_NAME], end))


def virtual_host_denied(name: bytes) -> StompError:
    """A virtual host that is not there, is full, or denies the user."""
    return bad_connect(b"Virtual host '%b' access denied" % name)


def unknown_virtual_host(name: bytes) -> StompError:
    """A name that no virtual host of the configuration has, but could have."""
    body = (
        b"Virtual host '%b' access denied\n"
        b"The gateway has no virtual host of this name. If clients are right to send it as 'host', add it to 'aliases' "
        b"of their virtual host in the gateway's configuration.\n"
    )
    return bad_connect(body % name)


def login_failed(code: int, text: str, login: bytes, settings: VirtualHost) -> StompError:
    """The broker's refusal of connection.start-ok (403), of connection.open (530), or of anything else."""
    if code == _ACCESS_REFUSED:
        return access_refused(login, settings)
    if code == _NOT_ALLOWED:
        return virtual_host_denied(settings.name.encode())
    return bad_connect(text)


def token_refused(text: str) -> StompError:
    """The broker refuses a new token; the session goes on with the old one."""
    return StompError("Token refused", f"The token was not accepted: {text}\n")


def too_many_sessions(whose: str, limit: int) -> StompError:
    """A login beyond a limit; ``whose`` names the user, address or virtual host that has it."""
    body = f"{whose} has {limit} sessions, as many as are allowed; close one, or try again later.\n"
    return StompError("Session limit reached", body, close=CloseReason.SESSION_LIMIT)


def too_many_connections(whose: str, limit: int) -> StompError:
    """A connection beyond a limit; ``whose`` names the listener or address that has it."""
    body = f"{whose} has {limit} connections, as many as are allowed; try again later.\n"
    return StompError("Too many connections", body, close=CloseReason.SESSION_LIMIT)


def too_many_failed_logins(seconds: int) -> StompError:
    """A login that is refused without asking the broker, because too many have failed."""
    body = f"Too many logins from this address have failed; try again in {seconds} seconds.\n"
    return StompError("Too many failed logins", body, close=CloseReason.FAILED_LOGINS)


def bad_command(command: bytes) -> StompError:
    """A command that no client may send."""
    return StompError("Bad command", _with_term(b"Could not interpret command %b\n", command))


def missing_destination(command: bytes) -> StompError:
    """SEND or SUBSCRIBE without destination."""
    return StompError("Missing destination", b"\"%b\" must include a 'destination' header\n" % command)


def missing_header(command: bytes, name: bytes) -> StompError:
    """ACK or NACK without its identifier."""
    return StompError("Missing header", b'"%b" must include the "%b" header\n' % (command, name))


def invalid_ack_id(command: bytes, name: bytes) -> StompError:
    """ACK or NACK with a malformed identifier."""
    return StompError("Invalid header", b'"%b" must include a valid "%b" header\n' % (command, name))


def invalid_selector(reason: str) -> StompError:
    """A selector that cannot be read."""
    return StompError("Invalid selector", f"The selector cannot be read: {reason}.\n")


def too_long(name: bytes, size: int) -> StompError:
    """A text that AMQP cannot carry."""
    body = b"The value of '%b' has %d octets; AMQP carries at most 255 there.\n" % (name, size)
    return StompError("Invalid header", body)


def name_too_long(name: bytes) -> StompError:
    """A header name that AMQP cannot carry."""
    body = b"The header name '%b...' has %d octets; AMQP carries at most 255.\n" % (name[:64], len(name))
    return StompError("Invalid header", body)


def not_for_amqp(reason: str) -> StompError:
    """Headers that AMQP cannot carry as a whole."""
    return StompError("Invalid header", f"AMQP cannot carry these headers: {reason}.\n")


def not_text(name: bytes) -> StompError:
    """A name for the broker that is not UTF-8."""
    body = b"The value of '%b' must be UTF-8 to name something on the broker.\n" % name
    return StompError("Invalid header", body)


def duplicate_subscription(tag: bytes) -> StompError:
    """A subscription id that is in use."""
    body = b"A subscription identified by '%b' already exists." % tag[:LONGEST_NAME]
    return StompError("Duplicated subscription identifier", body, close=CloseReason.PROTOCOL_ERROR)


def no_subscription(description: bytes) -> StompError:
    """UNSUBSCRIBE of an unknown subscription; ``description`` is for example ``id='x'``."""
    template = b"UNSUBSCRIBE must refer to an existing subscription.\nSubscription to %b not found.\n"
    return StompError("No subscription found", _with_term(template, description))


def message_without_subscription(ack_id: bytes) -> StompError:
    """ACK or NACK of an ended subscription, or of another session's."""
    return StompError("Subscription not found", _with_term(b"Message with id %b has no subscription", ack_id))


def stream_takes_nothing_back(destination: bytes) -> StompError:
    """NACK of a message of a stream. The broker is not asked: it would close the whole link."""
    body = (
        b"NOT_IMPLEMENTED - a stream takes no message back: NACK is not possible for '%b'" % destination[:LONGEST_NAME]
    )
    return StompError(_AMQP_NAMES[_NOT_IMPLEMENTED], body, close=CloseReason.BROKER_ERROR)


def subscription_cancelled(description: bytes | None, subscription: bytes) -> StompError:
    """The broker cancelled a consumer, because its queue was deleted for instance.

    ``description`` is for example ``id='x'``, or None for the queue of a reply-to; ``subscription`` the ERROR's
    header of that name.
    """
    template = b"The server has canceled a subscription.\nNo more messages will be delivered for %b.\n"
    body = template % b"undefined" if description is None else _with_term(template, description)
    return StompError("Server cancelled subscription", body, subscription=subscription)


def missing_transaction(command: bytes) -> StompError:
    """BEGIN, COMMIT or ABORT without transaction."""
    return StompError("Missing transaction", b"\"%b\" must include a 'transaction' header\n" % command)


def bad_transaction(identifier: bytes) -> StompError:
    """A transaction that is not open."""
    return StompError("Bad transaction", _with_term(b"Invalid transaction identifier: %b\n", identifier))


def too_many_transactions(limit: int) -> StompError:
    """More open transactions than one session may have."""
    return StompError("Transaction limit exceeded", f"Too many concurrent transactions (limit {limit})")


def transaction_too_large(limit: int, unit: str) -> StompError:
    """A transaction that holds more than it may."""
    return StompError("Transaction too large", f"Too many {unit} in transaction (limit {limit})")


def transaction_too_old(identifier: bytes) -> StompError:
    """A transaction that was open for too long; it is aborted."""
    body = b'Transaction "%b" was open for too long and has been aborted.\n' % identifier[:LONGEST_NAME]
    return StompError("Transaction expired", body)


def destination_denied(command: bytes, text: bytes, login: bytes) -> StompError:
    """A destination that an operator's rule denies, in the form of a refusal by the broker."""
    body = b"ACCESS_REFUSED - a destination rule of the gateway denies %b to '%b' for user '%b'"
    body %= command, text[:LONGEST_NAME], login[:LONGEST_NAME]
    return StompError(_AMQP_NAMES[_ACCESS_REFUSED], body, close=CloseReason.DESTINATION_DENIED)


def impossible_rewrite(text: bytes, other: bytes) -> StompError:
    """A destination that an operator's rule turns into an invalid one."""
    body = b"A destination rule of the gateway turns '%b' into '%b', which is not a valid destination.\n"
    body %= text[:LONGEST_NAME], other[:LONGEST_NAME]
    return StompError("Invalid destination", body)


def rejected(destination: bytes) -> StompError:
    """The broker's basic.nack of a message."""
    return StompError(
        "Message rejected", b"The broker did not accept the message for '%b'.\n" % destination[:LONGEST_NAME]
    )


def unroutable(destination: bytes, text: bytes) -> StompError:
    """A mandatory message that reached no queue; ``text`` is the broker's."""
    body = b"No queue received the message for '%b': %b\n" % (destination[:LONGEST_NAME], text)
    return StompError("Unroutable message", body)


def malformed(reason: str) -> StompError:
    """Bytes that break the grammar of STOMP or a limit."""
    return StompError("Malformed frame", f"{reason}\n", close=CloseReason.MALFORMED_FRAME)


def oversized(limit: int) -> StompError:
    """A SEND that is larger than ``limit`` bytes and was read to its end; the session goes on."""
    return StompError("Malformed frame", f"the frame is larger than {limit} octets\n")


def not_taken(seconds: float) -> StompError:
    """A SEND while the broker has taken no messages for so long; it is not published."""
    text = f"The message broker has taken no messages for at least {seconds:g} seconds; this one was not sent.\n"
    return StompError("Upstream unavailable", text)


def operation_timeout(purpose: str, seconds: float) -> StompError:
    """The broker has not answered a request in time."""
    text = f"The broker did not answer within {seconds:g} seconds. The gateway asked it {purpose}.\n"
    return StompError("Broker timeout", text, close=CloseReason.OPERATION_TIMEOUT)


def closing(message: str, body: str, reason: CloseReason) -> StompError:
    """The gateway closes a session for its own reasons."""
    return StompError(message, body, close=reason)


def closed_for(error: StompError, reason: CloseReason) -> StompError:
    """The same error, but it closes the connection."""
    closing = StompError(error.message, error.body, reason, error.subscription)
    closing.refused_login = error.refused_login
    return closing


def _with_term(template: bytes, term: bytes) -> bytes:
    """A text with bytes, at most 255, as Erlang prints them in place of its ``%b``."""
    before = template.partition(b"%b")[0].rpartition(b"\n")[2]
    return template % _as_erlang(term[:LONGEST_NAME], len(before) + 1)


def _as_erlang(term: bytes, indent: int) -> bytes:
    """Bytes as Erlang prints a list of them: as text in quotes, or as numbers if one of them is not printable Latin-1.

    A long list takes several lines, indented by this many columns.
    """
    if not term:
        return b"[]"
    if all(each in _ERLANG_ESCAPES or 32 <= each <= 126 or each >= 160 for each in term):  # noqa: PLR2004
        return b'"%b"' % b"".join([_ERLANG_ESCAPES.get(each) or bytes([each]) for each in term])
    lines = [""]
    for each in term:
        if len(lines[-1]) + len(f"{each},") > _LINE - indent:
            lines.append("")
        lines[-1] += f"{each},"
    numbers = ("\n" + " " * indent).join(lines)[:-1]
    return f"[{numbers}]".encode()


def encode_error(error: StompError, receipt: bytes | None) -> bytes:
    """Encode the ERROR frame for an error, and for the receipt header of its cause (STOMP 1.2, "ERROR").

    The version header names all versions, whatever was negotiated, as the one of RabbitMQ's adapter does.
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

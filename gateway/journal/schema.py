"""The journal's lines, schema version 1: one JSON object per line, UTF-8, LF.

The meaning of a field never changes. A later gateway may add optional fields and new values of ``e``, and readers
ignore what they do not know. A change of meaning is a new field, or a new version, which is part of a segment's name.

Every line begins with ``e`` what happened, ``t`` when (microseconds since the epoch, UTC), ``q`` its number in the
*boot*: one run of one gateway, writing into one directory. Numbers begin at 0 and have no gaps, so a missing line
shows. Fields common to the lines of a session: ``c`` the session's number in the boot, ``vh`` virtual host, ``u`` login
(or its hash). ``d`` is a destination with generated parts replaced by ``*``, ``dk`` its kind, ``s`` a subscription id,
``sn`` the queue of a durable subscription that stays when nobody consumes it, ``am`` an ack mode, ``m`` the number of a
message in its session (a SEND) or in its subscription (a delivery), ``l`` a latency in microseconds by a monotonic
clock, ``ql`` one from publishing to delivery by the clocks of both gateways (0 if they disagree so far that it is
negative), ``x`` a code out of a closed set, ``w`` the weight of a sampled line. An absent field means zero, false,
none, or for ``w`` 1.

No field holds a passcode, a body, or a text that a client made up, except destinations, subscription ids, logins and
the values of headers that the configuration allows.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway.errors import CloseReason, StompError

VERSION: Final = 1
"""The schema version that this module writes and reads."""

OTHER: Final = "other"
"""The destination of what exceeds the bound on distinct names, and the code of an error that has none."""

FEATURES: Final = (
    "heart-beat", "tls", "certificate-login", "implicit-connect", "queue", "topic", "exchange", "amq-queue",
    "reply-queue", "temp-queue", "receipt", "persistent", "transaction", "ack-auto", "ack-client",
    "ack-client-individual", "ack-cumulative", "nack", "nack-discard", "prefetch", "durable-subscription",
    "exclusive", "stream", "priority", "expiration", "correlation", "queue-arguments", "user-headers",
)  # fmt: skip
"""Every value of ``x`` in a gateway's ``use`` line: features of STOMP and of RabbitMQ's plugin that a session may use.

A tap writes names of rules besides, in which the gateway differs (`gateway.tap.departures`). They show what the other
side of a migration must support.
"""

ERROR_CODES: Final = frozenset(
    (
        # The gateway's own, in the order of a session's life.
        "malformed-frame", "illegal-command", "bad-command", "version-mismatch", "bad-connect", "upstream-unavailable",
        "session-limit-reached", "too-many-connections", "too-many-failed-logins",
        "login-timeout", "missing-destination",
        "invalid-destination", "unknown-destination", "missing-header", "invalid-header", "invalid-id",
        "invalid-selector",
        "processing-error", "duplicated-subscription-identifier", "missing-destination-or-id", "no-subscription-found",
        "subscription-not-found", "message-not-found", "server-cancelled-subscription", "missing-transaction",
        "bad-transaction",
        "transaction-limit-exceeded", "transaction-too-large", "transaction-expired", "transaction-interrupted",
        "message-rejected", "unroutable-message", "heart-beat-timeout", "slow-consumer", "broker-timeout",
        "token-refused", "token-expired", "destination-denied", "closed-by-operator", "shutting-down",
        # The broker's: AMQP 0-9-1, section 1.2.
        "broker-error", "content-too-large", "no-route", "no-consumers", "connection-forced", "invalid-path",
        "access-refused", "not-found", "resource-locked", "precondition-failed", "frame-error", "syntax-error",
        "command-invalid", "channel-error", "unexpected-frame", "resource-error", "not-allowed", "not-implemented",
        "internal-error",
    )
)  # fmt: skip
"""Every value of ``x`` in an ``err`` line, besides ``other``. None holds a client's or the broker's text."""

AUDIT_CODES: Final = frozenset(
    f"{action}{outcome}"
    for action in ("reload", "stop", "close-session", "trace", "log-level", "fail-back", "login", "request")
    for outcome in ("", "-refused", "-failed")
)
"""Every value of ``x`` in an ``audit`` line: an action, and what came of it if it was not done."""


def error_code(error: StompError) -> str:
    """The code of an error: its message header in lower case with hyphens, if that is a known code.

    What a rule of the operator's denies looks like a refusal of the broker's to clients, but not here.
    """
    if error.reason is CloseReason.DESTINATION_DENIED:
        return "destination-denied"
    code = error.message.lower().replace(" ", "-").replace("_", "-")
    return code if code in ERROR_CODES else OTHER


class Line(Struct, omit_defaults=True, gc=False, tag_field="e", kw_only=False):
    """What all lines have. The writer sets ``q``."""

    t: int
    q: int


class OpenLine(Line, tag="open"):
    """The first line of every segment: which gateway writes. ``seg`` counts the boot's segments from 0."""

    v: int
    node: str
    boot: str
    pid: int
    impl: str
    gw: str
    seg: int
    cfg: str = ""


class CloseLine(Line, tag="close"):
    """The last line of a boot that shut down normally."""


class DropLine(Line, tag="drop"):
    """``n`` events were not written, because the disk or the writer could not keep up; they have no numbers."""

    n: int


class SessionLine(Line):
    """What all lines of a session have."""

    c: int
    vh: str
    u: str


class DestinationLine(SessionLine):
    """What all lines of a destination have."""

    d: str
    dk: str


class SubscriptionLine(DestinationLine):
    """What most lines of a subscription have. ``am``: how its messages are acknowledged."""

    s: str
    am: str


class ConnectLine(SessionLine, tag="conn"):
    """A session began. ``l``: from the TCP connection to CONNECTED. ``hb``: agreed heart-beats in ms, out and in."""

    ip: str | None = None
    tls: bool = False
    ver: str = ""
    hb: str = "0,0"
    l: int | None = None  # noqa: E741 - the schema's name


class SessionTotals(Struct, omit_defaults=True, gc=False):
    """A session as a whole. ``us``: its duration. ``unacked``: deliveries returned to their queues at its end."""

    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    unacked: int = 0
    max_unacked: int = 0
    us: int = 0


class EndLine(SessionLine, tag="end"):
    """A session ended. ``x``: a `CloseReason`. An ``unsub`` line for each remaining subscription precedes it."""

    x: str
    f: SessionTotals


class UseLine(SessionLine, tag="use"):
    """The first use of a feature in a session. ``x``: one of `FEATURES`."""

    x: str
    ver: str


class SubscribeLine(SubscriptionLine, tag="sub"):
    """A subscription began. ``pf`` prefetch (0: none), ``du`` durable, ``ad`` auto-delete, ``ex`` exclusive queue.

    ``sn`` is there only if the queue stays when nobody consumes it: durable, and not auto-delete.
    """

    pf: int = 0
    du: bool = False
    ad: bool = False
    ex: bool = False
    sn: str | None = None


class UnsubscribeLine(DestinationLine, tag="unsub"):
    """A subscription ended. ``n``: its unacknowledged deliveries.

    ``x``: unsubscribe, deleted, cancelled, revoked or end.
    """

    s: str
    x: str
    n: int = 0
    sn: str | None = None


class SendLine(DestinationLine, tag="send"):
    """A SEND was published. ``b`` body bytes, ``hn`` headers, ``p`` persistent, ``tx`` transaction, ``rc`` receipt.

    ``hv``: values of headers that the configuration allows.
    """

    m: int
    b: int = 0
    hn: int = 0
    p: bool = False
    tx: bool = False
    rc: bool = False
    w: float | None = None
    hv: dict[str, str] | None = None


class ConfirmLine(DestinationLine, tag="conf"):
    """The broker answered a SEND. ``l``: since it was published. ``x``: rejected, absent when it was accepted."""

    m: int
    l: int | None = None  # noqa: E741 - the schema's name
    x: str | None = None
    w: float | None = None


class DeliveryLine(SubscriptionLine, tag="dlv"):
    """A message was delivered to the client. ``r``: redelivered. ``ql``: since it was published, if that is known."""

    m: int
    b: int = 0
    r: bool = False
    sn: str | None = None
    w: float | None = None
    ql: int | None = None


class AckLine(SubscriptionLine, tag="ack"):
    """``n`` messages that were delivered together were acknowledged, ``m`` last. ``l``: since their delivery."""

    m: int
    n: int = 1
    l: int | None = None  # noqa: E741 - the schema's name
    sn: str | None = None
    w: float | None = None


class NackLine(SubscriptionLine, tag="nack"):
    """``n`` messages that were delivered together were refused, ``m`` last. ``x``: requeue or discard."""

    m: int
    x: str
    n: int = 1
    l: int | None = None  # noqa: E741 - the schema's name
    sn: str | None = None
    w: float | None = None


class ErrorLine(Line, tag="err"):
    """An ERROR was sent. ``x``: its code. The session's fields are absent if it never logged in."""

    x: str
    c: int | None = None
    vh: str | None = None
    u: str | None = None
    ip: str | None = None


class AuditLine(Line, tag="audit"):
    """Somebody asked the gateway for an action. ``x``: one of `AUDIT_CODES`. ``u``: the user of the admin listener."""

    x: str
    u: str | None = None
    ip: str | None = None


class HoldLine(SessionLine, tag="blk"):
    """A hold ended, and the gateway reads the client again. ``x``: which hold. ``l``: for how long.

    For ``queue-away`` with ``d`` and ``dk``, the queue that was waited for; also with ``s`` if it was a subscription
    that waited, while the gateway read the client.
    """

    x: str
    l: int  # noqa: E741 - the schema's name
    d: str | None = None
    dk: str | None = None
    s: str | None = None


class StatLine(DestinationLine, tag="stat"):
    """At level session: what a destination (no ``s``) or a subscription (``s``) of a session did since the last line.

    ``cnt`` has any of: send send_bytes conf rejected; dlv dlv_bytes redelivered ack requeue discard. ``h`` counts
    latencies: ``conf:<bucket>`` from publishing to confirm, ``queue:<bucket>`` from publishing to delivery,
    ``ack:<bucket>`` from delivery to acknowledgement, with the buckets of ``gateway.journal.histogram``. Messages
    without a latency are in ``cnt`` only.
    """

    cnt: dict[str, int]
    h: dict[str, int] | None = None
    s: str | None = None
    sn: str | None = None
    am: str | None = None


AnyLine = (
    OpenLine | CloseLine | DropLine | ConnectLine | EndLine | UseLine | SubscribeLine | UnsubscribeLine | SendLine
    | ConfirmLine | DeliveryLine | AckLine | NackLine | ErrorLine | AuditLine | HoldLine | StatLine
)  # fmt: skip
"""Every line that this version writes."""

MESSAGE_EVENTS: Final = ("send", "conf", "dlv", "ack", "nack")
"""Values of ``e`` that are written for each message, at level message only."""

EVENT_WORDS: Final = {
    "conn": "connect", "sub": "subscribe", "unsub": "unsubscribe", "conf": "confirm", "dlv": "deliver", "err": "error",
    "blk": "blocked", "use": "feature", "drop": "dropped",
}  # fmt: skip
"""The names in tables of events whose value of ``e`` is abbreviated. All others have the same name in both."""


class ParsedLine(Struct, gc=False):
    """A line read back: every field of every line above, None where it is absent.

    A field of the wrong type makes a line unreadable; a field that is not listed here is ignored. It is one class, and
    not the union of the lines above, because a reader must take values of ``e`` that it does not know.
    """

    e: str
    t: int
    q: int
    c: int | None = None
    vh: str | None = None
    u: str | None = None
    d: str | None = None
    dk: str | None = None
    s: str | None = None
    sn: str | None = None
    am: str | None = None
    m: int | None = None
    b: int | None = None
    hn: int | None = None
    p: bool | None = None
    tx: bool | None = None
    rc: bool | None = None
    r: bool | None = None
    l: int | None = None  # noqa: E741 - the schema's name
    ql: int | None = None
    n: int | None = None
    x: str | None = None
    w: float | None = None
    ip: str | None = None
    tls: bool | None = None
    ver: str | None = None
    hb: str | None = None
    pf: int | None = None
    du: bool | None = None
    ad: bool | None = None
    ex: bool | None = None
    f: SessionTotals | None = None
    cnt: dict[str, int] | None = None
    h: dict[str, int] | None = None
    hv: dict[str, str] | None = None
    v: int | None = None
    node: str | None = None
    boot: str | None = None
    pid: int | None = None
    impl: str | None = None
    gw: str | None = None
    seg: int | None = None
    cfg: str | None = None

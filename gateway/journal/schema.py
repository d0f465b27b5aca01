"""The journal's lines, schema version 1: one JSON object per line, UTF-8, LF.

What a field means never changes; a later gateway may add optional fields and new values of ``e``, and readers ignore
what they do not know. A change of meaning is a new field, or a new version, which is part of a segment's name.

Every line begins with ``e`` what happened, ``t`` when (microseconds since the epoch, UTC), ``q`` its number in the
*boot*: one run of one gateway, writing into one directory. Numbers begin at 0 and leave nothing out, so a missing line
shows. Fields common to the lines of a session: ``c`` the session's number in the boot, ``vh`` virtual host, ``u`` login
(or its hash). ``d`` is a destination with generated parts replaced by ``*``, ``dk`` its kind, ``s`` a subscription id,
``sn`` the queue of a durable subscription that stays when nobody consumes it, ``am`` an ack mode, ``m`` the number of a
message in its session (a SEND) or in its subscription (a delivery), ``l`` a latency in microseconds by a clock that
only goes forward, ``x`` a code out of a closed set, ``w`` the weight of a sampled line. Absent means: zero, false,
none, or for ``w`` 1.

Nothing here holds a passcode, a body, or a text that a client made up, but for destinations, subscription ids, logins
and the values of headers that the configuration allows.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

VERSION: Final = 1
"""The schema version that this module writes and reads."""

KINDS: Final = ("queue", "topic", "exchange", "amqq", "temp", "reply")
"""Values of ``dk``."""

OTHER: Final = "other"
"""The destination of what exceeds the bound on distinct names, and the code of what has none."""


class Line(Struct, omit_defaults=True, gc=False, tag_field="e", kw_only=False):
    """What all lines have: ``t`` microseconds since the epoch, ``q`` number in the boot, set when it is written."""

    t: int
    q: int


class Open(Line, tag="open"):
    """The first line of every segment: who writes. ``seg`` counts the boot's segments from 0."""

    v: int
    node: str
    boot: str
    pid: int
    impl: str
    gw: str
    seg: int
    cfg: str = ""


class Close(Line, tag="close"):
    """The last line of a boot that ended in good order."""


class Drop(Line, tag="drop"):
    """``n`` events were not written, because the disk or the writer could not keep up; they have no numbers."""

    n: int


class OfSession(Line):
    """What all lines of a session have."""

    c: int
    vh: str
    u: str


class Conn(OfSession, tag="conn"):
    """A session began. ``l``: from the TCP connection to CONNECTED. ``hb``: agreed heart-beats in ms, out and in."""

    ip: str | None = None
    tls: bool = False
    ver: str = ""
    hb: str = "0,0"
    l: int | None = None  # noqa: E741 - the schema's name


class Totals(Struct, omit_defaults=True, gc=False):
    """A session as a whole. ``us``: its duration. ``unacked``: deliveries returned to their queues at its end."""

    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    unacked: int = 0
    max_unacked: int = 0
    us: int = 0


class End(OfSession, tag="end"):
    """A session ended. ``x``: a `CloseReason`. An ``unsub`` for each subscription that was left precedes it."""

    x: str
    f: Totals


class Use(OfSession, tag="use"):
    """The first use of a feature in a session. ``x``: the feature, see ``gateway.journal.features``."""

    x: str
    ver: str


class Sub(OfSession, tag="sub"):
    """A subscription began. ``pf`` prefetch (0: none), ``du`` durable, ``ad`` auto-delete, ``ex`` exclusive queue.

    ``sn`` is there only if the queue stays when nobody consumes it: durable, and not auto-delete.
    """

    d: str
    dk: str
    s: str
    am: str
    pf: int = 0
    du: bool = False
    ad: bool = False
    ex: bool = False
    sn: str | None = None


class Unsub(OfSession, tag="unsub"):
    """A subscription ended. ``n``: its unacknowledged deliveries. ``x``: unsubscribe, deleted, cancelled or end."""

    d: str
    dk: str
    s: str
    x: str
    n: int = 0
    sn: str | None = None


class Send(OfSession, tag="send"):
    """A SEND was published. ``b`` body bytes, ``hn`` headers, ``p`` persistent, ``tx`` transaction, ``rc`` receipt.

    ``hv``: values of headers that the configuration allows.
    """

    d: str
    dk: str
    m: int
    b: int = 0
    hn: int = 0
    p: bool = False
    tx: bool = False
    rc: bool = False
    w: float | None = None
    hv: dict[str, str] | None = None


class Conf(OfSession, tag="conf"):
    """The broker answered for a SEND. ``l``: since it was published. ``x``: rejected, absent when it was accepted."""

    d: str
    dk: str
    m: int
    l: int | None = None  # noqa: E741 - the schema's name
    x: str | None = None
    w: float | None = None


class Dlv(OfSession, tag="dlv"):
    """A message was delivered to the client. ``am``: how it is to be acknowledged. ``r`` redelivered."""

    d: str
    dk: str
    s: str
    am: str
    m: int
    b: int = 0
    r: bool = False
    sn: str | None = None
    w: float | None = None


class Ack(OfSession, tag="ack"):
    """``n`` messages of one moment were acknowledged, the last one being ``m``. ``l``: since their delivery."""

    d: str
    dk: str
    s: str
    am: str
    m: int
    n: int = 1
    l: int | None = None  # noqa: E741 - the schema's name
    sn: str | None = None
    w: float | None = None


class Nack(OfSession, tag="nack"):
    """``n`` messages of one moment were refused, the last one being ``m``. ``x``: requeue or discard."""

    d: str
    dk: str
    s: str
    am: str
    m: int
    x: str
    n: int = 1
    l: int | None = None  # noqa: E741 - the schema's name
    sn: str | None = None
    w: float | None = None


class Err(Line, tag="err"):
    """An ERROR was sent. ``x``: its code. The session's fields are absent for one that never logged in."""

    x: str
    c: int | None = None
    vh: str | None = None
    u: str | None = None
    ip: str | None = None


class Blk(OfSession, tag="blk"):
    """The gateway read the client again. ``x``: the hold that had kept it from that. ``l``: for how long."""

    x: str
    l: int  # noqa: E741 - the schema's name


class Stat(OfSession, tag="stat"):
    """At level session: what a destination (no ``s``) or a subscription (``s``) of a session did since the last one.

    ``cnt`` has any of: send send_bytes conf rejected; dlv dlv_bytes redelivered ack requeue discard. ``h`` counts
    latencies: ``conf:<bucket>`` from publishing to confirm, ``ack:<bucket>`` from delivery to acknowledgement, with the
    buckets of ``gateway.journal.histogram``. What has no latency is in ``cnt`` only.
    """

    d: str
    dk: str
    cnt: dict[str, int]
    h: dict[str, int] | None = None
    s: str | None = None
    sn: str | None = None
    am: str | None = None


AnyLine = Open | Close | Drop | Conn | End | Use | Sub | Unsub | Send | Conf | Dlv | Ack | Nack | Err | Blk | Stat
"""Every line that this version writes."""

MESSAGE_EVENTS: Final = ("send", "conf", "dlv", "ack", "nack")
"""Values of ``e`` that are written for each message, at level message only."""

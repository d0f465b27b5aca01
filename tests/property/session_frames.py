"""Frames as clients send them to a session: sensible, nearly sensible and nonsense, in good proportion."""

from hypothesis import strategies as st

from gateway.stomp.frame import CLIENT_COMMANDS
from gateway.stomp.headers import escape

UNKNOWN_COMMANDS = (b"MESSAGE", b"RECEIPT", b"ERROR", b"CONNECTED", b"send", b"SEND ", b"x", b"\xff\xfe", b"A:B")
COMMANDS = CLIENT_COMMANDS + UNKNOWN_COMMANDS

_data = st.binary(max_size=12)
_booleans = st.sampled_from([b"true", b"True", b"false", b"junk", b""])
_numbers = st.sampled_from([b"0", b"1", b" 7 ", b"-1", b"300", b"65536", b"soon", b"", b"99999999999999999999999"])
_destinations = st.sampled_from(
    [b"/queue/q", b"q", b"/queue/a%2Fb", b"/topic/a.*", b"/exchange/e/k", b"/exchange/amq.topic", b"/amq/queue/q",
     b"/reply-queue/r/s", b"/temp-queue/t", b"/queue/", b"/nowhere/x", b"", b"/topic/\xff", b"/queue/" + b"x" * 300]
)  # fmt: skip
_identifiers = st.sampled_from([b"1", b"2", b"", b"a b", b"a@@b", b"a:b", b"/temp-queue/t", b"x" * 300])
_ack_ids = st.sampled_from(
    [b"T_1@@session-of-the-playbook@@1", b"T_1@@session-of-the-playbook@@0", b"T_2@@session-of-the-playbook@@2",
     b"T_1@@other@@1", b"T_1@@session-of-the-playbook@@x", b"@@@@", b"nonsense", b""]
)  # fmt: skip

_VALUES: dict[bytes, st.SearchStrategy[bytes]] = {
    b"destination": _destinations,
    b"id": _identifiers | _ack_ids,
    b"message-id": _ack_ids,
    b"receipt": st.sampled_from([b"r1", b"r2", b"a:b", b" r"]),
    b"transaction": st.sampled_from([b"t", b"u", b""]),
    b"ack": st.sampled_from([b"auto", b"client", b"client-individual", b"sometimes"]),
    b"accept-version": st.sampled_from([b"1.0", b"1.1", b"1.2", b"1.0,1.1,1.2", b"9"]),
    b"host": st.sampled_from([b"/", b"nowhere", b"\xff"]),
    b"login": _data,
    b"passcode": _data,
    b"heart-beat": st.sampled_from([b"0,0", b"1000,500", b"soon", b"1,2,3"]),
    b"reply-to": _destinations,
    b"requeue": _booleans,
    b"durable": _booleans,
    b"persistent": _booleans,
    b"mandatory": _booleans,
    b"token": st.sampled_from([b"a.eyJleHAiOjF9.b", b"a.b.c", b"token", b"\xff", b""]),
    b"auto-delete": _booleans,
    b"exclusive": _booleans,
    b"prefetch-count": _numbers,
    b"priority": _numbers,
    b"timestamp": _numbers,
    b"expiration": _numbers,
    b"x-max-length": _numbers,
    b"x-queue-name": st.sampled_from([b"mine", b"", b"\xff", b"y" * 300]),
    b"content-type": _data,
    b"user-id": _data,
    b"subscription": _data,
}
# What a command makes something of, so that it is not always refused for what it lacks.
_WANTED: dict[bytes, tuple[bytes, ...]] = {
    b"SEND": (b"destination", b"transaction", b"receipt", b"reply-to", b"mandatory"),
    b"SUBSCRIBE": (b"destination", b"id", b"ack", b"receipt"),
    b"UNSUBSCRIBE": (b"id", b"destination", b"receipt"),
    b"ACK": (b"id", b"message-id", b"transaction", b"receipt"),
    b"NACK": (b"id", b"message-id", b"transaction", b"requeue"),
    b"BEGIN": (b"transaction",),
    b"COMMIT": (b"transaction", b"receipt"),
    b"ABORT": (b"transaction",),
    b"TOKEN": (b"token", b"receipt"),
}

_header = st.sampled_from(sorted(_VALUES)).flatmap(lambda name: st.tuples(st.just(name), _VALUES[name]))
_any_header = _header | st.tuples(_data, _data)


@st.composite
def frames(draw: st.DrawFn, command: bytes | None = None) -> bytes:
    """One frame as bytes, of this command or of any."""
    chosen = draw(st.sampled_from(COMMANDS)) if command is None else command
    headers = [(name, draw(_VALUES[name])) for name in _WANTED.get(chosen, ()) if draw(st.integers(0, 3))]
    headers += draw(st.lists(_any_header, max_size=3))
    lines = [b"%b:%b" % (escape(name), escape(value)) for name, value in headers]
    body = draw(st.binary(max_size=8)).replace(b"\0", b"") if chosen == b"SEND" else b""
    return b"\n".join([chosen, *lines, b"", b""]) + body + b"\0"

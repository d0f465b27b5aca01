"""Settings that a gateway has nothing like: what becomes of each."""

from __future__ import annotations

from typing import Final

from gateway.migrate.keys import COWBOY, LISTEN_OPTIONS, STOMP, WEB
from gateway.migrate.terms import Atom
from gateway.migrate.values import Reading

_ONE_LOOP: Final = "Nothing to do: in the gateway one event loop accepts for all."
_OF_ERLANG: Final = "Nothing to do: this is about Erlang's sockets."
_SOCKET_BUFFERS: Final = "Nothing to do: the operating system sizes socket buffers."
_LINGER: Final = "Nothing to do: the gateway closes after everything was sent, or cuts."
_SLOW: Final = "slow_consumer_timeout (60s) closes a client that does not read."
_ACCEPTORS: Final = ("num_tcp_acceptors", "num_ssl_acceptors", "num_acceptors", "num_conns_sups")

_SOCKETS: Final = {
    "keepalive": "The gateway sets no TCP keep-alive. Heart-beats find out who is gone: clients can ask for them.",
    "recbuf": _SOCKET_BUFFERS,
    "sndbuf": _SOCKET_BUFFERS,
    "linger": _LINGER,
    "linger.on": _LINGER,
    "linger.timeout": _LINGER,
    "tos": "The gateway marks no packets. If the network needs it, mark them by port in the firewall.",
    "send_timeout": _SLOW,
    "send_timeout_close": _SLOW,
}
_KEYS: Final = {
    STOMP: {
        **dict.fromkeys(_ACCEPTORS, _ONE_LOOP),
        "max_body_length": "The gateway limits headers and body together: max_frame_size.",
        "max_heap_size_unauthenticated": "Nothing to do: what a client can take up before its login is bounded.",
    },
    WEB: {
        **dict.fromkeys(_ACCEPTORS, _ONE_LOOP),
        "use_file_handle_cache": "Nothing to do: this is about Erlang's files.",
    },
}
_BEFORE_THE_WEBSOCKET: Final = "Nothing to do: this is about the HTTP request, where the gateway has limits of its own."


def remark_losses(reading: Reading, *, with_web: bool) -> None:
    """Say what is not carried over, beside TLS.

    Args:
        reading: the settings, and its remarks grow.
        with_web: whether Web-STOMP counts.
    """
    for app in (STOMP, WEB) if with_web else (STOMP,):
        for key, text in _KEYS[app].items():
            if given := reading.get(app, key):
                reading.remarks.lost(given, text)
    _trailing_line_feed(reading)
    _sockets(reading, STOMP, "tcp_listen_options")
    if with_web:
        _sockets(reading, WEB, "tcp_config")
        _http(reading)


def _trailing_line_feed(reading: Reading) -> None:
    given = reading.get(STOMP, "trailing_lf")
    if given is not None and not reading.switch(given, default=True):
        reading.remarks.lost(given, "The gateway writes a line feed behind every frame. Clients that mind it break.")


def _sockets(reading: Reading, app: str, key: str) -> None:
    for name, given in reading.settings.parts(app, key).items():
        if name == "nodelay":
            if given.value == Atom("false"):
                reading.remarks.lost(given, "Nothing to do: the gateway never delays small packets.")
        elif name not in ("backlog", "ip", "port") or (app == STOMP and name != "backlog"):
            known = _OF_ERLANG if name in LISTEN_OPTIONS else "The gateway's sockets have nothing like this."
            reading.remarks.lost(given, _SOCKETS.get(name, known))


def _http(reading: Reading) -> None:
    for name, given in reading.settings.parts(WEB, "cowboy_opts").items():
        text = _BEFORE_THE_WEBSOCKET if name in COWBOY else "The gateway's HTTP server has nothing like this."
        reading.remarks.lost(given, text)
    for name, given in reading.settings.parts(WEB, "cowboy_ws_opts").items():
        if name == "max_frame_size":
            reading.remarks.lost(given, "The gateway limits STOMP frames, not WebSocket messages: see max_frame_size.")
        elif name not in ("compress", "idle_timeout"):
            reading.remarks.lost(given, "The gateway's WebSocket server has nothing like this.")
    http = reading.get(WEB, "use_http_auth")
    if http is not None and reading.switch(http, default=False):
        text = "Without HTTP credentials CONNECT's count. With the plugin such a browser became the default user."
        reading.remarks.note(http, text)

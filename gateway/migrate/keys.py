"""The keys of RabbitMQ that matter here: how rabbitmq.conf calls them, and where they are in the Erlang form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

STOMP: Final = "rabbitmq_stomp"
WEB: Final = "rabbitmq_web_stomp"
RABBIT: Final = "rabbit"

_DOT: Final = re.compile(r"\.(?!\\)")
"""A dot that separates words, in a key that is read backwards."""

Kind = Literal["number", "switch", "word", "text", "address", "name", "none"]
"""What a value in rabbitmq.conf is: `address` is a port or ip:port; `name` is a word that counts where the value is
true; `none` is the word none, which empties the list or property list."""


@dataclass(frozen=True)
class Place:
    """Where a key of rabbitmq.conf is in the Erlang form."""

    app: str
    key: str
    kind: Kind
    part: str | None = None
    """Of a property list."""
    listed: bool = False
    """Whether it is one entry of a list."""


def _entries() -> dict[str, Place]:
    found = _lists() | _listen_options() | _stomp() | _web() | _web_tls() | _tls()
    found["loopback_users"] = Place(RABBIT, "loopback_users", "none")
    found["loopback_users.$"] = Place(RABBIT, "loopback_users", "name", listed=True)
    for name in ("ssl_cert_login_from", "ssl_cert_login_san_type"):
        found[name] = Place(RABBIT, name, "word")
    found["proxy_protocol"] = Place(RABBIT, "proxy_protocol", "switch")
    found["auth_mechanisms.$"] = Place(RABBIT, "auth_mechanisms", "word", listed=True)
    found["ssl_cert_login_san_index"] = Place(RABBIT, "ssl_cert_login_san_index", "number")
    return found


def _lists() -> dict[str, Place]:
    found = {}
    for prefix, app in (("stomp.", STOMP), ("", RABBIT)):
        for kind in ("tcp", "ssl"):
            found[f"{prefix}listeners.{kind}"] = Place(app, f"{kind}_listeners", "none")
            found[f"{prefix}listeners.{kind}.$"] = Place(app, f"{kind}_listeners", "address", listed=True)
    return found


LISTEN_OPTIONS: Final[dict[str, Kind]] = {
    "backlog": "number", "nodelay": "switch", "buffer": "number", "delay_send": "switch", "dontroute": "switch",
    "exit_on_close": "switch", "fd": "number", "high_msgq_watermark": "number", "high_watermark": "number",
    "keepalive": "switch", "low_msgq_watermark": "number", "low_watermark": "number", "port": "number",
    "priority": "number", "recbuf": "number", "send_timeout": "number", "send_timeout_close": "switch",
    "sndbuf": "number", "tos": "number", "linger.on": "switch", "linger.timeout": "number",
}  # fmt: skip


def _listen_options() -> dict[str, Place]:
    key = "tcp_listen_options"
    found = {f"stomp.{key}.{name}": Place(STOMP, key, kind, name) for name, kind in LISTEN_OPTIONS.items()}
    found[f"stomp.{key}"] = Place(STOMP, key, "none")
    return found


def _stomp() -> dict[str, Place]:
    plain: dict[str, Kind] = {
        "default_vhost": "text", "default_topic_exchange": "text", "default_nack_requeue": "switch",
        "implicit_connect": "switch", "ssl_cert_login": "switch", "login_timeout": "number",
        "proxy_protocol": "switch", "hide_server_info": "switch", "max_frame_size": "number",
        "max_frame_size_unauthenticated": "number", "max_connections": "number",
    }  # fmt: skip
    found = {f"stomp.{key}": Place(STOMP, key, kind) for key, kind in plain.items()}
    found["stomp.num_acceptors.tcp"] = Place(STOMP, "num_tcp_acceptors", "number")
    found["stomp.num_acceptors.ssl"] = Place(STOMP, "num_ssl_acceptors", "number")
    found["stomp.default_user"] = Place(STOMP, "default_user", "text", "login")
    found["stomp.default_pass"] = Place(STOMP, "default_user", "text", "passcode")
    return found


COWBOY: Final = (
    "max_empty_lines", "max_header_name_length", "max_header_value_length", "max_headers", "max_keepalive",
    "max_request_line_length", "timeout", "idle_timeout",
)  # fmt: skip


def _web() -> dict[str, Place]:
    plain: dict[str, Kind] = {
        "port": "number", "max_connections": "number", "ws_path": "text", "ws_frame": "word", "use_http_auth": "switch",
        "proxy_protocol": "switch", "use_file_handle_cache": "switch",
    }  # fmt: skip
    found = {f"web_stomp.{key}": Place(WEB, key, kind) for key, kind in plain.items()}
    found["web_stomp.num_acceptors.tcp"] = Place(WEB, "num_tcp_acceptors", "number")
    found["web_stomp.num_acceptors.ssl"] = Place(WEB, "num_ssl_acceptors", "number")
    found["web_stomp.allow_origins"] = Place(WEB, "allow_origins", "none")
    found["web_stomp.allow_origins.$"] = Place(WEB, "allow_origins", "text", listed=True)
    found["web_stomp.hsts.policy"] = Place(WEB, "strict_transport_security", "text")
    for name in COWBOY:
        found[f"web_stomp.cowboy_opts.{name}"] = Place(WEB, "cowboy_opts", "number", name)
    found["web_stomp.ws_opts.compress"] = Place(WEB, "cowboy_ws_opts", "switch", "compress")
    for name in ("max_frame_size", "idle_timeout"):
        found[f"web_stomp.ws_opts.{name}"] = Place(WEB, "cowboy_ws_opts", "number", name)
    return found


TLS_EXTRAS: Final[dict[str, Kind]] = {
    "honor_cipher_order": "switch", "honor_ecc_order": "switch", "reuse_sessions": "word", "reuse_session": "word",
    "secure_renegotiate": "switch", "client_renegotiation": "switch", "crl_check": "word", "depth": "number",
}  # fmt: skip
"""What TLS of Erlang can be told and the gateway's cannot."""


def _web_tls() -> dict[str, Place]:
    found = {}
    for transport in ("tcp", "ssl"):
        key, prefix = f"{transport}_config", f"web_stomp.{transport}"
        found[f"{prefix}.listener"] = Place(WEB, key, "address", "listener")
        found[f"{prefix}.ip"] = Place(WEB, key, "text", "ip")
        for name in ("port", "backlog"):
            found[f"{prefix}.{name}"] = Place(WEB, key, "number", name)
    for name in ("certfile", "keyfile", "cacertfile", "password"):
        found[f"web_stomp.ssl.{name}"] = Place(WEB, "ssl_config", "text", name)
    for name, kind in TLS_EXTRAS.items():
        found[f"web_stomp.ssl.{name}"] = Place(WEB, "ssl_config", kind, name)
    for name in ("versions", "ciphers"):
        found[f"web_stomp.ssl.{name}.$"] = Place(WEB, "ssl_config", "text", name, listed=True)
    return found


def _tls() -> dict[str, Place]:
    key = "ssl_options"
    found = {f"{key}.{name}": Place(RABBIT, key, kind, name) for name, kind in TLS_EXTRAS.items()}
    for name in ("certfile", "keyfile", "cacertfile", "password", "cert", "dh", "dhfile", "psk_identity"):
        found[f"{key}.{name}"] = Place(RABBIT, key, "text", name)
    for name in ("verify", "fail_if_no_peer_cert", "log_level", "log_alert", "bypass_pem_cache"):
        found[f"{key}.{name}"] = Place(RABBIT, key, "word", name)
    for name in ("versions", "ciphers", "cacerts", "key"):
        found[f"{key}.{name}.$"] = Place(RABBIT, key, "text", name, listed=True)
    found[key] = Place(RABBIT, key, "none")
    return found


PLACES: Final = _entries()

PROPERTY_LISTS: Final = frozenset(
    (
        (STOMP, "default_user"), (STOMP, "tcp_listen_options"), (WEB, "tcp_config"), (WEB, "ssl_config"),
        (WEB, "cowboy_opts"), (WEB, "cowboy_ws_opts"), (RABBIT, "ssl_options"),
    )
)  # fmt: skip
LISTS: Final = frozenset((place.app, place.key) for place in PLACES.values() if place.listed and place.part is None)

_ERLANG_ONLY: Final = {
    STOMP: (
        "trailing_lf", "max_headers", "max_header_length", "max_body_length", "max_heap_size_unauthenticated",
        "num_conns_sups",
    ),
    WEB: ("num_acceptors", "num_conns_sups"),
    RABBIT: ("default_consumer_prefetch",),
}  # fmt: skip

KEYS: Final = {
    app: frozenset([place.key for place in PLACES.values() if place.app == app] + list(_ERLANG_ONLY[app]))
    for app in (STOMP, WEB, RABBIT)
}
"""Keys of each application in the Erlang form; of `rabbit` those that matter here."""


def place_of(key: str) -> Place | None:
    """Where a key of rabbitmq.conf belongs; None for one that is not here."""
    found = PLACES.get(key)
    return found if found is not None else PLACES.get(f"{_DOT.split(key[::-1], maxsplit=1)[-1][::-1]}.$")


def last_word(key: str) -> str:
    """What stands behind the last dot that separates words; one behind a backslash separates nothing."""
    return _DOT.split(key[::-1], maxsplit=1)[0][::-1].replace("\\.", ".")


def is_ours(key: str) -> bool:
    """Whether a key of rabbitmq.conf is about one of the two plugins."""
    return key.partition(".")[0] in ("stomp", "web_stomp")

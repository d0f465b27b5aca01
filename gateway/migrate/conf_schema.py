"""The keys of rabbitmq.conf that matter here, and the place of each in the Erlang form of the configuration.

This is the part of RabbitMQ's own schema (`rabbit.schema`, `rabbitmq_stomp.schema`, `rabbitmq_web_stomp.schema`) for
the two plugins and for the settings of the broker that they use.
"""

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

STOMP: Final = "rabbitmq_stomp"
WEB_STOMP: Final = "rabbitmq_web_stomp"
RABBIT: Final = "rabbit"

_DOT: Final = re.compile(r"(?<!\\)\.")

ValueType = Literal["integer", "boolean", "atom", "string", "address", "name", "none"]
"""`address` is a port or ip:port. `name` is true or false; the last word of a key that is true is an entry of the list.
`none` is the word none, which empties the list or property list."""


@dataclass(frozen=True)
class KeyMapping:
    """The place of a key of rabbitmq.conf in the Erlang form."""

    app: str
    key: str
    value_type: ValueType
    property_name: str | None = None
    """Where the value of `key` is a property list."""
    in_list: bool = False
    """Whether the value is one entry of a list."""


_TLS_BOOLEANS: Final = "honor_cipher_order honor_ecc_order secure_renegotiate client_renegotiation"
_TLS_ATOMS: Final = "reuse_sessions reuse_session crl_check"

# The last words of the keys by type. The index is the first words of the keys, their application, and their property
# list or "". A last word is the key in the application, or the name in the property list. If it ends with `.$`, which
# stands for any word, the value is one entry of a list.
_KEYS: Final[dict[tuple[str, str, str], dict[ValueType, str]]] = {
    ("stomp", STOMP, ""): {
        "string": "default_vhost default_topic_exchange",
        "boolean": "default_nack_requeue implicit_connect ssl_cert_login proxy_protocol hide_server_info",
        "integer": "login_timeout max_frame_size max_frame_size_unauthenticated max_connections",
    },
    ("stomp.tcp_listen_options", STOMP, "tcp_listen_options"): {
        "boolean": "nodelay delay_send dontroute exit_on_close keepalive send_timeout_close linger.on",
        "integer": "backlog buffer fd high_msgq_watermark high_watermark low_msgq_watermark low_watermark port "
        "priority recbuf send_timeout sndbuf tos linger.timeout",
    },
    ("web_stomp", WEB_STOMP, ""): {
        "string": "ws_path allow_origins.$",
        "atom": "ws_frame",
        "boolean": "use_http_auth proxy_protocol use_file_handle_cache",
        "integer": "port max_connections",
    },
    ("web_stomp.tcp", WEB_STOMP, "tcp_config"): {"address": "listener", "string": "ip", "integer": "port backlog"},
    ("web_stomp.ssl", WEB_STOMP, "ssl_config"): {
        "address": "listener",
        "string": "ip certfile keyfile cacertfile password versions.$ ciphers.$",
        "boolean": _TLS_BOOLEANS,
        "atom": _TLS_ATOMS,
        "integer": "port backlog depth",
    },
    ("web_stomp.ws_opts", WEB_STOMP, "cowboy_ws_opts"): {
        "boolean": "compress",
        "integer": "max_frame_size idle_timeout",
    },
    ("web_stomp.cowboy_opts", WEB_STOMP, "cowboy_opts"): {
        "integer": "max_empty_lines max_header_name_length max_header_value_length max_headers max_keepalive "
        "max_request_line_length timeout idle_timeout"
    },
    ("", RABBIT, ""): {
        "atom": "ssl_cert_login_from ssl_cert_login_san_type auth_mechanisms.$",
        "boolean": "proxy_protocol",
        "integer": "ssl_cert_login_san_index",
        "name": "loopback_users.$",
    },
    ("ssl_options", RABBIT, "ssl_options"): {
        "string": "certfile keyfile cacertfile password cert dh dhfile psk_identity "
        "versions.$ ciphers.$ cacerts.$ key.$",
        "boolean": _TLS_BOOLEANS,
        "atom": f"{_TLS_ATOMS} verify fail_if_no_peer_cert log_level log_alert bypass_pem_cache",
        "integer": "depth",
    },
}


def _mappings() -> dict[str, KeyMapping]:
    found = {
        "stomp.default_user": KeyMapping(STOMP, "default_user", "string", "login"),
        "stomp.default_pass": KeyMapping(STOMP, "default_user", "string", "passcode"),
        "stomp.tcp_listen_options": KeyMapping(STOMP, "tcp_listen_options", "none"),
        "web_stomp.allow_origins": KeyMapping(WEB_STOMP, "allow_origins", "none"),
        "web_stomp.hsts.policy": KeyMapping(WEB_STOMP, "strict_transport_security", "string"),
        "loopback_users": KeyMapping(RABBIT, "loopback_users", "none"),
        "ssl_options": KeyMapping(RABBIT, "ssl_options", "none"),
    }
    for transport in ("tcp", "ssl"):
        for prefix, app in (("stomp.", STOMP), ("", RABBIT)):
            key = f"{transport}_listeners"
            found[f"{prefix}listeners.{transport}"] = KeyMapping(app, key, "none")
            found[f"{prefix}listeners.{transport}.$"] = KeyMapping(app, key, "address", in_list=True)
        for prefix, app in (("stomp.", STOMP), ("web_stomp.", WEB_STOMP)):
            found[f"{prefix}num_acceptors.{transport}"] = KeyMapping(app, f"num_{transport}_acceptors", "integer")
    for (prefix, app, property_list), types in _KEYS.items():
        for value_type, words in types.items():
            for word in words.split():
                name = word.removesuffix(".$")
                mapping = KeyMapping(app, name, value_type, in_list=word != name)
                if property_list:
                    mapping = replace(mapping, key=property_list, property_name=name)
                found[f"{prefix}.{word}".lstrip(".")] = mapping
    return found


MAPPINGS: Final = _mappings()
"""By the key in rabbitmq.conf, in which `$` stands for any last word."""

PROPERTY_LISTS: Final = frozenset((found.app, found.key) for found in MAPPINGS.values() if found.property_name)
LISTS: Final = frozenset(
    (found.app, found.key) for found in MAPPINGS.values() if found.in_list and not found.property_name
)

_ERLANG_ONLY: Final = {
    STOMP: "trailing_lf max_headers max_header_length max_body_length max_heap_size_unauthenticated num_conns_sups",
    WEB_STOMP: "num_acceptors num_conns_sups",
    RABBIT: "default_consumer_prefetch",
}
KEYS: Final = {
    app: frozenset(names.split()).union(found.key for found in MAPPINGS.values() if found.app == app)
    for app, names in _ERLANG_ONLY.items()
}
"""The keys of each application in the Erlang form; of `rabbit` only those that matter here."""


_SHARED: Final = frozenset(
    "default_user default_pass default_vhost max_connections num_acceptors tcp_listeners ssl_listeners "
    "tcp_listen_options num_tcp_acceptors num_ssl_acceptors proxy_protocol".split()
)
"""Keys that `rabbit` has as well as a plugin, with a meaning of its own."""


def right_application(app: str, key: str) -> str:
    """The application that a key of the Erlang form belongs to, if the given one does not have it; empty if none."""
    others = [other for other in (STOMP, WEB_STOMP, RABBIT) if other != app and key in KEYS[other]]
    return others[0] if others and key not in (_SHARED if app == RABBIT else ()) else ""


def right_key(key: str) -> str:
    """What a key of rabbitmq.conf with the wrong first word should be; empty if there is nothing like it."""
    first, _, rest = key.partition(".")
    bare = rest if first in ("stomp", "web_stomp") else key
    if bare == key and bare.partition(".")[0] in _SHARED:
        return ""
    found = (other for other in (bare, f"stomp.{bare}", f"web_stomp.{bare}") if other != key and mapping_of(other))
    return next(found, "")


def property_names(app: str, key: str) -> frozenset[str]:
    """The properties of a property list that rabbitmq.conf has keys for."""
    found = (mapping.property_name for mapping in MAPPINGS.values() if (mapping.app, mapping.key) == (app, key))
    return frozenset(name for name in found if name)


def mapping_of(key: str) -> KeyMapping | None:
    """The mapping of a key of rabbitmq.conf; None for a key that does not matter here."""
    *words, _ = _DOT.split(key)
    return MAPPINGS.get(key) or MAPPINGS.get(f"{'.'.join(words) or key}.$")


def last_word(key: str) -> str:
    """The word after the last dot of a key. A dot after a backslash is part of the word."""
    return _DOT.split(key)[-1].replace("\\.", ".")

"""Mistakes in the keys of a WebSocket listener."""

from __future__ import annotations

import pytest

from gateway.config.loader import parse
from gateway.errors import ConfigError


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ("path: ws", "begins with /"),
        ("path: /a b", "begins with /"),
        ("path: '/a?b'", "begins with /"),
        ("path: /grüße", "begins with /"),
        ("allowed_origins: [https://example.org/]", "without a slash"),
        ("allowed_origins: [https://Example.org]", "small letters"),
        ("allowed_origins: [example.org]", "scheme"),
        ("allowed_origins: ['*']", "`*` is not a valid origin"),
        ("allowed_origins: ['https://*.example.org']", "scheme"),
        ('strict_transport_security: "max-age=1\\r\\nX: y"', "one line"),
        ("strict_transport_security: grüße", "ASCII"),
        ("implicit_connect: true", "tcp listeners only"),
        ("frame: utf8", "frame"),
        ("token_cookie: 'a b', allowed_origins: [https://example.org]", "The name of a cookie"),
        ("token_cookie: token", "Any web page could log in"),
        ("token_cookie: token, allowed_origins: ['null']", "Any web page could log in"),
        ("max_connections: 0", "max_connections"),
    ],
)
def test_mistakes(keys: str, part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(f"listeners: [{{websocket: '127.0.0.1:0', {keys}}}]", environment={})
    assert part in str(refused.value)


@pytest.mark.parametrize(
    "origin",
    ["https://example.org", "http://localhost:8080", "null", "http://[::1]:80", "app://a-b.c", "http://10.0.0.1"],
)
def test_origins(origin: str) -> None:
    config = parse(f"listeners: [{{websocket: '127.0.0.1:0', allowed_origins: ['{origin}']}}]", environment={})
    assert config.listeners[0].allowed_origins == (origin,)


def test_keys_of_a_websocket_are_a_mistake_elsewhere() -> None:
    with pytest.raises(ConfigError, match="frame is for websocket listeners only"):
        parse("listeners: [{tcp: '127.0.0.1:0', frame: text}]", environment={})

"""Unix-domain sockets in the configuration: what they may be, and every mistake with its place."""

from __future__ import annotations

import socket
from grp import getgrgid
from pathlib import Path

import pytest

from gateway.config.loader import parse
from gateway.config.model import GatewayConfig
from gateway.errors import ConfigError


def read(text: str, directory: Path) -> GatewayConfig:
    return parse(text, directory=directory, environment={"MODE": "600"})


@pytest.mark.parametrize(
    ("listener", "address", "mode"),
    [
        ("unix: a.sock", "unix:{}/a.sock", 0o660),
        ("unix: a.sock, socket_mode: '0666'", "unix:{}/a.sock", 0o666),
        ("unix: a.sock, socket_mode: '${{MODE}}'", "unix:{}/a.sock", 0o600),
        ("websocket: 'unix:{}/b.sock'", "unix:{}/b.sock", 0o660),
        ("websocket: 'unix:61613'", "unix:61613", 0o660),
    ],
)
def test_what_a_listener_may_be(listener: str, address: str, mode: int, tmp_path: Path) -> None:
    (found,) = read(f"listeners: [{{{listener.format(tmp_path)}}}]", tmp_path).listeners
    assert (str(found.address), found.socket_mode) == (address.format(tmp_path), mode)


def test_operators_have_one_too(tmp_path: Path) -> None:
    assert str(read("admin: unix:a", tmp_path).admin.address) == f"unix:{tmp_path}/a"
    admin = read("admin: {address: unix:b, socket_mode: '600'}", tmp_path).admin
    assert (str(admin.address), admin.socket_mode) == (f"unix:{tmp_path}/b", 0o600)


def test_a_group_has_a_name_or_a_number(tmp_path: Path) -> None:
    for group in (getgrgid(0).gr_name, "0"):
        (found,) = read(f"listeners: [{{unix: a, socket_group: '{group}'}}]", tmp_path).listeners
        assert found.socket_group == 0


def test_a_socket_that_is_there_already_is_no_mistake(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "a"))
        assert read("listeners: [{unix: a}]", tmp_path).warnings == ()


@pytest.mark.parametrize(
    ("text", "path", "sentence"),
    [
        ("listeners: [{unix: file}]", "listeners[0].unix", "A file that is no socket is in the way. Give another path"),
        ("listeners: [{unix: link}]", "listeners[0].unix", "A file that is no socket is in the way."),
        ("listeners: [{unix: none/a}]", "listeners[0].unix", "The directory of this socket does not exist. Make it"),
        ("listeners: [{unix: file/a}]", "listeners[0].unix", "The directory of this socket does not exist."),
        (f"listeners: [{{unix: {'a' * 108}}}]", "listeners[0].unix", "has at most 107 bytes"),
        ('listeners: [{unix: "a\\0"}]', "listeners[0].unix", "none of them is 0"),
        ("listeners: [{unix: 5}]", "listeners[0].unix", "The name of a file is needed"),
        ("admin: unix:none/a", "admin.address", "The directory of this socket does not exist."),
        ("listeners: [{websocket: unix:file}]", "listeners[0].websocket", "A file that is no socket is in the way."),
        ("listeners: [{tcp: /run/a}]", "listeners[0].tcp", "The path of a Unix-domain socket belongs under unix"),
        (
            "listeners: [{unix: a, socket_mode: 0660}]",
            "listeners[0].socket_mode",
            "octal digits in quotes",
        ),
        ("listeners: [{unix: a, socket_mode: '888'}]", "listeners[0].socket_mode", "octal digits in quotes"),
        ("listeners: [{unix: a, socket_group: no such}]", "listeners[0].socket_group", "no group of that name"),
        ("listeners: [{tcp: 'a:1', socket_mode: '600'}]", "listeners[0].socket_mode", "for Unix-domain sockets only"),
        ("admin: {socket_group: '0'}", "admin.socket_group", "for Unix-domain sockets only"),
        ("listeners: [{unix: a, path: /ws}]", "listeners[0].path", "for websocket listeners only"),
        ("listeners: [{unix: a, tcp: 'a:1'}]", "listeners[0]", "either tcp, websocket or unix"),
        (
            "listeners: [{unix: a}, {unix: ./a}]",
            "listeners[1].unix",
            "already taken by listeners[0].unix",
        ),
        ("listeners: [{unix: a}, {websocket: unix:a}]", "listeners[1].websocket", "already taken by listeners[0].unix"),
        ("listeners: [{unix: a}]\nadmin: unix:a", "admin", "already taken by listeners[0].unix. Give it another path."),
    ],
)
def test_mistakes(text: str, path: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ConfigError) as caught:
        read(text, tmp_path)
    (mistake,) = caught.value.mistakes
    assert (mistake.path, mistake.line) == (path, len(text.splitlines()))
    assert sentence in str(mistake)


@pytest.mark.parametrize(
    ("keys", "useless"),
    [
        ("tcp_keepalive: 5s, max_connections_per_address: 9", ["tcp_keepalive"]),
        ("allowed_networks: [10.0.0.0/8], denied_networks: [10.1.0.0/16]", ["allowed_networks", "denied_networks"]),
        ("proxy_protocol: true, allowed_networks: [10.0.0.0/8]", []),
        ("proxy_protocol: true, trusted_proxies: [10.0.0.0/8]", ["trusted_proxies"]),
    ],
)
def test_what_is_about_addresses_is_for_tcp(keys: str, useless: list[str], tmp_path: Path) -> None:
    warnings = read(f"listeners: [{{unix: a, {keys}}}]", tmp_path).warnings
    assert [warning.path for warning in warnings] == [f"listeners[0].{key}" for key in useless]
    assert {warning.sentence for warning in warnings} <= {"This has no effect on a Unix-domain socket."}

"""The HTTP request of a WebSocket client: which requests are accepted, compared with RabbitMQ's own plugin."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.local.broker import Broker
from tests.support.certificates import Authority
from tests.support.deadline import until, within
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process, listening
from tests.support.stomp_client import StompClient, encoded
from tests.support.websocket_client import RefusedError, WebSocketClient

pytestmark = pytest.mark.system

PAGE: Final = "https://example.org"
HSTS: Final = "max-age=31536000; includeSubDomains"
CN: Final = "browser"
PREFACE: Final = b"PROXY TCP4 10.9.8.7 10.2.2.2 1000 443\r\n"
ACCEPT: Final = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
UPGRADE: Final = {
    "Host": "a",
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


@dataclass(frozen=True)
class Servers:
    """RabbitMQ's Web STOMP plugin, and a gateway with several listeners."""

    process: GatewayProcess
    plugin: Address
    plain: Address
    strict: Address
    tls: Address
    proxied: Address
    authority: Authority
    client: ssl.SSLContext


@pytest.fixture(scope="module")
def servers(laboratory: Broker, web_stomp_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("websocket")
    authority = Authority.make(directory, "authority")
    certificate, key = authority.sign(directory, "server")
    tls = {"cert_file": str(certificate), "key_file": str(key), "ca_file": str(authority.certificate)}
    login = {"verify": "optional", "certificate_login": {"name": "common_name"}}
    rules = {
        "allowed_origins": [PAGE, "null"],
        "use_http_auth": True,
        "strict_transport_security": HSTS,
        "path": "/a/b",
    }
    address = {"websocket": "127.0.0.1:0"}
    listeners: list[dict[str, Any]] = [
        address, address | rules, address | {"tls": tls | login}, address | {"proxy_protocol": True},
    ]  # fmt: skip
    defaults = {
        "certificate_users": {"users": {CN: {"login": "guest", "passcode": "guest"}}},
        "loopback_users": [],
        # A client that becomes the default user cannot log in.
        "default_user": {"login": "nobody", "passcode": "nothing"},
    }
    with gateway_process(configuration(laboratory.amqp_url, defaults, listeners=listeners)) as process:
        plain, strict, encrypted, proxied = listening(process, len(listeners))
        context = ssl.create_default_context(cafile=str(authority.certificate))
        plugin = (laboratory.host, web_stomp_port)
        yield Servers(process, plugin, plain, strict, encrypted, proxied, authority, context)


async def ask(address: Address, line: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str]]:
    """Send a request, and return status and headers of the answer."""
    text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    async with within(), StompClient.dialled(address) as client:
        client.writer.write(f"{line}\r\n{text}\r\n".encode())
        first, *rest = (await client.reader.readuntil(b"\r\n\r\n")).decode()[:-4].split("\r\n")
        answer = {name.lower(): value.strip() for name, _, value in (part.partition(":") for part in rest)}
        if int(first.split(" ")[1]) != 101:
            assert answer["content-length"] == "0"
        return int(first.split(" ")[1]), answer


PATHS = {
    "exact": ("GET /ws HTTP/1.1", 101),
    "slash": ("GET /ws/ HTTP/1.1", 101),
    "query": ("GET /ws?a=b/c HTTP/1.1", 101),
    "escaped": ("GET /%77s HTTP/1.1", 101),
    "two slashes": ("GET /ws// HTTP/1.1", 404),
    "other": ("GET /wsx HTTP/1.1", 404),
    "longer": ("GET /ws/info HTTP/1.1", 404),
    "root": ("GET / HTTP/1.1", 404),
    "capitals": ("GET /WS HTTP/1.1", 404),
}


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("which", ["plugin", "plain"])
async def test_paths(servers: Servers, which: str, name: str) -> None:
    line, status = PATHS[name]
    got, headers = await ask(getattr(servers, which), line, UPGRADE)
    assert got == status
    if status == 101:
        assert headers["sec-websocket-accept"] == ACCEPT


@pytest.mark.parametrize(
    ("which", "missing"),
    [
        ("plugin", ("Connection", "Upgrade")),
        ("plain", ("Connection", "Upgrade")),
        ("plain", ("Upgrade",)),
        ("plain", ("Connection",)),
    ],
)
async def test_a_request_without_the_upgrade_headers_is_refused(
    servers: Servers, which: str, missing: tuple[str, ...]
) -> None:
    headers = {name: value for name, value in UPGRADE.items() if name not in missing}
    status, answer = await ask(getattr(servers, which), "GET /ws HTTP/1.1", headers)
    assert (status, answer["upgrade"]) == (426, "websocket")


SUBPROTOCOLS = {
    "v10.stomp": "v10.stomp",
    "v10.stomp, v12.stomp,v11.stomp": "v12.stomp",
    "v11.stomp, mqtt": "v11.stomp",
    "V12.stomp, v10.stomp": "v10.stomp",
    "mqtt": None,
    "v13.stomp": None,
}


@pytest.mark.parametrize("offered", SUBPROTOCOLS)
@pytest.mark.parametrize("which", ["plugin", "plain"])
async def test_the_highest_subprotocol_is_echoed(servers: Servers, which: str, offered: str) -> None:
    status, headers = await ask(
        getattr(servers, which), "GET /ws HTTP/1.1", UPGRADE | {"Sec-WebSocket-Protocol": offered}
    )
    assert (status, headers.get("sec-websocket-protocol")) == (101, SUBPROTOCOLS[offered])


@pytest.mark.parametrize("which", ["plugin", "plain"])
async def test_the_subprotocol_does_not_choose_the_version(servers: Servers, which: str) -> None:
    async with WebSocketClient.dialled(getattr(servers, which), subprotocols=["v12.stomp"]) as client:
        client.write("CONNECT", login="guest", passcode="guest", host="/")
        await client.expect("CONNECTED", version="1.0")


REFUSED = {
    "method": ("POST /ws HTTP/1.1", {}, 405),
    "version of HTTP": ("GET /ws HTTP/1.0", {}, 505),
    "key": ("GET /ws HTTP/1.1", {"Sec-WebSocket-Key": "short"}, 400),
    "version of WebSocket": ("GET /ws HTTP/1.1", {"Sec-WebSocket-Version": "8"}, 400),
    "body": ("GET /ws HTTP/1.1", {"Content-Length": "5"}, 400),
    "no HTTP": ("CONNECT", {}, 400),
    "long line": (f"GET /ws?{'a' * 10000} HTTP/1.1", {}, 414),
    "long header": ("GET /ws HTTP/1.1", {"Cookie": "a" * 10000}, 431),
    "long headers": ("GET /ws HTTP/1.1", {f"Cookie{number}": "a" * 8000 for number in range(5)}, 431),
    "many headers": ("GET /ws HTTP/1.1", {f"X{number}": "a" for number in range(200)}, 431),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_requests_that_are_refused(servers: Servers, name: str) -> None:
    line, headers, status = REFUSED[name]
    assert (await ask(servers.plain, line, UPGRADE | headers))[0] == status


async def test_refusals_are_logged_without_the_request(servers: Servers) -> None:
    secret = base64.b64encode(b"guest:secret").decode()
    status, _ = await ask(
        servers.plain, f"GET /?token={secret} HTTP/1.1", UPGRADE | {"Authorization": f"Basic {secret}"}
    )
    assert status == 404
    line = servers.process.logged("websocket handshake refused")[-1]
    assert {"address", "peer", "status", "reason", "left_out"} <= line.keys()
    assert secret not in servers.process.log.read_text()


# Origins.


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (PAGE, 101),
        ("null", 101),
        (None, 101),
        ("https://example.org:443", 403),
        ("http://example.org", 403),
        ("https://EXAMPLE.org", 403),
        ("https://example.org.evil.test", 403),
        ("https://evil.test/https://example.org", 403),
        ("", 403),
    ],
)
async def test_origins_are_compared_exactly(servers: Servers, origin: str | None, status: int) -> None:
    headers = UPGRADE if origin is None else UPGRADE | {"Origin": origin}
    got, answer = await ask(servers.strict, "GET /a/b HTTP/1.1", headers)
    assert got == status
    assert answer.get("strict-transport-security") == (HSTS if status == 101 else None)


async def test_without_a_list_every_origin_may_connect(servers: Servers) -> None:
    for address in (servers.plugin, servers.plain):
        assert (await ask(address, "GET /ws HTTP/1.1", UPGRADE | {"Origin": "https://evil.test"}))[0] == 101


# HTTP Basic.


def basic(credentials: bytes) -> str:
    return "Basic " + base64.b64encode(credentials).decode()


async def test_credentials_of_http_take_precedence_over_those_of_connect(servers: Servers) -> None:
    headers = {"Authorization": basic(b"guest:guest")}
    async with WebSocketClient.dialled(servers.strict, path="/a/b", headers=headers) as client:
        await client.connect(login="nobody", passcode="wrong")
    async with WebSocketClient.dialled(
        servers.strict, path="/a/b", headers={"Authorization": basic(b"guest:no")}
    ) as client:
        client.write("CONNECT", accept_version="1.2", host="/", login="guest", passcode="guest")
        await client.expect("ERROR", message="Bad CONNECT")


async def test_an_anonymous_browser_does_not_become_the_default_user(servers: Servers) -> None:
    """The plugin logs in as the default user here, though CONNECT names another."""
    async with WebSocketClient.dialled(servers.strict, path="/a/b") as client:
        client.write("CONNECT", accept_version="1.2", host="/", login="guest", passcode="wrong")
        await client.expect("ERROR", b"Access refused for user 'guest'\n", message="Bad CONNECT")
        await client.connect(login="guest", passcode="guest")


async def test_without_use_http_auth_the_header_is_ignored(servers: Servers) -> None:
    async with WebSocketClient.dialled(servers.plain, headers={"Authorization": basic(b"nobody:wrong")}) as client:
        await client.connect(login="guest", passcode="guest")


@pytest.mark.parametrize(
    "value", ["Bearer abc", "Basic", "Basic !!!", basic(b"no colon"), basic(b"a:b") + " more", "", "Digest username=a"]
)
async def test_other_credentials_are_refused(servers: Servers, value: str) -> None:
    status, headers = await ask(servers.strict, "GET /a/b HTTP/1.1", UPGRADE | {"Authorization": value})
    assert (status, headers["www-authenticate"]) == (401, 'Basic realm="STOMP", charset="UTF-8"')


# TLS and the PROXY protocol.


async def test_tls_and_login_by_a_certificate(servers: Servers, tmp_path: Path) -> None:
    async with WebSocketClient.dialled(servers.tls, tls=servers.client) as stranger:
        stranger.write("CONNECT", accept_version="1.2", host="/")
        await stranger.expect("ERROR", message="Bad CONNECT")
    browser = servers.authority.identify(tmp_path, CN)
    context = ssl.create_default_context(cafile=str(servers.authority.certificate))
    context.load_cert_chain(browser.certificate, browser.key)
    async with WebSocketClient.dialled(servers.tls, tls=context) as client:
        await client.connect()
        await client.ask("DISCONNECT")
        assert await client.closed() == 1000
    async with WebSocketClient.logged_in(
        servers.tls, frame={"login": "guest", "passcode": "guest"}, tls=servers.client
    ) as last:
        last.send(b"\xff")
        await last.expect("ERROR", message="Malformed frame")
        assert await last.closed() == 1007


async def test_what_was_sent_before_the_client_closed_is_published(servers: Servers) -> None:
    """After much other input, over TLS: the connection ends while the gateway is still reading."""
    destination = "/queue/before-the-end"
    async with (
        within(),
        WebSocketClient.logged_in(
            servers.tls, frame={"login": "guest", "passcode": "guest"}, tls=servers.client
        ) as client,
    ):
        for _ in range(20_000):
            client.protocol.send_text(b"")
        client.protocol.send_text(encoded("SEND", b"last", destination=destination))
        client.writer.write(b"".join(client.protocol.data_to_send()))
        client.writer.close()
        await client.writer.wait_closed()
    async with WebSocketClient.logged_in(servers.plain, frame={"login": "guest", "passcode": "guest"}) as reader:
        reader.write("SUBSCRIBE", id="0", destination=destination)
        await reader.expect("MESSAGE", b"last")


async def test_the_proxy_protocol(servers: Servers) -> None:
    async with WebSocketClient.dialled(servers.proxied, preface=PREFACE) as client:
        await client.connect(login="guest", passcode="guest")

        async def peers() -> list[str]:
            return [line["peer"] for line in servers.process.logged("session started")]

        await until(peers, lambda peers: "10.9.8.7:1000" in peers)


async def test_tls_on_a_plain_port_is_logged(servers: Servers) -> None:
    # The log limits lines about refusals, and this listener had only few.
    async with within(), StompClient.dialled(servers.proxied, preface=PREFACE) as client:
        client.writer.write(b"\x16\x03\x01\x02\0\1\0\1")
        assert await client.reader.read() == b""
    await servers.process.until_logged("tls on a plain port")


async def test_frames_right_behind_the_request_are_read(servers: Servers) -> None:
    """A client must not send them before the answer, but a proxy may have merged them with the request."""
    data = encoded("CONNECT", accept_version="1.2", host="/", login="guest", passcode="guest")
    async with within(), StompClient.dialled(servers.plain) as client:
        head = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
        client.writer.write(
            f"GET /ws HTTP/1.1\r\n{head}\r\n".encode() + bytes((0x82, 0x80 | len(data), 0, 0, 0, 0)) + data
        )
        await client.reader.readuntil(b"\r\n\r\n")
        assert await client.reader.readexactly(2) is not None
        await client.expect("CONNECTED")


# Messages, with both servers.


@pytest.mark.parametrize("which", ["plugin", "plain"])
async def test_plugin_and_gateway_take_a_stream_cut_anywhere_and_send_a_frame_in_each_message(
    servers: Servers, which: str
) -> None:
    destination = f"/queue/websocket-{which}"
    stream = encoded("CONNECT", accept_version="1.2", login="guest", passcode="guest", host="/")
    stream += encoded("SUBSCRIBE", id="0", destination=destination) + b"\n\n"
    stream += encoded("SEND", b"a\0b\n", destination=destination) * 2 + encoded("BEGIN", transaction="t", receipt="r")
    async with WebSocketClient.dialled(getattr(servers, which)) as client:
        for position, byte in enumerate(stream):
            client.send(bytes([byte]), binary=position % 2 == 0)
        await client.expect("CONNECTED")
        seen = sorted([(frame := await client.receive()).command + frame.body.decode() for _ in range(3)])
        assert seen == ["MESSAGEa\0b\n", "MESSAGEa\0b\n", "RECEIPT"]
        client.send(b"\xff")
        if which == "plain":
            await client.expect("ERROR", message="Malformed frame")
        assert await client.closed() == 1007


async def test_a_refusal_can_be_read_by_a_client(servers: Servers) -> None:
    with pytest.raises(RefusedError) as refused:
        async with WebSocketClient.dialled(servers.strict, path="/a/b", headers={"Origin": "https://evil.test"}):
            pytest.fail("let in")
    assert refused.value.response.status_code == 403
    assert json.dumps(dict(refused.value.response.headers.raw_items())).count("evil") == 0

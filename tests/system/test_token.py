"""OAuth 2 tokens as passcodes: renewed in place while everything goes on, and the end of a session with its token."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from deploy.local.broker import Broker
from gateway.parity.steps import Release
from gateway.server.broker.broker_errors import LinkDownError
from gateway.server.process.gateway import Gateway
from tests.support.brokers import private_broker, release_of
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import Address, gateway_here, parsed
from tests.support.stomp_client import StompClient
from tests.support.websocket_client import RefusedError, WebSocketClient

pytestmark = pytest.mark.system

AUDIENCE: Final = "rabbitmq"
ALL: Final = ("configure:*/*", "write:*/*/*", "read:*/*/*")

# Lifetime, in seconds, of a token that is to expire in the test: long enough for all that has to come before.
SOON = 10


class TokenIssuer:
    """Signs tokens (RFC 7519, RS256) that RabbitMQ accepts as passcodes with its OAuth 2 backend.

    Args:
        directory: where the public key goes.
    """

    def __init__(self, directory: Path) -> None:
        self._key: RSAPrivateKey = generate_private_key(65537, 2048)
        self._public = directory / "issuer.pem"
        self._public.write_bytes(self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    @property
    def broker_config(self) -> list[str]:
        """Lines of rabbitmq.conf for a broker that accepts its tokens, and passwords as well."""
        return [
            "auth_backends.1 = rabbit_auth_backend_oauth2",
            "auth_backends.2 = internal",
            f"auth_oauth2.resource_server_id = {AUDIENCE}",
            "auth_oauth2.default_key = issuer",
            f"auth_oauth2.signing_keys.issuer = {self._public}",
        ]

    def token(self, seconds: float = 3600, scopes: tuple[str, ...] = ALL, user: str = "app") -> str:
        """A token that is valid for so many seconds from now; with a negative number it has expired already."""
        claims = {
            "sub": user,
            "client_id": user,
            "aud": [AUDIENCE],
            "exp": int(time.time() + seconds),
            "jti": secrets.token_hex(8),
            "scope": [f"{AUDIENCE}.{scope}" for scope in scopes],
        }
        signed = f"{_segment({'alg': 'RS256', 'kid': 'issuer', 'typ': 'JWT'})}.{_segment(claims)}"
        return f"{signed}.{_base64(self._key.sign(signed.encode(), PKCS1v15(), SHA256()))}"


def _segment(values: dict[str, object]) -> str:
    return _base64(json.dumps(values).encode())


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> TokenIssuer:
    return TokenIssuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def broker(issuer: TokenIssuer) -> Iterator[Broker]:
    """A node that accepts tokens as passcodes."""
    with private_broker(["rabbitmq_auth_backend_oauth2", "rabbitmq_stomp"], issuer.broker_config) as broker:
        yield broker


@pytest_asyncio.fixture
async def gateway(broker: Broker, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway whose virtual host `/` renews tokens, and `old` does not."""
    config = parsed(
        broker.amqp_url,
        {"journal": {"level": "message", "directory": str(tmp_path / "journal")}},
        virtual_hosts={
            "/": {"token_renewal": True, "links": "dedicated"},
            "old": {"amqp_vhost": "/", "token_renewal": False},
        },
    )
    async with gateway_here(config) as gateway:
        yield gateway


async def test_a_renewed_token_carries_a_session_over_the_end_of_the_first(
    gateway: Gateway, issuer: TokenIssuer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = issuer.token(SOON), issuer.token()
    address = gateway.addresses[0]
    async with (
        StompClient.logged_in(address, login="app", passcode=first) as renewing,
        StompClient.logged_in(address, login="app", passcode=first) as late,
        StompClient.logged_in(address, login="app", passcode=first) as lazy,
        StompClient.logged_in(address, login="app", passcode=first, host="old") as old,
        within(3 * PATIENCE),
    ):
        # One link to publish, one to consume, and one of its own for the subscription without a bounded prefetch.
        await renewing.ask("SUBSCRIBE", id="shared", destination="/topic/a")
        await renewing.ask("SUBSCRIBE", id="own", destination="/topic/b", ack="client")
        await renewing.ask("SEND", destination="/topic/nobody")
        await lazy.ask("SUBSCRIBE", id="s", destination="/topic/a")
        await renewing.ask("TOKEN", token=second)
        await late.ask("TOKEN", token=second)
        # RabbitMQ itself would go on delivering.
        frame = await lazy.expect("ERROR", message="Token expired")
        assert frame.body.startswith(b"Your token has expired")
        await lazy.closed()
        # Now the first token is invalid on every link. This session had no link yet, and needs two.
        await late.ask("SUBSCRIBE", id="s", destination="/topic/a")
        await late.ask("SEND", destination="/topic/nobody")
        await late.disconnect()
        for number, ack in enumerate(("auto", "client")):
            await renewing.ask("SUBSCRIBE", id=f"new-{ack}", destination=f"/queue/token-{number}", ack=ack)
            renewing.write("SEND", b"x", destination=f"/queue/token-{number}")
            await renewing.expect("MESSAGE", b"x", subscription=f"new-{ack}")
        for topic, name in (("a", "shared"), ("b", "own")):
            renewing.write("SEND", b"y", destination=f"/topic/{topic}")
            await renewing.expect("MESSAGE", b"y", subscription=name)
        # Without token_renewal the session ends with the broker's own error.
        old.write("SEND", destination="/queue/token-2")
        frame = await old.expect("ERROR", message="access_refused")
        # RabbitMQ 4.3 has closed the connection, and does not take the login any more.
        assert re.search(rb"token has expired|Login was refused", frame.body)
        await renewing.disconnect()
    # No part of a token is in the journal or in the log.
    await gateway.stop()
    written = b"".join(path.read_bytes() for path in (tmp_path / "journal").rglob("*") if path.is_file())
    captured = capsys.readouterr()
    assert "session started" in captured.out + captured.err
    for passcode in (first, second):
        for part in passcode.split(".")[1:]:
            assert part.encode() not in written
            assert part not in captured.out + captured.err
    assert b"token-expired" in written


async def test_a_token_that_the_broker_does_not_take(gateway: Gateway, issuer: TokenIssuer) -> None:
    """The broker would close the link, or accept the token and refuse everything later."""
    async with (
        StompClient.logged_in(gateway.addresses[0], login="app", passcode=issuer.token()) as client,
        within(),
    ):
        await client.ask("SUBSCRIBE", id="s", destination="/topic/a")
        for bad in (issuer.token(-60), "no token", issuer.token(scopes=()), issuer.token()[:-8] + "AAAAAAAA"):
            client.write("TOKEN", token=bad, receipt="t")
            frame = await client.expect("ERROR", message="Token refused", receipt_id="t")
            assert frame.body.startswith(b"The token was not accepted: ")
            assert bad.encode() not in frame.body
            # Nothing has changed.
            await client.ask("SUBSCRIBE", id=bad[-4:], destination="/queue/token-3")
            await client.ask("UNSUBSCRIBE", id=bad[-4:])
            client.write("SEND", b"x", destination="/topic/a")
            await client.expect("MESSAGE", b"x", subscription="s")
        await client.disconnect()


async def test_tokens_that_are_refused_count_as_failed_logins(broker: Broker, issuer: TokenIssuer) -> None:
    """Otherwise a session could try any number of them."""
    config = parsed(
        broker.amqp_url,
        {"journal": {"level": "off"}, "token_renewal": True, "links": "dedicated"},
        failed_logins={"per_login": 3, "delay": 0},
    )
    good, wrong = issuer.token(), issuer.token(-60)
    async with (
        gateway_here(config) as gateway,
        StompClient.logged_in(gateway.addresses[0], login="app", passcode=good) as client,
        within(),
    ):
        answers = []
        for number in range(5):
            client.write("TOKEN", token=f"{wrong}{number}", receipt="t")
            answers.append((await client.expect("ERROR", message="Token refused", receipt_id="t")).body.decode())
        limit = (
            r"The token was not accepted: too many logins from this address have failed; try again in \d+ seconds\.\n"
        )
        assert [bool(re.fullmatch(limit, answer)) for answer in answers] == [False] * 3 + [True] * 2
        assert gateway.limits.failed_logins.total == 3
        async with StompClient.dialled(gateway.addresses[0]) as other:
            other.write("CONNECT", accept_version="1.2", login="app", passcode=wrong)
            await other.expect("ERROR", message="Too many failed logins")
        # One that the broker has accepted lately from this address is no attempt.
        await client.ask("TOKEN", token=good)
        await client.disconnect()


async def test_a_session_that_logged_in_with_a_password_may_send_a_token(gateway: Gateway, issuer: TokenIssuer) -> None:
    async with StompClient.logged_in(gateway.addresses[0]) as client, within():
        client.write("TOKEN", receipt="t")
        await client.expect("ERROR", message="Missing header", receipt_id="t")
        await client.ask("TOKEN", token=issuer.token(SOON))
        await client.expect("ERROR", message="Token expired")
        await client.closed()


async def test_a_login_with_an_expired_token_is_refused(gateway: Gateway, issuer: TokenIssuer) -> None:
    for host in ("/", "old"):
        async with StompClient.dialled(gateway.addresses[0]) as client, within():
            client.write("CONNECT", accept_version="1.2", host=host, login="app", passcode=issuer.token(-60))
            await client.expect("ERROR", message="Bad CONNECT")


async def test_where_tokens_are_not_renewed_there_is_no_such_command(gateway: Gateway, issuer: TokenIssuer) -> None:
    async with StompClient.logged_in(gateway.addresses[0], host="old") as client, within():
        client.write("TOKEN", token=issuer.token(), receipt="t")
        frame = await client.expect("ERROR", message="Bad command", receipt_id="t")
        assert frame.body == b'Could not interpret command "TOKEN"\n'
        await client.disconnect()


async def test_a_link_that_is_lost_while_it_learns_of_a_token(gateway: Gateway, issuer: TokenIssuer) -> None:
    """The AMQP library would wait for its answer for ever."""
    async with StompClient.logged_in(gateway.addresses[0], login="app", passcode=issuer.token()) as client, within():
        await client.ask("SEND", destination="/topic/nobody")
        (link,) = gateway.pool.links
        updating = asyncio.ensure_future(link.update_secret(issuer.token()))
        await asyncio.sleep(0)
        assert link._tap is not None
        link._tap.transport.abort()
        # Not by the end of this test's patience, which would come out as the same error.
        done, _ = await asyncio.wait([updating], timeout=PATIENCE / 2)
        assert done == {updating}
        with pytest.raises(LinkDownError, match="the connection to the broker was lost"):
            await updating
        with pytest.raises(LinkDownError, match="the connection to the broker was lost"):
            await link.update_secret(issuer.token())
        # The session rides through.
        await client.ask("SEND", destination="/topic/nobody")
        await client.disconnect()


async def test_a_token_for_a_link_that_is_paused(gateway: Gateway, issuer: TokenIssuer) -> None:
    """A client that does not read its messages pauses its own link, on which the broker's answer arrives."""
    size, count = 200_000, 60
    async with (
        StompClient.logged_in(gateway.addresses[0], receive_buffer=4096, login="app", passcode=issuer.token()) as slow,
        StompClient.logged_in(gateway.addresses[0], login="app", passcode=issuer.token()) as sender,
        within(),
    ):
        await slow.ask("SUBSCRIBE", id="s", destination="/topic/large", ack="client")
        for _ in range(count):
            await sender.ask("SEND", b"x" * size, destination="/topic/large")
        (client,) = [each for each in gateway.clients if each.session.subscriptions.all]
        while client.session.context.client_writable:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
        slow.write("TOKEN", token=issuer.token(), receipt="t")
        frames = [await slow.receive() for _ in range(count + 1)]
        assert [frame["receipt-id"] for frame in frames if frame.command == "RECEIPT"] == ["t"]
        assert sum(len(frame.body) for frame in frames) == size * count
        await slow.disconnect()
        await sender.disconnect()


# Sessions that share links.


@pytest_asyncio.fixture
async def sharing(broker: Broker) -> AsyncIterator[Gateway]:
    """A gateway whose sessions share links, and whose brokers are asked about each login."""
    defaults = {"journal": {"level": "off"}, "token_renewal": True, "login_cache": 0}
    async with gateway_here(parsed(broker.amqp_url, defaults)) as gateway:
        yield gateway


async def test_sessions_that_share_links_renew_their_tokens_and_end_with_their_own(
    sharing: Gateway, issuer: TokenIssuer
) -> None:
    first, second, third = issuer.token(SOON), issuer.token(), issuer.token(7200)
    address = sharing.addresses[0]
    async with (
        StompClient.logged_in(address, login="app", passcode=first) as renewing,
        StompClient.logged_in(address, login="app", passcode=first) as late,
        StompClient.logged_in(address, login="app", passcode=first) as lazy,
        within(3 * PATIENCE),
    ):
        for number, client in enumerate((renewing, lazy)):
            await client.ask("SUBSCRIBE", id="s", destination=f"/topic/shared-{number}")
            await client.ask("SUBSCRIBE", id="mine", destination=f"/queue/mine-{number}", exclusive="true")
            # Without a prefetch: a link of its own.
            await client.ask("SUBSCRIBE", id="own", destination="/topic/own", ack="client")
            await client.ask("SEND", destination="/topic/nobody")
        shared = {link for link in sharing.pool.links if not link.client_properties.session}
        assert len(shared) == 2
        await renewing.ask("TOKEN", token=second)
        # Later logins with the first token are asked about, and do not get links with the second.
        async with StompClient.logged_in(address, login="app", passcode=first) as other:
            await other.ask("SEND", destination="/topic/nobody")
            others = {link for link in sharing.pool.links if not link.client_properties.session} - shared
            assert len(others) == 1
            frame = await lazy.expect("ERROR", message="Token expired")
            assert frame.body.startswith(b"Your token has expired")
            await other.expect("ERROR", message="Token expired")
        # It ended with the first one, too, though its links had the second.
        await late.expect("ERROR", message="Token expired")
        # Nobody else can come in with the first one.
        async with StompClient.dialled(address) as gone:
            gone.write("CONNECT", accept_version="1.2", login="app", passcode=first)
            await gone.expect("ERROR", message="Bad CONNECT")
        for name, destination in (("s", "/topic/shared-0"), ("mine", "/queue/mine-0"), ("own", "/topic/own")):
            renewing.write("SEND", b"x", destination=destination)
            await renewing.expect("MESSAGE", b"x", subscription=name)
        assert shared <= sharing.pool.links
        async with StompClient.logged_in(address, login="app", passcode=third) as newer:
            await newer.ask("TOKEN", token=issuer.token(7200))
            await newer.disconnect()
        await renewing.disconnect()


async def test_a_token_that_expires_earlier_does_not_shorten_the_sessions_of_others(
    sharing: Gateway, issuer: TokenIssuer
) -> None:
    long, short = issuer.token(), issuer.token(SOON)
    address = sharing.addresses[0]
    async with (
        StompClient.logged_in(address, login="app", passcode=long) as one,
        StompClient.logged_in(address, login="app", passcode=long) as two,
        within(3 * PATIENCE),
    ):
        await two.ask("SUBSCRIBE", id="s", destination="/topic/a")
        await two.ask("SEND", destination="/topic/nobody")
        await one.ask("TOKEN", token=short)
        await one.expect("ERROR", message="Token expired")
        two.write("SEND", b"x", destination="/topic/a")
        await two.expect("MESSAGE", b"x")
        await two.disconnect()


async def test_a_token_with_other_rights_is_only_for_a_session_that_shares_with_nobody(
    sharing: Gateway, issuer: TokenIssuer
) -> None:
    """Otherwise it would decide what others may do."""
    first, narrow = issuer.token(), issuer.token(scopes=("configure:*/*", "read:*/*/*"))
    address = sharing.addresses[0]
    async with StompClient.logged_in(address, login="app", passcode=first) as one, within():
        async with StompClient.logged_in(address, login="app", passcode=first) as two:
            one.write("TOKEN", token=narrow, receipt="t")
            frame = await one.expect("ERROR", message="Token refused", receipt_id="t")
            assert b"other sessions share its connections" in frame.body
            for client in (one, two):
                await client.ask("SEND", destination="/queue/token-4")
            await two.disconnect()
        while sharing.limits.sessions("/") > 1:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
        await one.ask("TOKEN", token=narrow)
        # An exchange that RabbitMQ has not checked for this channel yet.
        one.write("SEND", destination="/topic/a", receipt="r")
        await one.expect("ERROR", message="access_refused")


# As the plugin does, which the same broker has.


def plugin_of(broker: Broker) -> Address:
    assert broker.stomp_port is not None
    return broker.host, broker.stomp_port


@pytest_asyncio.fixture
async def unconfigured(broker: Broker) -> AsyncIterator[Gateway]:
    """A gateway with the default of `token_renewal`; its virtual host `nobody` has no default user."""
    hosts = {"/": {}, "nobody": {"amqp_vhost": "/", "default_user": None}}
    async with gateway_here(parsed(broker.amqp_url, {"journal": {"level": "off"}}, virtual_hosts=hosts)) as gateway:
        yield gateway


@pytest.mark.parametrize("login", [None, "", "other", "guest"])
@pytest.mark.parametrize("seconds", [3600, -60])
async def test_a_token_needs_no_login(
    broker: Broker, unconfigured: Gateway, issuer: TokenIssuer, login: str | None, seconds: float
) -> None:
    """RabbitMQ takes the user from the token. Plugin and gateway name the default user if nobody is named."""
    headers = {"passcode": issuer.token(seconds), **({} if login is None else {"login": login})}
    for address in (plugin_of(broker), unconfigured.addresses[0]):
        async with StompClient.dialled(address) as client, within():
            client.write("CONNECT", accept_version="1.2", **headers)
            if seconds < 0:
                frame = await client.expect("ERROR", message="Bad CONNECT")
                named = "guest" if login is None else login
                assert frame.body.decode().rstrip("\n") == f"Access refused for user '{named}'"
                continue
            await client.expect("CONNECTED")
            await client.ask("SEND", destination="/topic/nobody", user_id="app")
            await client.disconnect()


async def test_a_token_without_a_login_needs_a_default_user(unconfigured: Gateway, issuer: TokenIssuer) -> None:
    """So say the plugins of 3.10.8, 4.0.5 and 4.3.6, too; that of this broker has a default user."""
    async with StompClient.dialled(unconfigured.addresses[0]) as client, within():
        client.write("CONNECT", accept_version="1.2", host="nobody", passcode=issuer.token())
        await client.expect("ERROR", b"Missing login or passcode header(s)", message="Bad CONNECT")


async def test_what_happens_when_a_token_expires_is_what_the_broker_does(
    broker: Broker, unconfigured: Gateway, issuer: TokenIssuer
) -> None:
    ends, here = release_of(broker) >= Release(4, 3), unconfigured.addresses[0]
    for address, text in {plugin_of(broker): "Credential expired", here: "Token expired"}.items():
        token = issuer.token(SOON)
        async with StompClient.logged_in(address, login="app", passcode=token) as client, within(3 * PATIENCE):
            await client.ask("SUBSCRIBE", id="s", destination="/topic/expiring")
            if ends:
                await client.expect("ERROR", message=text)
                await client.closed()
                continue
            async with StompClient.logged_in(address) as sender:
                await until(partial(_is_refused, plugin_of(broker), token), bool)
                sender.write("SEND", b"x", destination="/topic/expiring")
                await client.expect("MESSAGE", b"x")
                client.write("SEND", destination="/queue/token-5")
                await client.expect("ERROR", message="access_refused")
                await sender.disconnect()
    async with StompClient.logged_in(here, login="app", passcode=issuer.token()) as client, within():
        client.write("TOKEN", token=issuer.token(), receipt="t")
        await client.expect("RECEIPT" if ends else "ERROR", receipt_id="t")


async def _is_refused(address: Address, token: str) -> bool:
    async with StompClient.dialled(address) as client:
        client.write("CONNECT", accept_version="1.2", login="app", passcode=token)
        return (await client.receive()).command == "ERROR"


# Tokens in the handshake of a WebSocket.


@pytest.mark.parametrize(
    "header",
    [("Authorization", "Bearer {}"), ("Authorization", "bearer {}"), ("Cookie", "theme=dark; stomp={}; x=y")],
    ids=["bearer", "small", "cookie"],
)
async def test_a_token_of_the_handshake_is_the_login(
    broker: Broker, issuer: TokenIssuer, header: tuple[str, str]
) -> None:
    name, form = header
    page = "https://shop.example.org"
    handshake = {"bearer_tokens": True, "token_cookie": "stomp", "allowed_origins": [page]}
    config = parsed(broker.amqp_url, listeners=[{"websocket": "127.0.0.1:0", **handshake}])
    async with gateway_here(config) as gateway, within():
        dialled = partial(WebSocketClient.dialled, gateway.addresses[0])
        async with dialled(headers={name: form.format(issuer.token()), "Origin": page}) as client:
            # What CONNECT says does not count.
            await client.connect(login="app", passcode="wrong")
            await client.ask("SEND", b"x", destination="/topic/nobody")
        async with dialled(headers={name: form.format(issuer.token(-SOON)), "Origin": page}) as client:
            client.write("CONNECT", accept_version="1.2", login="guest", passcode="guest")
            await client.expect("ERROR", message="Bad CONNECT")
        with pytest.raises(RefusedError):
            async with dialled(headers={name: form.format(issuer.token()), "Origin": "https://evil.test"}):
                pass
        with pytest.raises(RefusedError):
            async with dialled(headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}):
                pass
        async with dialled() as client:
            await client.connect(login="guest", passcode="guest")

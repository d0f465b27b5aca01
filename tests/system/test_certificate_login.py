"""Login by a client certificate: the gateway takes the same name from it as RabbitMQ's own plugin."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from gateway.parity.steps import Release
from tests.support.brokers import private_broker, release_of
from tests.support.certificates import SUBJECTS, Authority, Identity, Rdn, distinguished_name
from tests.support.deadline import within
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process, listening
from tests.support.stomp_client import Frame, StompClient

pytestmark = pytest.mark.system

CN, O = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME  # noqa: E741
OTHER = x509.ObjectIdentifier("1.3.6.1.4.1.311.20.2.3")

COMMON_NAMES: dict[str, list[Rdn]] = {
    "plain": [[(CN, "plain")]],
    "a,b + c~é": SUBJECTS[r"CN=a\,b \+ c\7E\C3\A9"],
    "first,second": [[(CN, "first")], [(O, "o")], [(CN, "second")]],
}
ALTERNATIVE_NAMES: list[x509.GeneralName] = [
    x509.DNSName("one.example"),
    x509.RFC822Name("a@b.example"),
    x509.DNSName("two.example"),
    x509.UniformResourceIdentifier("spiffe://domain/app"),
    x509.OtherName(OTHER, b"\x0c\x0bu\xc3\xa9@ex.test"),
]
BY_KIND = {
    ("dns", 0): "one.example",
    ("dns", 1): "two.example",
    ("email", 0): "a@b.example",
    ("uri", 0): "spiffe://domain/app",
    ("other_name", 0): "ué@ex.test",
}
MISSING = [("dns", 2), ("email", 1), ("ip", 0)]
DEFAULT = "guest"


# With a newer Erlang the plugin makes `{asn1_OPENTYPE,...}` of a value whose attribute Erlang does not know, and closes
# the connection for an `other_name`. The gateway goes on reading them.
MISREAD = frozenset(("CN=m+UID=u1,C=DE", r"1.2.3.4.5=own \C3\A9,2.5.4.46=q,2.5.4.9=road", BY_KIND["other_name", 0]))

NAMES = [*SUBJECTS, *COMMON_NAMES, *BY_KIND.values()]

BY_DISTINGUISHED_NAME: dict[str, Any] = {"name": "distinguished_name"}
BY_COMMON_NAME: dict[str, Any] = {"name": "common_name"}
BY_DEFAULT: dict[str, Any] = {}


def by_alternative_name(kind: str, index: int) -> dict[str, Any]:
    return {"name": "subject_alternative_name", "san_type": kind, "san_index": index}


# The gateway has a listener for each of them.
LOGINS = [
    BY_DISTINGUISHED_NAME,
    BY_COMMON_NAME,
    BY_DEFAULT,
    None,
    *(by_alternative_name(*which) for which in (*BY_KIND, *MISSING)),
]


@dataclass
class Files:
    """The certificates of the servers, and those that are made for clients."""

    directory: Path
    authority: Authority
    server: Identity

    def client(self, parts: list[Rdn], names: list[x509.GeneralName] | bytes = b"") -> ssl.SSLContext:
        """A client with a certificate."""
        made = self.authority.identify(self.directory, "client", distinguished_name(*parts), names or ())
        context = self.client_without_certificate()
        context.load_cert_chain(made.certificate, made.key)
        return context

    def client_without_certificate(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.certificate))

    def document(self, broker: Broker, logins: list[dict[str, Any] | None], **users: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML has every type
        """A gateway with a listener for each way to log in by a certificate, and users for all names."""
        tls = {
            "cert_file": str(self.server.certificate),
            "key_file": str(self.server.key),
            "ca_file": str(self.authority.certificate),
            "verify": "optional",
        }
        listeners = [{"tcp": "127.0.0.1:0", "tls": tls | {"certificate_login": login}} for login in logins]
        known = {name: {"login": name, "passcode": "secret"} for name in NAMES}
        return configuration(broker.amqp_url, {"certificate_users": {"users": known} | users}, listeners=listeners)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = tmp_path_factory.mktemp("certificates")
    authority = Authority.make(directory, "authority")
    return Files(directory, authority, Identity(*authority.sign(directory, "server")))


@dataclass
class Plugin:
    """RabbitMQ's plugin with a TLS listener."""

    broker: Broker
    address: Address
    misreads: frozenset[str]
    """Logins that this release makes of certificates in a way that nobody wants."""
    _settings: dict[str, object] = field(default_factory=dict)

    def use(self, name: str, kind: str = "dns", index: int = 0) -> None:
        """Configure which name of a certificate is the login."""
        settings = {"ssl_cert_login_from": name, "ssl_cert_login_san_type": kind, "ssl_cert_login_san_index": index}
        if settings != self._settings:
            calls = [f"application:set_env(rabbit, {key}, {value})" for key, value in settings.items()]
            self.broker.ctl("eval", ", ".join(calls) + ".")
            self._settings = dict(settings)


@pytest.fixture(scope="module")
def plugin(files: Files) -> Iterator[Plugin]:
    """The plugin of a private broker, which has users for all names."""
    [port] = free_ports(1)
    config = [
        f"stomp.listeners.ssl.1 = 127.0.0.1:{port}",
        "stomp.ssl_cert_login = true",
        f"ssl_options.cacertfile = {files.authority.certificate}",
        f"ssl_options.certfile = {files.server.certificate}",
        f"ssl_options.keyfile = {files.server.key}",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = false",
    ]
    definitions = files.directory / "users.json"
    users = [{"name": name, "password": "secret", "tags": ""} for name in NAMES]
    permissions = [{"user": name, "vhost": "/", "configure": "", "write": "", "read": ""} for name in NAMES]
    definitions.write_text(json.dumps({"users": users, "permissions": permissions}))
    with private_broker(["rabbitmq_stomp"], config) as broker:
        broker.ctl("import_definitions", str(definitions))
        yield Plugin(broker, ("127.0.0.1", port), MISREAD if release_of(broker) >= Release(4, 3) else frozenset())


class Gateway:
    """A gateway with a listener for each of ``LOGINS``."""

    def __init__(self, process: GatewayProcess) -> None:
        self.process = process
        self._addresses = listening(process, len(LOGINS))
        self._before = len(process.logged("session started"))

    def listener(self, login: dict[str, Any] | None) -> Address:
        """Address of the listener for a way to log in."""
        return self._addresses[LOGINS.index(login)]

    async def sessions(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many sessions of this test have started, and return their log lines."""
        return (await self.process.until_logged("session started", self._before + count))[self._before :]

    async def logins(self, count: int) -> list[str]:
        """The logins of so many sessions, in order."""
        return [line["login"] for line in await self.sessions(count)]


@pytest.fixture(scope="module")
def process(plugin: Plugin, files: Files) -> Iterator[GatewayProcess]:
    with gateway_process(files.document(plugin.broker, LOGINS)) as process:
        yield process


@pytest.fixture
def gateway(process: GatewayProcess) -> Gateway:
    return Gateway(process)


async def answer(address: Address, context: ssl.SSLContext, **headers: str) -> Frame:
    async with StompClient.dialled(address, tls=context) as client, within():
        client.write("CONNECT", accept_version="1.2", host="/", **headers)
        return await client.receive()


async def test_distinguished_names_are_the_plugins(plugin: Plugin, gateway: Gateway, files: Files) -> None:
    await asyncio.to_thread(plugin.use, "distinguished_name")
    for name, parts in SUBJECTS.items():
        context = files.client(parts)
        for address in (plugin.address, gateway.listener(BY_DISTINGUISHED_NAME)):
            if address == plugin.address and name in plugin.misreads:
                continue
            assert (await answer(address, context)).command == "CONNECTED"
    sessions = await gateway.sessions(len(SUBJECTS))
    assert [line["login"] for line in sessions] == list(SUBJECTS)
    assert [line["certificate"] for line in sessions] == list(SUBJECTS)


async def test_an_unknown_name_is_refused_in_the_plugins_words(plugin: Plugin, gateway: Gateway, files: Files) -> None:
    await asyncio.to_thread(plugin.use, "distinguished_name")
    context = files.client([[(NameOID.COUNTRY_NAME, "DE")], [(CN, "nobody, really")]])
    plugins, ours = [await answer(address, context) for address in (plugin.address, gateway.listener(BY_DEFAULT))]
    assert plugins.command == ours.command == "ERROR"
    assert plugins["message"] == ours["message"] == "Bad CONNECT"
    assert plugins.body.strip() == ours.body.strip() == rb"Access refused for user 'CN=nobody\, really,C=DE'"


async def test_common_names_are_the_plugins(plugin: Plugin, gateway: Gateway, files: Files) -> None:
    await asyncio.to_thread(plugin.use, "common_name")
    for parts in COMMON_NAMES.values():
        context = files.client(parts)
        for address in (plugin.address, gateway.listener(BY_COMMON_NAME)):
            assert (await answer(address, context)).command == "CONNECTED"
    assert await gateway.logins(len(COMMON_NAMES)) == list(COMMON_NAMES)


async def test_a_login_header_takes_precedence_over_a_certificate(
    plugin: Plugin, gateway: Gateway, files: Files
) -> None:
    await asyncio.to_thread(plugin.use, "common_name")
    context = files.client([[(CN, "plain")]])
    for address in (plugin.address, gateway.listener(BY_COMMON_NAME)):
        assert (await answer(address, context, login="first,second", passcode="secret")).command == "CONNECTED"
        assert (await answer(address, context, login="first,second", passcode="wrong")).command == "ERROR"
        # Without a login, the passcode is ignored.
        assert (await answer(address, context, passcode="wrong")).command == "CONNECTED"
    assert await gateway.logins(2) == ["first,second", "plain"]


async def test_a_client_without_a_certificate_is_the_default_user(
    plugin: Plugin, gateway: Gateway, files: Files
) -> None:
    await asyncio.to_thread(plugin.use, "common_name")
    for address in (plugin.address, gateway.listener(BY_COMMON_NAME)):
        assert (await answer(address, files.client_without_certificate())).command == "CONNECTED"
    assert await gateway.logins(1) == [DEFAULT]


@pytest.mark.parametrize(("kind", "index"), [*BY_KIND, *MISSING])
async def test_alternative_names_are_the_plugins(
    plugin: Plugin, gateway: Gateway, files: Files, kind: str, index: int
) -> None:
    """A client whose certificate lacks the name becomes the default user."""
    await asyncio.to_thread(plugin.use, "subject_alternative_name", kind, index)
    context = files.client([[(CN, "somebody")]], ALTERNATIVE_NAMES)
    for address in (plugin.address, gateway.listener(by_alternative_name(kind, index))):
        if address == plugin.address and BY_KIND.get((kind, index)) in plugin.misreads:
            continue
        assert (await answer(address, context)).command == "CONNECTED"
    assert await gateway.logins(1) == [BY_KIND.get((kind, index), DEFAULT)]


async def test_a_certificate_that_cannot_be_read_is_nobody(gateway: Gateway, files: Files) -> None:
    """Not the default user, and not whom CONNECT names."""
    context = files.client([[(CN, "plain")]], bytes.fromhex("3007 8705 0102030405"))  # an IP address of five bytes
    for headers in ({}, {"login": "plain", "passcode": "secret"}):
        error = await answer(gateway.listener(by_alternative_name("ip", 0)), context, **headers)
        assert (error.command, error["message"]) == ("ERROR", "Bad CONNECT")
        assert error.body == b"The name in the client's certificate cannot be read.\n"
    assert await gateway.logins(0) == []


async def test_without_certificate_login_a_certificate_is_ignored(gateway: Gateway, files: Files) -> None:
    context = files.client(SUBJECTS["O=client,CN=localhost,ST=England,C=UK"])
    assert (await answer(gateway.listener(None), context)).command == "CONNECTED"
    assert await gateway.logins(1) == [DEFAULT]


async def test_every_other_name_may_map_to_one_user(plugin: Plugin, files: Files) -> None:
    everyone = {"login": "first,second", "passcode": "secret"}
    with gateway_process(files.document(plugin.broker, [BY_COMMON_NAME], everyone=everyone)) as process:
        for name in ("plain", "somebody else"):
            assert (await answer(process.address, files.client([[(CN, name)]]))).command == "CONNECTED"
        lines = await process.until_logged("session started", 2)
        assert [line["login"] for line in lines] == ["plain", "first,second"]

"""Logging in by a client certificate: the gateway finds the name that RabbitMQ's own plugin finds."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from tests.support.brokers import private_broker
from tests.support.certificates import SUBJECTS, Authority, Identity, Rdn, distinguished_name
from tests.support.deadline import until, within
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process
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


@dataclass(frozen=True)
class Stage:
    """A broker whose plugin takes clients' certificates, and users for all of the names."""

    broker: Broker
    plugin: Address
    authority: Authority
    server: Identity
    directory: Path

    def identity(self, parts: list[Rdn], names: list[x509.GeneralName] | None = None) -> ssl.SSLContext:
        """A client with a certificate."""
        made = self.authority.identify(self.directory, "client", distinguished_name(*parts), names or ())
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(made.certificate, made.key)
        return context

    def nobody(self) -> ssl.SSLContext:
        """A client without one."""
        return ssl.create_default_context(cafile=str(self.authority.certificate))

    def takes(self, name: str, kind: str = "dns", index: int = 0) -> None:
        """Tell the plugin which name of a certificate it is."""
        settings = {"ssl_cert_login_from": name, "ssl_cert_login_san_type": kind, "ssl_cert_login_san_index": index}
        calls = [f"application:set_env(rabbit, {key}, {value})" for key, value in settings.items()]
        self.broker.ctl("eval", ", ".join(calls) + ".")

    def document(self, login: dict[str, Any], **users: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML has every type
        """A gateway that takes the same name."""
        tls = {
            "cert_file": str(self.server.certificate),
            "key_file": str(self.server.key),
            "ca_file": str(self.authority.certificate),
            "verify": "optional",
            "certificate_login": login,
        }
        known = {name: {"login": name, "passcode": "secret"} for name in NAMES}
        defaults = {"certificate_users": {"users": known} | users}
        return configuration(self.broker.amqp_url, defaults, listeners=[{"tcp": "127.0.0.1:0", "tls": tls}])


NAMES = [*SUBJECTS, *COMMON_NAMES, *BY_KIND.values()]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("certificates")
    authority = Authority.make(directory, "authority")
    server = Identity(*authority.sign(directory, "server"))
    [port] = free_ports(1)
    config = [
        f"stomp.listeners.ssl.1 = 127.0.0.1:{port}",
        "stomp.ssl_cert_login = true",
        f"ssl_options.cacertfile = {authority.certificate}",
        f"ssl_options.certfile = {server.certificate}",
        f"ssl_options.keyfile = {server.key}",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = false",
    ]
    definitions = directory / "users.json"
    users = [{"name": name, "password": "secret", "tags": ""} for name in NAMES]
    rights = [{"user": name, "vhost": "/", "configure": "", "write": "", "read": ""} for name in NAMES]
    definitions.write_text(json.dumps({"users": users, "permissions": rights}))
    with private_broker(["rabbitmq_stomp"], config) as broker:
        broker.ctl("import_definitions", str(definitions))
        yield Stage(broker, ("127.0.0.1", port), authority, server, directory)


async def answer(address: Address, context: ssl.SSLContext, **headers: str) -> Frame:
    async with StompClient.dialled(address, tls=context) as client, within():
        client.write("CONNECT", accept_version="1.2", host="/", **headers)
        return await client.receive()


async def logins(process: GatewayProcess, count: int) -> list[str]:
    """Who has logged in to a gateway, in order."""

    async def look() -> list[str]:
        return [line["login"] for line in process.logged("session started")]

    return await until(look, lambda lines: len(lines) >= count)


async def test_distinguished_names_are_the_plugins(stage: Stage) -> None:
    await asyncio.to_thread(stage.takes, "distinguished_name")
    with gateway_process(stage.document({"name": "distinguished_name"})) as process:
        for parts in SUBJECTS.values():
            context = stage.identity(parts)
            for address in (stage.plugin, process.address):
                assert (await answer(address, context)).command == "CONNECTED"
        assert await logins(process, len(SUBJECTS)) == list(SUBJECTS)
        assert [line["certificate"] for line in process.logged("session started")] == list(SUBJECTS)


async def test_common_names_are_the_plugins(stage: Stage) -> None:
    await asyncio.to_thread(stage.takes, "common_name")
    with gateway_process(stage.document({"name": "common_name"})) as process:
        for parts in COMMON_NAMES.values():
            context = stage.identity(parts)
            for address in (stage.plugin, process.address):
                assert (await answer(address, context)).command == "CONNECTED"
        assert await logins(process, len(COMMON_NAMES)) == list(COMMON_NAMES)


@pytest.mark.parametrize(("kind", "index"), [*BY_KIND, *MISSING])
async def test_alternative_names_are_the_plugins(stage: Stage, kind: str, index: int) -> None:
    """A certificate without the name is as good as none: its owner becomes the default user."""
    await asyncio.to_thread(stage.takes, "subject_alternative_name", kind, index)
    login = {"name": "subject_alternative_name", "san_type": kind, "san_index": index}
    with gateway_process(stage.document(login)) as process:
        context = stage.identity([[(CN, "somebody")]], ALTERNATIVE_NAMES)
        for address in (stage.plugin, process.address):
            assert (await answer(address, context)).command == "CONNECTED"
        assert await logins(process, 1) == [BY_KIND.get((kind, index), DEFAULT)]


async def test_an_unknown_name_is_refused_in_the_plugins_words(stage: Stage) -> None:
    await asyncio.to_thread(stage.takes, "distinguished_name")
    with gateway_process(stage.document({})) as process:
        context = stage.identity([[(NameOID.COUNTRY_NAME, "DE")], [(CN, "nobody, really")]])
        plugins, ours = [await answer(address, context) for address in (stage.plugin, process.address)]
        assert plugins.command == ours.command == "ERROR"
        assert plugins["message"] == ours["message"] == "Bad CONNECT"
        assert plugins.body.strip() == ours.body.strip() == rb"Access refused for user 'CN=nobody\, really,C=DE'"


async def test_a_login_header_takes_precedence_over_a_certificate(stage: Stage) -> None:
    await asyncio.to_thread(stage.takes, "common_name")
    with gateway_process(stage.document({"name": "common_name"})) as process:
        context = stage.identity([[(CN, "plain")]])
        for address in (stage.plugin, process.address):
            assert (await answer(address, context, login="first,second", passcode="secret")).command == "CONNECTED"
            assert (await answer(address, context, login="first,second", passcode="wrong")).command == "ERROR"
            # And without a login, a passcode counts for nothing.
            assert (await answer(address, context, passcode="wrong")).command == "CONNECTED"
        assert await logins(process, 2) == ["first,second", "plain"]


async def test_a_client_without_a_certificate_is_the_default_user(stage: Stage) -> None:
    await asyncio.to_thread(stage.takes, "common_name")
    with gateway_process(stage.document({"name": "common_name"})) as process:
        for address in (stage.plugin, process.address):
            assert (await answer(address, stage.nobody())).command == "CONNECTED"
        assert await logins(process, 1) == [DEFAULT]


async def test_every_other_name_may_map_to_one_user(stage: Stage) -> None:
    document = stage.document({"name": "common_name"}, everyone={"login": "first,second", "passcode": "secret"})
    with gateway_process(document) as process:
        for name in ("plain", "somebody else"):
            assert (await answer(process.address, stage.identity([[(CN, name)]]))).command == "CONNECTED"
        assert await logins(process, 2) == ["plain", "first,second"]


async def test_without_certificate_login_a_certificate_is_ignored(stage: Stage) -> None:
    document = stage.document({})
    document["listeners"][0]["tls"]["certificate_login"] = None
    with gateway_process(document) as process:
        context = stage.identity(SUBJECTS["O=client,CN=localhost,ST=England,C=UK"])
        assert (await answer(process.address, context)).command == "CONNECTED"
        assert await logins(process, 1) == [DEFAULT]

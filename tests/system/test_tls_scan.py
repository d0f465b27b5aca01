"""TLS as a scanner sees it: a listener is asked with every version and every cipher that the client's OpenSSL has."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority, Identity
from tests.support.deadline import PATIENCE
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process, listening
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system
OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

VERSIONS = (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
# Everything that OpenSSL has, also what it would not use by itself.
ALL = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"
OF_TLS_1_3 = {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
OF_TLS_1_2 = {
    "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305",
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scan")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority.make(directory, "authority")


@pytest.fixture(scope="module")
def gateway(directory: Path, authority: Authority, broker_url: str) -> Iterator[GatewayProcess]:
    """A listener with every default, and one with other ciphers and no TLS 1.3."""
    certificate, key = authority.sign(directory, "server")
    own = {"cert_file": str(certificate), "key_file": str(key)}
    old = own | {"max_version": "1.2", "ciphers": "ECDHE+AESGCM:ECDHE+AES256"}
    listeners = [{"tcp": "127.0.0.1:0", "tls": tls} for tls in (own, old)]
    with gateway_process(configuration(broker_url, listeners=listeners)) as process:
        yield process


def client(version: ssl.TLSVersion, ciphers: str = ALL) -> ssl.SSLContext:
    """A client that takes anything, of one version."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers(ciphers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # which the old versions are
        context.minimum_version = context.maximum_version = version
    return context


def agreed(address: Address, context: ssl.SSLContext) -> str | None:
    """The cipher that both sides agree on; None if the gateway refuses the client."""
    try:
        with (
            socket.create_connection(address, PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            assert connection.compression() is None
            cipher = connection.cipher()
            return None if cipher is None else cipher[0]
    except OSError:
        return None


def accepted(address: Address, version: ssl.TLSVersion) -> set[str]:
    """Every cipher of a version that the gateway takes; of TLS 1.3 the one that it takes first."""
    if version is ssl.TLSVersion.TLSv1_3:
        return {name for name in [agreed(address, client(version))] if name is not None}
    names = [cipher["name"] for cipher in client(version).get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    found = {agreed(address, client(version, f"{name}:@SECLEVEL=0")) for name in names}
    return {name for name in found if name is not None}


async def test_by_default_only_good_ciphers_of_two_versions_are_taken(gateway: GatewayProcess) -> None:
    address, _ = listening(gateway, 2)
    found = {version: await asyncio.to_thread(accepted, address, version) for version in VERSIONS}
    assert found[ssl.TLSVersion.TLSv1] == found[ssl.TLSVersion.TLSv1_1] == set()
    assert found[ssl.TLSVersion.TLSv1_2] == OF_TLS_1_2
    assert found[ssl.TLSVersion.TLSv1_3] < OF_TLS_1_3
    assert found[ssl.TLSVersion.TLSv1_3]


async def test_versions_and_ciphers_are_those_of_the_configuration(gateway: GatewayProcess) -> None:
    _, address = listening(gateway, 2)
    found = {version: await asyncio.to_thread(accepted, address, version) for version in VERSIONS}
    assert not found[ssl.TLSVersion.TLSv1_3]
    assert not found[ssl.TLSVersion.TLSv1_1]
    assert {"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES256-SHA384"} <= found[ssl.TLSVersion.TLSv1_2]
    assert "ECDHE-ECDSA-CHACHA20-POLY1305" not in found[ssl.TLSVersion.TLSv1_2]


# Revoked certificates.


def trusting(authority: Authority, identity: Identity) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.load_cert_chain(identity.certificate, identity.key)
    return context


@pytest.mark.parametrize(("valid", "reason"), [(True, "certificate revoked"), (False, "CRL has expired")])
async def test_a_revoked_certificate_is_refused(
    authority: Authority, directory: Path, broker_url: str, valid: bool, reason: str
) -> None:
    certificate, key = authority.sign(directory, "server")
    good, bad = (authority.identify(directory, name) for name in ("good", "bad"))
    tls = {
        "cert_file": str(certificate),
        "key_file": str(key),
        "ca_file": str(authority.certificate),
        "verify": "required",
        "crl_file": str(authority.revoke(directory, "list", bad, valid=valid)),
    }
    listeners = [{"tcp": "127.0.0.1:0", "tls": tls}]
    with gateway_process(configuration(broker_url, listeners=listeners)) as process:
        if valid:
            async with StompClient.logged_in(process.address, tls=trusting(authority, good)) as welcome:
                await welcome.disconnect()
        await asyncio.to_thread(agreed, process.address, trusting(authority, bad))
        (line,) = await process.until_logged("tls handshake failed")
    assert line["reason"] == f"the client's certificate is not accepted: {reason}"


# A client that is not Python's: the one that operators have at hand.

HELLO = b"CONNECT\naccept-version:1.2\nhost:/\n\n\0DISCONNECT\nreceipt:r\n\n\0"


def s_client(address: Address, *options: str) -> str:
    """Log in and out with `openssl s_client`; all that it prints."""
    host, port = address
    program = ["openssl", "s_client", "-connect", f"{host}:{port}", "-brief", "-ign_eof", *options]
    done = subprocess.run(program, input=HELLO, capture_output=True, check=False, timeout=PATIENCE)
    return (done.stdout + done.stderr).decode(errors="replace")


def versions(address: Address, *ciphers: str) -> list[bool]:
    """Whether TLS 1.2 and TLS 1.3 get an answer of STOMP."""
    options = (("-tls1_2", *ciphers), ("-tls1_3",))
    return ["RECEIPT\nreceipt-id:r" in s_client(address, *option) for option in options]


@OPENSSL
async def test_s_client_has_the_versions_and_ciphers_of_the_configuration(gateway: GatewayProcess) -> None:
    usual, old = listening(gateway, 2)
    assert await asyncio.to_thread(versions, usual) == [True, True]
    assert await asyncio.to_thread(versions, usual, "-cipher", "ECDHE+AES256:!AESGCM") == [False, True]
    assert await asyncio.to_thread(versions, old) == [True, False]
    assert await asyncio.to_thread(versions, old, "-cipher", "ECDHE+AES256:!AESGCM") == [True, False]
    printed = await asyncio.to_thread(s_client, usual, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
    assert "error" in printed
    assert "CONNECTED" not in printed


@OPENSSL
async def test_a_certificate_is_refused_as_soon_as_it_is_in_the_list_of_revoked_ones(
    authority: Authority, directory: Path, broker_url: str
) -> None:
    """The list is a file like the others: it is followed when it changes, and nobody reloads anything."""
    certificate, key = authority.sign(directory, "server")
    good, bad = (authority.identify(directory, name) for name in ("stays", "goes"))
    revoked = authority.revoke(directory, "followed")
    tls = {
        "cert_file": str(certificate), "key_file": str(key), "ca_file": str(authority.certificate),
        "verify": "required", "crl_file": str(revoked), "max_version": "1.2",
    }  # fmt: skip

    def welcome(process: GatewayProcess, identity: Identity) -> str:
        return s_client(process.address, "-cert", str(identity.certificate), "-key", str(identity.key))

    with gateway_process(configuration(broker_url, listeners=[{"tcp": "127.0.0.1:0", "tls": tls}])) as process:
        for identity in (good, bad):
            assert "RECEIPT\nreceipt-id:r" in await asyncio.to_thread(welcome, process, identity)
        authority.revoke(directory, "followed", bad)
        await process.until_logged("certificate changed")
        assert "RECEIPT\nreceipt-id:r" in await asyncio.to_thread(welcome, process, good)
        assert "RECEIPT" not in await asyncio.to_thread(welcome, process, bad)
        (line,) = await process.until_logged("tls handshake failed")
    assert line["reason"] == "the client's certificate is not accepted: certificate revoked"

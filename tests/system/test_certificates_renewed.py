"""Certificates that are renewed while the gateway runs, as Kubernetes and other tools replace them."""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509

from tests.support.admin import AdminClient
from tests.support.certificates import Authority
from tests.support.deadline import until, within
from tests.support.gateway import GatewayProcess, configuration, gateway_process, listening
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system


@dataclass(frozen=True)
class MountedSecret:
    """A directory like a mounted secret: the files are links into ``..data``, which is a link to one version."""

    directory: Path
    authority: Authority

    def write(self, version: str) -> int:
        """Make another certificate with its key, and let everything show it at once; its serial number."""
        folder = self.directory / version
        folder.mkdir()
        certificate, key = self.authority.sign(self.directory, version)
        shutil.copy(certificate, folder / "tls.crt")
        shutil.copy(key, folder / "tls.key")
        self.swap(folder)
        return x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number

    def swap(self, folder: Path) -> None:
        """Replace the link in one step."""
        link = self.directory / "..data.new"
        link.symlink_to(folder.name)
        os.replace(link, self.directory / "..data")

    @property
    def tls(self) -> dict[str, str]:
        """The settings of a listener."""
        for name in ("tls.crt", "tls.key"):
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")
        return {"cert_file": str(self.directory / "tls.crt"), "key_file": str(self.directory / "tls.key")}


@pytest.fixture
def secret(tmp_path: Path) -> MountedSecret:
    return MountedSecret(tmp_path, Authority.make(tmp_path, "authority"))


@pytest.fixture
def process(secret: MountedSecret, broker_url: str) -> Iterator[GatewayProcess]:
    secret.write("first")
    listeners = [{"tcp": "127.0.0.1:0", "tls": secret.tls}, {"websocket": "127.0.0.1:0", "tls": secret.tls}]
    with gateway_process(configuration(broker_url, listeners=listeners, admin="127.0.0.1:0")) as process:
        yield process


def serial_number(client: StompClient) -> int:
    """Of the certificate that the gateway showed to this client."""
    connection: ssl.SSLObject = client.writer.get_extra_info("ssl_object")
    certificate = connection.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate).serial_number


async def test_a_swapped_link_shows_new_clients_the_new_certificate_and_disturbs_no_other(
    process: GatewayProcess, secret: MountedSecret
) -> None:
    async with StompClient.logged_in(process.address, tls=secret.authority.client()) as early, within():
        serial = secret.write("second")
        assert serial != serial_number(early)
        await process.until_logged("certificate changed")
        for address in listening(process, 2):
            async with StompClient.dialled(address, tls=secret.authority.client()) as late:
                assert serial_number(late) == serial
        await early.ask("SEND", b"x", destination="/topic/renewed")
        await early.disconnect()


async def test_a_pair_that_does_not_fit_changes_nothing_until_it_does_and_is_logged_once(
    process: GatewayProcess, secret: MountedSecret
) -> None:
    await process.until_logged("admin listening")
    admin = AdminClient(process.admin)
    stale = ("stomp_gateway_certificate_stale", frozenset({("file", secret.tls["cert_file"])}))
    async with StompClient.dialled(process.address, tls=secret.authority.client()) as client:
        first = serial_number(client)
    assert (await admin.samples())[stale] == 0

    half = secret.directory / "half"
    half.mkdir()
    certificate, key = secret.authority.sign(secret.directory, "half")
    shutil.copy(secret.directory / "first.key", half / "tls.key")
    shutil.copy(certificate, half / "tls.crt")
    secret.swap(half)
    (line,) = await process.until_logged("certificate unusable")
    assert "mismatch" in line["reason"].lower()
    assert line["file"] == secret.tls["cert_file"]
    assert (await admin.samples())[stale] == 1
    async with StompClient.dialled(process.address, tls=secret.authority.client()) as client:
        assert serial_number(client) == first

    # In one step: half a key would be another line.
    shutil.copy(key, half / "tls.key.new")
    os.replace(half / "tls.key.new", half / "tls.key")
    await process.until_logged("certificate changed")
    async with StompClient.dialled(process.address, tls=secret.authority.client()) as client:
        assert serial_number(client) != first
    assert (await admin.samples())[stale] == 0
    assert len(process.logged("certificate unusable")) == 1


async def test_the_expiry_of_the_certificate_in_use_is_a_metric(process: GatewayProcess, secret: MountedSecret) -> None:
    await process.until_logged("admin listening")
    admin = AdminClient(process.admin)
    expiry = ("stomp_gateway_certificate_expiry_timestamp_seconds", frozenset({("file", secret.tls["cert_file"])}))

    def expected(name: str) -> float:
        certificate = x509.load_pem_x509_certificate((secret.directory / name).read_bytes())
        return certificate.not_valid_after_utc.timestamp()

    assert (await admin.samples())[expiry] == expected("first.pem")
    bundle = secret.directory / "chain"
    bundle.mkdir()
    own = secret.authority.identify(secret.directory, "own")
    expired = secret.authority.identify(secret.directory, "expired", valid=False)
    (bundle / "tls.crt").write_bytes(own.certificate.read_bytes() + expired.certificate.read_bytes())
    shutil.copy(own.key, bundle / "tls.key")
    secret.swap(bundle)
    # The first certificate that expires counts, whichever it is.
    await until(admin.samples, lambda samples: samples[expiry] == expected("expired.pem"))

"""Names in certificates, by RabbitMQ's rules. The system test of certificate logins asks RabbitMQ for the same."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Literal

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.tls_settings import CertificateLogin
from gateway.errors import CertificateUnreadableError
from gateway.server.listen.certificates import (
    alternative_name,
    certificate_name,
    common_name,
    distinguished_name,
)
from tests.support.certificates import SUBJECTS, Authority, Rdn
from tests.support.certificates import distinguished_name as subject

CN, O = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME  # noqa: E741
OWN = x509.ObjectIdentifier("1.2.3.4.5")

# What is too odd for the name of one of RabbitMQ's users.
ODD: dict[str, list[Rdn]] = {
    "CN=a#b": [[(CN, "a#b")]],
    "CN=\\ ": [[(CN, " ")]],
    r"CN=\0A": [[(CN, "\n")]],
    r"CN=\E6\97\A5\F0\9F\98\80": [[(CN, "日😀")]],
    "": [],
}


@pytest.mark.parametrize(("name", "parts"), (SUBJECTS | ODD).items())
def test_a_distinguished_name_is_written_as_rabbitmq_writes_it(name: str, parts: list[Rdn]) -> None:
    assert distinguished_name(subject(*parts)) == name


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_every_value_is_printable_ascii_that_can_be_read_back(value: str) -> None:
    name = distinguished_name(subject([(OWN, value)]))
    assert all(32 <= ord(character) < 126 for character in name)
    decoded = bytearray()
    rest = name.removeprefix("1.2.3.4.5=")
    while rest:
        size = 1
        if rest[0] == "\\":
            size = 3 if rest[1:3].isalnum() and len(rest[1:3]) == 2 else 2
        decoded += bytes.fromhex(rest[1:3]) if size == 3 else rest[size - 1 : size].encode()
        rest = rest[size:]
    assert decoded.decode() == value


def test_common_names_are_joined_as_they_are() -> None:
    assert common_name(subject([(CN, "first")], [(O, "o")], [(CN, "se,cond é~")])) == "first,se,cond é~"
    assert common_name(subject([(O, "only")])) is None


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("names")
    other = x509.ObjectIdentifier("1.3.6.1.4.1.311.20.2.3")
    names: list[x509.GeneralName] = [
        x509.DNSName("one.example"),
        x509.RFC822Name("a@b.example"),
        x509.DNSName("two.example"),
        x509.IPAddress(ip_address("10.1.2.3")),
        x509.IPAddress(ip_address("fe80::1")),
        x509.UniformResourceIdentifier("spiffe://domain/app"),
        x509.OtherName(other, b"\x0c\x09u@ex.test"),
        x509.OtherName(other, b"\x0c\x81\xc8" + b"u" * 200),
        x509.OtherName(other, b"\x02\x01\x05"),
    ]
    authority = Authority.make(directory, "authority")
    return authority.identify(directory, "named", subject([(CN, "cn")], [(O, "o")]), names).der


Kind = Literal["dns", "ip", "email", "uri", "other_name"]


@pytest.mark.parametrize(
    ("kind", "index", "name"),
    [
        ("dns", 0, "one.example"),
        ("dns", 1, "two.example"),
        ("dns", 2, None),
        ("email", 0, "a@b.example"),
        ("email", 1, None),
        ("uri", 0, "spiffe://domain/app"),
        ("ip", 0, "10.1.2.3"),
        ("ip", 1, "fe80::1"),
        ("other_name", 0, "u@ex.test"),
        ("other_name", 1, "u" * 200),
        ("other_name", 2, None),
        ("other_name", 3, None),
    ],
)
def test_an_alternative_name_is_found_by_kind_and_place(
    certificate: bytes, kind: Kind, index: int, name: str | None
) -> None:
    assert alternative_name(x509.load_der_x509_certificate(certificate), kind, index) == name
    login = CertificateLogin(name="subject_alternative_name", san_type=kind, san_index=index)
    assert certificate_name(certificate, login) == name


def test_the_configuration_says_which_name_it_is(certificate: bytes) -> None:
    assert certificate_name(certificate, CertificateLogin()) == "O=o,CN=cn"
    assert certificate_name(certificate, CertificateLogin(name="common_name")) == "cn"


@pytest.mark.parametrize("subject_of", [subject(), subject([(O, "o")])], ids=["no subject", "no common name"])
def test_a_certificate_without_what_is_asked_for_has_no_name(tmp_path: Path, subject_of: x509.Name) -> None:
    der = Authority.make(tmp_path, "authority").identify(tmp_path, "bare", subject_of).der
    assert certificate_name(der, CertificateLogin()) == ("O=o" if subject_of.rdns else None)
    assert certificate_name(der, CertificateLogin(name="common_name")) is None


def test_a_certificate_without_alternative_names_has_none(tmp_path: Path) -> None:
    bare = Authority.make(tmp_path, "authority").identify(tmp_path, "bare").der
    assert certificate_name(bare, CertificateLogin(name="subject_alternative_name")) is None


@given(st.data())
def test_bytes_that_are_no_certificate_have_no_name_or_are_refused(certificate: bytes, data: st.DataObject) -> None:
    """OpenSSL has checked a certificate before it is read here; a fault must end one connection and no more anyway."""
    spoiled = bytearray(certificate)
    for _ in range(data.draw(st.integers(1, 4))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    for login in (CertificateLogin(), CertificateLogin(name="subject_alternative_name", san_type="other_name")):
        try:
            name = certificate_name(bytes(spoiled), login)
        except CertificateUnreadableError:
            continue
        assert name is None or isinstance(name, str)

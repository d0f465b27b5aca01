"""Certificates made on the fly, for tests of TLS."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

Rdn = Sequence[tuple[x509.ObjectIdentifier, str]]
"""One part of a subject: its attributes, of which there is normally one."""

_DAY: Final = datetime.timedelta(days=1)
LOCALHOST: Final = (x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1")))
_SIGNS: Final = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
_COMMON_NAME: Final = NameOID.COMMON_NAME


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as the files that programs take."""

    certificate: Path
    key: Path

    @property
    def der(self) -> bytes:
        """The certificate as it is on the wire."""
        return ssl.PEM_cert_to_DER_cert(self.certificate.read_text())


@dataclass(frozen=True)
class Authority:
    """A certification authority that lives in a directory.

    ``certificate`` is what others need to trust it.
    """

    certificate: Path
    key: Path

    @classmethod
    def make(cls, directory: Path, name: str) -> Self:
        """Make an authority.

        Args:
            directory: takes its two files.
            name: its common name, and the stem of the files.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = distinguished_name([(_COMMON_NAME, name)])
        builder = _builder(subject, subject, key.public_key(), (-3, 1))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(_SIGNS, critical=True)
        made = cls(directory / f"{name}.pem", directory / f"{name}.key")
        _write(Identity(made.certificate, made.key), builder.sign(key, hashes.SHA256()), key)
        return made

    def client(self) -> ssl.SSLContext:
        """The TLS context of a client that trusts this authority alone."""
        return ssl.create_default_context(cafile=str(self.certificate))

    def sign(self, directory: Path, name: str, *, days: tuple[int, int] = (-3, 1)) -> tuple[Path, Path]:
        """Make a certificate for ``localhost`` and 127.0.0.1, for either end of a connection.

        Args:
            directory: takes its files.
            name: their stem.
            days: from now, when it begins to be valid, and when it expires.

        Returns:
            The certificate and its key.
        """
        subject = distinguished_name([(_COMMON_NAME, "localhost")])
        identity = self.identify(directory, name, subject, LOCALHOST, days=days)
        return identity.certificate, identity.key

    def identify(
        self,
        directory: Path,
        name: str,
        subject: x509.Name | None = None,
        alternative_names: Sequence[x509.GeneralName] | bytes = (),
        *,
        valid: bool = True,
        days: tuple[int, int] = (-3, 1),
        names_key: bool = True,
    ) -> Identity:
        """Make a certificate for anybody.

        Args:
            directory: takes its files.
            name: their stem, and the common name where there is no subject.
            subject: whom it names.
            alternative_names: what else they are called; bytes are the extension's value as it is.
            valid: False for one that expired yesterday.
            days: as for ``sign``.
            names_key: False for one that does not identify the authority's key, as many private ones do not.
        """
        days = days if valid else (-3, -1)
        own = serialization.load_pem_private_key(self.key.read_bytes(), None)
        assert isinstance(own, ec.EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate(self.certificate.read_bytes()).subject
        key = ec.generate_private_key(ec.SECP256R1())
        subject = subject if subject is not None else distinguished_name([(_COMMON_NAME, name)])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = _builder(subject, issuer, key.public_key(), days).add_extension(usage, critical=False)
        of_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(own.public_key())
        if names_key:
            builder = builder.add_extension(of_issuer, critical=False)
        if isinstance(alternative_names, bytes):
            raw = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, alternative_names)
            builder = builder.add_extension(raw, critical=False)
        elif alternative_names:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
        identity = Identity(directory / f"{name}.pem", directory / f"{name}.key")
        _write(identity, builder.sign(own, hashes.SHA256()), key)
        return identity

    def revoke(self, directory: Path, name: str, *revoked: Identity, valid: bool = True) -> Path:
        """Make a list of revoked certificates.

        Args:
            directory: takes its file.
            name: the stem of that.
            revoked: whose certificates are in it.
            valid: False for one that was to be replaced yesterday.
        """
        own = serialization.load_pem_private_key(self.key.read_bytes(), None)
        assert isinstance(own, ec.EllipticCurvePrivateKey)
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder()
        builder = builder.issuer_name(x509.load_pem_x509_certificate(self.certificate.read_bytes()).subject)
        builder = builder.last_update(now - 3 * _DAY).next_update(now + _DAY if valid else now - _DAY)
        for identity in revoked:
            number = x509.load_pem_x509_certificate(identity.certificate.read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now - 2 * _DAY)
            builder = builder.add_revoked_certificate(entry.build())
        target = directory / f"{name}.crl"
        target.write_bytes(builder.sign(own, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return target


def distinguished_name(*parts: Rdn) -> x509.Name:
    """A subject of parts in the order of the certificate, each with one attribute or several."""
    return x509.Name(
        x509.RelativeDistinguishedName(x509.NameAttribute(kind, value) for kind, value in part) for part in parts
    )


def encrypted(key: Path, target: Path, passphrase: bytes) -> None:
    """Write a key once more, under a passphrase."""
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    scheme = serialization.BestAvailableEncryption(passphrase)
    text = loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, scheme)
    target.write_bytes(text)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: tuple[int, int]
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + days[0] * _DAY)
        .not_valid_after(now + days[1] * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _write(identity: Identity, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    identity.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    identity.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    # A broker may run as another user; nothing depends on this key.
    identity.key.chmod(0o644)


CN, O, C = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.COUNTRY_NAME  # noqa: E741

SUBJECTS: Final[dict[str, list[Rdn]]] = {
    "O=client,CN=localhost,ST=England,C=UK": [
        [(C, "UK")],
        [(NameOID.STATE_OR_PROVINCE_NAME, "England")],
        [(CN, "localhost")],
        [(O, "client")],
    ],
    r"CN=a\,b \+ c\7E\C3\A9": [[(CN, "a,b + c~é")]],
    r"CN=\ lead": [[(CN, " lead")]],
    r"CN=\#x": [[(CN, "#x")]],
    "CN=x \\ ": [[(CN, "x  ")]],
    r"CN=\"\+\,\;\<\>\\=": [[(CN, '"+,;<>\\=')]],
    r"CN=a\09b\7F}|\7E": [[(CN, "a\tb\x7f}|~")]],
    "CN=m+UID=u1,C=DE": [[(C, "DE")], [(CN, "m"), (NameOID.USER_ID, "u1")]],
    "EMAILADDRESS=a@b.example,DC=example,DC=org": [
        [(NameOID.DOMAIN_COMPONENT, "org")],
        [(NameOID.DOMAIN_COMPONENT, "example")],
        [(NameOID.EMAIL_ADDRESS, "a@b.example")],
    ],
    r"1.2.3.4.5=own \C3\A9,2.5.4.46=q,2.5.4.9=road": [
        [(NameOID.STREET_ADDRESS, "road")],
        [(NameOID.DN_QUALIFIER, "q")],
        [(x509.ObjectIdentifier("1.2.3.4.5"), "own é")],
    ],
    r"TITLE=t,SERIALNUMBER=1,PSEUDONYM=p,GENERATIONQUALIFIER=3,INITIALS=i,GIVENNAME=g,SN=s,L=l,OU=u": [
        [(NameOID.ORGANIZATIONAL_UNIT_NAME, "u")],
        [(NameOID.LOCALITY_NAME, "l")],
        [(NameOID.SURNAME, "s")],
        [(NameOID.GIVEN_NAME, "g")],
        [(NameOID.INITIALS, "i")],
        [(NameOID.GENERATION_QUALIFIER, "3")],
        [(NameOID.PSEUDONYM, "p")],
        [(NameOID.SERIAL_NUMBER, "1")],
        [(NameOID.TITLE, "t")],
    ],
}
"""Subjects by the distinguished name that RabbitMQ makes of them."""

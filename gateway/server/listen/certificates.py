"""The names in clients' certificates, as RabbitMQ writes them.

Operators map these names to users, so they must be RabbitMQ's byte for byte. RabbitMQ follows RFC 4514, but with more
escapes and other names of types, so the library's `Name.rfc4514_string` cannot be used.
"""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from gateway.config.tls_settings import CertificateLogin
from gateway.errors import CertificateUnreadableError

_TYPE_NAMES: Final = {
    NameOID.COMMON_NAME: "CN",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.COUNTRY_NAME: "C",
    NameOID.SURNAME: "SN",
    NameOID.GIVEN_NAME: "GIVENNAME",
    NameOID.INITIALS: "INITIALS",
    NameOID.GENERATION_QUALIFIER: "GENERATIONQUALIFIER",
    NameOID.TITLE: "TITLE",
    NameOID.SERIAL_NUMBER: "SERIALNUMBER",
    NameOID.PSEUDONYM: "PSEUDONYM",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.EMAIL_ADDRESS: "EMAILADDRESS",
    NameOID.USER_ID: "UID",
}

_ESCAPED: Final = frozenset(b'"+,;<>\\')
_ESCAPED_AT_START: Final = frozenset(b" #")
_PRINTABLE: Final = range(32, 126)
_SPACE: Final = 32

# UTF8String, PrintableString and IA5String: the types of ASN.1 whose bytes are UTF-8, by their tags.
_STRING_TAGS: Final = frozenset((b"\x0c", b"\x13", b"\x16"))
_LONG_FORM: Final = 128


def certificate_name(certificate: bytes, login: CertificateLogin) -> str | None:
    """The name in a client's certificate (DER, already verified) that serves as login; None without one.

    Raises:
        CertificateUnreadableError: the certificate cannot be read.
    """
    try:
        return _name(x509.load_der_x509_certificate(certificate), login) or None
    except Exception as error:
        # The library raises errors of many types.
        raise CertificateUnreadableError(str(error)) from error


def _name(certificate: x509.Certificate, login: CertificateLogin) -> str | None:
    if login.name == "distinguished_name":
        return distinguished_name(certificate.subject)
    if login.name == "common_name":
        return common_name(certificate.subject)
    return alternative_name(certificate, login.san_type, login.san_index)


def distinguished_name(subject: x509.Name) -> str:
    """A whole subject, its last RDN first (RFC 4514, 2.1). A plus sign joins the attributes of one RDN."""
    return ",".join("+".join(map(_attribute, rdn)) for rdn in reversed(subject.rdns))


def common_name(subject: x509.Name) -> str | None:
    """The common names of a subject, unescaped, in the certificate's order, joined by commas. None without any."""
    names = [_text(attribute) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return ",".join(names) if names else None


def alternative_name(certificate: x509.Certificate, kind: str, index: int) -> str | None:
    """The alternative name of a kind at an index from 0; None without it, and for an `other_name` that is no string."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    of_kind = [name for name in extension if isinstance(name, _KINDS[kind])]
    if index >= len(of_kind):
        return None
    name = of_kind[index]
    return _string(name.value) if isinstance(name, x509.OtherName) else str(name.value)


_KINDS: Final[dict[str, type[x509.GeneralName]]] = {
    "dns": x509.DNSName,
    "ip": x509.IPAddress,
    "email": x509.RFC822Name,
    "uri": x509.UniformResourceIdentifier,
    "other_name": x509.OtherName,
}


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    kind = _TYPE_NAMES.get(attribute.oid, attribute.oid.dotted_string)
    return f"{kind}={_escaped(_text(attribute))}"


def _text(attribute: x509.NameAttribute[str | bytes]) -> str:
    value = attribute.value
    # Bytes are a string of bits, which RFC 4514 (2.4) shows in hexadecimal.
    return value if isinstance(value, str) else f"#{value.hex()}"


def _escaped(value: str) -> str:
    data = value.encode()
    shown = [_escaped_byte(byte) for byte in data]
    if data and data[0] in _ESCAPED_AT_START:
        shown[0] = f"\\{chr(data[0])}"
    if data and data[-1] == _SPACE:
        shown[-1] = "\\ "
    return "".join(shown)


def _escaped_byte(byte: int) -> str:
    if byte not in _PRINTABLE:
        return f"\\{byte:02X}"
    return f"\\{chr(byte)}" if byte in _ESCAPED else chr(byte)


def _string(der: bytes) -> str | None:
    """The text of a DER string (lengths: X.690, 8.1.3); None for a value of another type."""
    if der[:1] not in _STRING_TAGS or not der[1:]:
        return None
    length_bytes = max(der[1] - _LONG_FORM, 0)
    return der[2 + length_bytes :].decode()

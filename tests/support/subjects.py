"""Subjects of certificates, by the distinguished name that RabbitMQ makes of them."""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.support.certificates import Rdn

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

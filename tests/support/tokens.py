"""OAuth 2 tokens for tests: a key that a broker is told of, and what is signed with it."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

AUDIENCE: Final = "rabbitmq"
ALL: Final = ("configure:*/*", "write:*/*/*", "read:*/*/*")


class TokenIssuer:
    """Signs tokens (RFC 7519, RS256) that a RabbitMQ with its OAuth 2 backend takes as passcodes.

    Args:
        directory: where the public key goes.
    """

    def __init__(self, directory: Path) -> None:
        self._key: RSAPrivateKey = generate_private_key(65537, 2048)
        self._public = directory / "issuer.pem"
        self._public.write_bytes(self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    @property
    def broker_config(self) -> list[str]:
        """Lines of rabbitmq.conf for a broker that takes its tokens, and passwords as well."""
        return [
            "auth_backends.1 = rabbit_auth_backend_oauth2",
            "auth_backends.2 = internal",
            f"auth_oauth2.resource_server_id = {AUDIENCE}",
            "auth_oauth2.default_key = issuer",
            f"auth_oauth2.signing_keys.issuer = {self._public}",
        ]

    def token(self, seconds: float = 3600, scopes: tuple[str, ...] = ALL, user: str = "app") -> str:
        """A token that is good for so long.

        Args:
            seconds: from now on; whole ones count. Negative: it has expired already.
            scopes: what may be done with it.
            user: whose it is.
        """
        claims = {
            "sub": user,
            "client_id": user,
            "aud": [AUDIENCE],
            "exp": int(time.time() + seconds),
            "scope": [f"{AUDIENCE}.{scope}" for scope in scopes],
        }
        signed = f"{_segment({'alg': 'RS256', 'kid': 'issuer', 'typ': 'JWT'})}.{_segment(claims)}"
        return f"{signed}.{_base64(self._key.sign(signed.encode(), PKCS1v15(), SHA256()))}"


def _segment(values: dict[str, object]) -> str:
    return _base64(json.dumps(values).encode())


def _base64(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()

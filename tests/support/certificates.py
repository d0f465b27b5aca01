"""Certificates made on the fly by the openssl command, for tests of TLS."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Authority:
    """A certification authority that lives in a directory.

    ``certificate`` is what others need to trust it.
    """

    certificate: Path
    key: Path

    @classmethod
    def make(cls, directory: Path, name: str) -> Authority:
        """Make an authority.

        Args:
            directory: takes its two files.
            name: its common name, and the stem of the files.
        """
        made = cls(directory / f"{name}.pem", directory / f"{name}.key")
        _openssl(
            "req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", made.key, "-out", made.certificate
        )
        return made

    def sign(self, directory: Path, name: str) -> tuple[Path, Path]:
        """Make a certificate for ``localhost`` and 127.0.0.1, signed by the authority.

        Args:
            directory: takes its files.
            name: their stem.

        Returns:
            The certificate and its key.
        """
        certificate, key, request = (directory / f"{name}.{suffix}" for suffix in ("pem", "key", "csr"))
        names = directory / f"{name}.ext"
        names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        _openssl("req", *_KEY, "-subj", "/CN=localhost", "-keyout", key, "-out", request)
        signing = ("-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial", "-days", "2", "-extfile", names)
        _openssl("x509", "-req", "-in", request, *signing, "-out", certificate)
        # The broker may run as another user; nothing depends on this key.
        key.chmod(0o644)
        return certificate, key


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)

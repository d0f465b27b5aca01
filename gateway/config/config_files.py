"""The files that a configuration names, and the journal's default directory.

Certificates and keys are loaded here only to check them, so that a wrong one is a mistake with its place in the
configuration file, and not a failure later on.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
from pathlib import Path
from typing import Final

from gateway.config.scalars import mistake

_NO_KEY: Final = "This file holds no private key (PEM)."
_ENCRYPTED: Final = (
    "This private key is encrypted.",
    "The gateway cannot ask for a passphrase: decrypt it, for example with openssl pkey.",
)
_ENCRYPTED_KEYS: Final = (b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")
"""Lines that encrypted keys have. The word alone may stand in a comment, too."""

# Bytes of a socket's path: what Linux has room for (unix(7)).
_LONGEST_SOCKET: Final = 107


class ConfigFiles:
    """Finds and checks the files that a configuration names. Its methods raise `mistake` for an unusable file.

    Relative file names start in ``directory``.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, name: str) -> Path:
        """The path of a file, which need not exist."""
        return self._directory / name

    def socket(self, name: str) -> Path:
        """The path of a Unix-domain socket, which may be there already."""
        file = self._directory / name
        if len(os.fsencode(file)) > _LONGEST_SOCKET or "\0" in name:
            sentence = f"The path of a Unix-domain socket has at most {_LONGEST_SOCKET} bytes, and none of them is 0."
            raise mistake(sentence, "For example /run/stomp-gateway/stomp.sock.")
        # Who checks may have fewer rights than who serves.
        with contextlib.suppress(PermissionError):
            if not file.parent.is_dir():
                advice = "Make it; a service of systemd gets one below /run by RuntimeDirectory."
                raise mistake("The directory of this socket does not exist.", advice)
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(file.lstat().st_mode):
                    raise mistake("A file that is no socket is in the way.", "Give another path, or delete that file.")
        return file

    def readable(self, name: str) -> Path:
        """The path of a file that can be opened."""
        file = self._directory / name
        try:
            file.open("rb").close()
        except OSError as error:
            raise mistake(f"This file cannot be read: {error.strerror}.") from None
        return file

    def certificates(self, name: str) -> Path:
        """The path of a file that holds at least one certificate (PEM)."""
        file = self.readable(name)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
        except (OSError, ValueError):
            advice = "It begins with the line -----BEGIN CERTIFICATE-----."
            raise mistake("This file holds no certificate (PEM).", advice) from None
        return file

    def revocations(self, name: str) -> Path:
        """The path of a file that holds at least one list of revoked certificates (PEM)."""
        file = self.readable(name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with contextlib.suppress(OSError, ValueError):
            context.load_verify_locations(file)
        if not context.cert_store_stats()["crl"]:
            advice = "It begins with the line -----BEGIN X509 CRL-----."
            raise mistake("This file holds no list of revoked certificates (PEM).", advice)
        return file

    def key(self, name: str) -> Path:
        """The path of a file that holds a private key (PEM, not encrypted); see `check_pair`."""
        file = self.readable(name)
        content = file.read_bytes()
        if b"PRIVATE KEY-----" not in content:
            raise mistake(_NO_KEY)
        if any(line in content for line in _ENCRYPTED_KEYS):
            raise mistake(*_ENCRYPTED)
        return file

    @staticmethod
    def check_pair(certificate: Path, key: Path) -> None:
        """Raise `mistake` if a certificate and a private key do not belong together."""
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        except ssl.SSLError as error:
            raise mistake(_key_sentence(error)) from None
        except (OSError, ValueError):
            raise mistake(_NO_KEY) from None


def _key_sentence(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "This private key does not belong to the certificate in cert_file."
    if error.library == "SSL" and error.reason and error.reason != "PEM_LIB":
        # OpenSSL finds the certificate or the key too weak, for example.
        reason = error.reason.replace("_", " ").lower()
        return f"TLS does not take this key with the certificate in cert_file: {reason}."
    return _NO_KEY


def secret_in(file: Path) -> str:
    """The text of a file, without one line end after it. Raises ValueError with a sentence for the user."""
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ValueError(f"This file cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ValueError("This file is not UTF-8 text.") from None


def default_journal_directory(environment: dict[str, str] | None = None, user: int | None = None) -> Path:
    """Where the journal is written unless configured. Unless given, environment and user id are the process's own."""
    variables = dict(os.environ) if environment is None else environment
    given = variables.get("STATE_DIRECTORY", "").partition(":")[0]  # systemd's StateDirectory=, one or several
    if given:
        return Path(given) / "journal"
    if (os.getuid() if user is None else user) == 0:
        return Path("/var/lib/stomp-gateway/journal")
    state = variables.get("XDG_STATE_HOME") or str(Path(variables.get("HOME", "/")) / ".local" / "state")
    return Path(state) / "stomp-gateway" / "journal"

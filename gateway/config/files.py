"""Everything that the configuration asks a disk for: passcode files, certificates and keys, the journal's directory.

Certificates and keys are loaded once here and thrown away again, so that a wrong one is a mistake with a place in the
configuration file, like any other, and not a failure later on.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

from gateway.config.document import Document
from gateway.config.findings import Finding, Trail, mapping
from gateway.config.scalars import mistake


class ConfigFiles:
    """Files that a configuration names, looked at while it is validated.

    Args:
        directory: where relative file names start.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, name: str) -> Path:
        """The path of a relative name."""
        return self._directory / name

    def check_readable(self, file: Path) -> None:
        """Open the file once."""
        try:
            file.open("rb").close()
        except OSError as error:
            raise mistake(f"This file cannot be read: {error.strerror}.") from None

    def check_certificates(self, file: Path) -> None:
        """Look for at least one certificate (PEM)."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
        except (OSError, ValueError):
            advice = "It begins with the line -----BEGIN CERTIFICATE-----."
            raise mistake("This file holds no certificate (PEM).", advice) from None

    def check_key(self, file: Path, certificate: Path) -> None:
        """Look for the private key (PEM, not encrypted) of a certificate."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, file, password=_refuse_passphrase)
        except _EncryptedKeyError:
            advice = "The gateway cannot ask for a passphrase: decrypt it, for example with openssl pkey."
            raise mistake("This private key is encrypted.", advice) from None
        except ssl.SSLError as error:
            raise mistake(_key_sentence(error)) from None
        except (OSError, ValueError):
            raise mistake("This file holds no private key (PEM).") from None


class _EncryptedKeyError(Exception):
    """Raised where OpenSSL would ask on the terminal."""


def _refuse_passphrase() -> str:
    raise _EncryptedKeyError


def _key_sentence(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "This private key does not belong to the certificate in cert_file."
    if error.library == "SSL" and error.reason and error.reason != "PEM_LIB":
        # OpenSSL finds the certificate or the key too weak, for example.
        reason = error.reason.replace("_", " ").lower()
        return f"TLS does not take this key with the certificate in cert_file: {reason}."
    return "This file holds no private key (PEM)."


def read_passcode_files(document: Document, files: ConfigFiles) -> None:
    """Put what each `passcode_file` holds in the place of the passcode; the document's findings grow by mistakes."""
    for trail, user in _users(document.tree):
        if user.get("passcode") is None:
            user.pop("passcode", None)
        name = user.get("passcode_file")
        if name is None:
            continue
        place = (*trail, "passcode_file")
        if "passcode" in user:
            both = "passcode and passcode_file are both given, and only one can count."
            document.findings.append(Finding(place, both, "Delete one of them."))
            continue
        user["passcode"] = "-"  # stands for a passcode that cannot be had
        if place not in document.spoiled:
            try:
                user["passcode"] = _passcode(name, files)
            except ValueError as error:
                document.findings.append(Finding(place, str(error)))
                document.spoiled.add(place)
        document.spoiled.add((*trail, "passcode"))


def _users(tree: object) -> Iterator[tuple[Trail, dict[str, object]]]:
    """Every user with a passcode in a tree of any shape, right or wrong."""
    top = mapping(tree)
    entries: list[tuple[Trail, object]] = [(("defaults",), top.get("defaults"))]
    entries += [(("virtual_hosts", name), entry) for name, entry in mapping(top.get("virtual_hosts")).items()]
    places: list[tuple[Trail, object]] = []
    for trail, entry in entries:
        certificates = mapping(mapping(entry).get("certificate_users"))
        places.append(((*trail, "default_user"), mapping(entry).get("default_user")))
        places.append(((*trail, "certificate_users", "everyone"), certificates.get("everyone")))
        for name, user in mapping(certificates.get("users")).items():
            places.append(((*trail, "certificate_users", "users", name), user))
    operators = mapping(top.get("admin")).get("users")
    places += [
        (("admin", "users", at), user) for at, user in enumerate(operators if isinstance(operators, list) else ())
    ]
    yield from ((place, user) for place, user in places if isinstance(user, dict))


def _passcode(name: object, files: ConfigFiles) -> str:
    """The content of a file without its line end. Raises ValueError with a sentence for the user."""
    if not isinstance(name, str) or not name:
        raise ValueError("The name of a file is needed here.")
    try:
        content = files.find(name).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ValueError(f"This file cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ValueError("This file is not UTF-8 text.") from None
    if not content:
        raise ValueError("This file is empty.")
    return content


def default_journal_directory(environment: dict[str, str] | None = None, user: int | None = None) -> Path:
    """Where the journal is written unless configured.

    Args:
        environment: variables; the process's own unless given.
        user: numeric user id; the process's own unless given.
    """
    variables = dict(os.environ) if environment is None else environment
    given = variables.get("STATE_DIRECTORY", "").partition(":")[0]  # systemd's StateDirectory=, one or several
    if given:
        return Path(given) / "journal"
    if (os.getuid() if user is None else user) == 0:
        return Path("/var/lib/stomp-gateway/journal")
    state = variables.get("XDG_STATE_HOME") or str(Path(variables.get("HOME", "/")) / ".local" / "state")
    return Path(state) / "stomp-gateway" / "journal"

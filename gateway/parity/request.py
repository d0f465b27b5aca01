"""What the command line of `stomp-gateway parity` asks for."""

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from gateway.errors import UsageError
from gateway.parity.identity import Identity
from gateway.parity.script import SETUPS, Setup
from gateway.parity.wire import Address

_PASSCODE_VARIABLE = "STOMP_PASSCODE"
_DEFAULT_PASSCODE = "guest"
_MAX_JOBS = 64
_MAX_PORT = 0xFFFF
_WRONG_URL = "--amqp must be amqp://USER:PASSWORD@HOST:PORT/VHOST, with %2F for a slash in VHOST"
_UNQUOTED = (
    "--amqp has an @, a slash, ? or # where none belongs: in USER, PASSWORD and VHOST write %40 for @, %2F for a "
    "slash, %3F for ?, %23 for #"
)


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    """A command line, checked and completed.

    Args:
        plugin: where the plugin listens.
        gateway: where the gateway listens.
        amqp_url: of the broker of both, with credentials and virtual host.
        identity: who the clients are.
        setups: what both servers are set up for.
        jobs: how many conversations go on at the same time.
    """

    plugin: Address
    gateway: Address
    amqp_url: str
    identity: Identity
    setups: tuple[Setup, ...]
    jobs: int

    @property
    def amqp_place(self) -> str:
        """The broker's host and port, and nothing else of its URL."""
        parts = urlsplit(self.amqp_url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{host}:{parts.port or (5671 if parts.scheme == 'amqps' else 5672)}"


def requested(options: Namespace) -> Request:
    """Return what the options ask for.

    Args:
        options: `plugin`, `gateway`, `amqp`, `setup`, `jobs`, `login`, `passcode_file` and `host`, as given; also
            `passcode`, which is refused.

    Raises:
        UsageError: they cannot be meant so.
    """
    if options.passcode is not None:
        raise UsageError(
            f"--passcode shows a passcode to everybody on this machine: use ${_PASSCODE_VARIABLE} or a file"
        )
    servers = {"--plugin": options.plugin, "--gateway": options.gateway}
    missing = [option for option, text in servers.items() if text is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise UsageError(f"{' and '.join(missing)} {are} missing: both servers are needed, as HOST:PORT")
    plugin, gateway = (_address(option, text) for option, text in servers.items())
    passcode = _passcode(options.passcode_file)
    amqp_url = options.amqp or _amqp_url(plugin, options.login, passcode, options.host)
    amqp_login, virtual_host = _url_parts(amqp_url)
    if virtual_host != options.host:
        raise UsageError(
            f"--amqp names the virtual host {virtual_host!r}, and --host is {options.host!r}: it must be the same"
        )
    identity = Identity(options.login, passcode, options.host, amqp_login)
    if not 1 <= options.jobs <= _MAX_JOBS:
        raise UsageError(f"--jobs must be a number from 1 to {_MAX_JOBS}, not {options.jobs}")
    return Request(plugin, gateway, amqp_url, identity, setups(options.setup), options.jobs)


def setups(names: Sequence[str] | None) -> tuple[Setup, ...]:
    """Return the setups of these names, `plain` where there are none. Raises UsageError."""
    unknown = [name for name in names or () if name not in SETUPS]
    if unknown:
        raise UsageError(f"--setup {unknown[0]}: there is no such setup; there are {', '.join(SETUPS)}")
    return tuple(setup for setup in SETUPS if setup in (names or ("plain",)))


def _address(option: str, text: str) -> Address:
    if "@" in text or "/" in text:  # perhaps a URL with a passcode, so it is not repeated
        raise UsageError(f"{option} must be HOST:PORT alone, without a user, a scheme or a path; the user is --login")
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise UsageError(f"{option} must be HOST:PORT, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _passcode(file: str | None) -> str:
    if file is None:
        return os.environ.get(_PASSCODE_VARIABLE, _DEFAULT_PASSCODE)
    try:
        return _without_line_end(Path(file).read_bytes().decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--passcode-file {file} cannot be read: {why}") from None


def _without_line_end(text: str) -> str:
    return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")


def _amqp_url(plugin: Address, login: str, passcode: str, virtual_host: str) -> str:
    host = f"[{plugin[0]}]" if ":" in plugin[0] else plugin[0]
    user = f"{quote(login, safe='')}:{quote(passcode, safe='')}"
    # aiormq reads a path of one slash alone as the virtual host `/`, and takes one slash off any other.
    path = "/" if virtual_host == "/" else f"/{quote(virtual_host, safe='')}"
    return f"amqp://{user}@{host}:5672{path}"


def _url_parts(url: str) -> tuple[str, str]:
    """Return login and virtual host of an AMQP URL. Errors do not repeat it, as it has a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError(_WRONG_URL) from None
    if parts.netloc.count("@") > 1 or any("@" in part for part in (parts.path, parts.query, parts.fragment)):
        raise UsageError(_UNQUOTED)
    try:
        _ = parts.port  # raises where it is no number
    except ValueError:
        raise UsageError(_WRONG_URL) from None
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
        raise UsageError(_WRONG_URL)
    return unquote(parts.username or "guest"), unquote(parts.path.removeprefix("/")) or "/"

"""The address of a broker and the login for it, from an AMQP URL."""

from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, unquote, urlsplit

from deploy.local.errors import LocalError

_DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}


@dataclass(frozen=True)
class Address:
    """The parts of an AMQP URL, decoded."""

    scheme: str
    """amqp or amqps."""
    host: str
    port: int
    login: str
    passcode: str
    vhost: str
    """The broker's own name of the virtual host."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse an AMQP URL. Login and passcode default to guest, an absent or empty virtual host to /.

        Args:
            url: `amqp://login:passcode@host:port/vhost`, parts percent-encoded.

        Raises:
            LocalError: it is not such a URL. The text does not repeat it, since it may contain a passcode.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise _not_an_address() from None
        vhost = unquote(parts.path.removeprefix("/"))
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "/" in parts.path.removeprefix("/"):
            raise _not_an_address()
        if parts.query or parts.fragment:
            raise LocalError("AMQP_URL holds options after the virtual host, which are not understood: leave them out.")
        return cls(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port or _DEFAULT_PORTS[parts.scheme],
            login=unquote(parts.username or "guest"),
            passcode=unquote(parts.password or "guest"),
            vhost=vhost or "/",
        )

    @property
    def upstream(self) -> str:
        """The URL with neither credentials nor virtual host, as the gateway's configuration wants it."""
        return f"{self.scheme}://{self._bracketed_host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole URL, credentials included."""
        credentials = f"{quote(self.login, safe='')}:{quote(self.passcode, safe='')}"
        return f"{self.scheme}://{credentials}@{self._bracketed_host}:{self.port}/{quote(self.vhost, safe='')}"

    @property
    def _bracketed_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def _not_an_address() -> LocalError:
    return LocalError("AMQP_URL is not an AMQP address: write it as amqp://user:password@host:5672/virtual-host.")

"""The client-properties of a link, which the broker's management pages show."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Final

from gateway import __version__

# The most bytes of a name in the properties. Before the login is complete, RabbitMQ accepts frames of up to 4096 bytes,
# of which 3000 are for the credentials.
_LONGEST_NAME: Final = 80

_PRODUCT: Final = {
    "product": "stomp-gateway",
    "version": __version__,
    "platform": f"{platform.python_implementation()} {platform.python_version()}",
}


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """The properties of a link that RabbitMQ's management pages show.

    ``purpose``: ``publish``, ``bulk``, ``consume``, ``select``, ``own`` or ``login``. ``node``: the gateway's name.
    ``client`` and ``session`` are empty for links that serve several sessions.
    """

    purpose: str
    virtual_host: str
    login: str
    node: str = ""
    client: str = ""
    session: str = ""

    @property
    def connection_name(self) -> str:
        """The name that the broker shows beside the connection."""
        words = (self.purpose, _shortened(self.virtual_host), _shortened(self.login), self.client, self.session)
        return " ".join(("stomp-gateway", *filter(None, words)))

    def as_table(self) -> dict[str, str]:
        """The table client-properties of connection.start-ok."""
        optional = {
            "information": f"STOMP gateway on {_shortened(self.node)}",
            "gateway_node": _shortened(self.node),
            "gateway_virtual_host": _shortened(self.virtual_host),
            "gateway_purpose": self.purpose,
            "stomp_client": self.client,
            # The broker shows the user of a shared link anyway.
            "stomp_login": _shortened(self.login) if self.session else "",
            "stomp_session": self.session,
        }
        return {**_PRODUCT, "connection_name": self.connection_name, **{k: v for k, v in optional.items() if v}}


def _shortened(text: str) -> str:
    return text.encode()[:_LONGEST_NAME].decode(errors="ignore")

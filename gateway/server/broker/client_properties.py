"""What a link says of itself to the broker, so that RabbitMQ's own pages tell what it is for."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Final

from gateway import __version__

# Bytes of each thing that is not ours. A login may be long, and RabbitMQ hangs up on long frames before it has
# accepted one: of its 4096 bytes at least 3000 are left for login and passcode.
_LONGEST: Final = 80

_PRODUCT: Final = {
    "product": "stomp-gateway",
    "version": __version__,
    "platform": f"{platform.python_implementation()} {platform.python_version()}",
}


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """Who opens a link, and what for.

    ``purpose`` is ``publish``, ``consume``, ``own`` or ``login``; ``node`` the gateway's name; ``client`` and
    ``session`` are known of links that serve one session only.
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
        words = (self.purpose, _cut(self.virtual_host), _cut(self.login), self.client, self.session)
        return " ".join(("stomp-gateway", *filter(None, words)))

    @property
    def client_properties(self) -> dict[str, str]:
        """What else the broker shows of it."""
        known = {
            "information": f"STOMP gateway on {_cut(self.node)}",
            "gateway_node": _cut(self.node),
            "gateway_virtual_host": _cut(self.virtual_host),
            "gateway_purpose": self.purpose,
            "stomp_client": self.client,
            # Of a link for all sessions of a login the broker shows the user anyway.
            "stomp_login": _cut(self.login) if self.session else "",
            "stomp_session": self.session,
        }
        return {**_PRODUCT, "connection_name": self.connection_name, **{k: v for k, v in known.items() if v}}


def _cut(text: str) -> str:
    return text.encode()[:_LONGEST].decode(errors="ignore")

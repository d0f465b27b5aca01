"""RabbitMQ's management interface: users, permissions, virtual hosts and limits, changed in milliseconds."""

from __future__ import annotations

import asyncio
import base64
import json
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import quote

from deploy.local.broker import Broker

EVERYTHING: Final = (".*", ".*", ".*")
"""The permissions to configure, write and read everything."""

PASSCODE: Final = "correct"
"""The passcode of every user that is added here."""

_AUTHORIZATION: Final = "Basic " + base64.b64encode(b"guest:guest").decode()


class Management:
    """The management plugin of a broker.

    Args:
        broker: one with the plugin, and guest as administrator.
    """

    def __init__(self, broker: Broker) -> None:
        assert broker.management_port is not None
        self._address = (broker.host, broker.management_port)

    async def add_user(
        self, name: str, vhost: str = "/", rights: tuple[str, str, str] = EVERYTHING, passcode: str = PASSCODE
    ) -> None:
        """Add a user with a passcode, who may use one virtual host."""
        await self._ask("PUT", "users", name, body={"password": passcode, "tags": ""})
        await self.permit(name, vhost, rights)

    async def delete_user(self, name: str) -> None:
        """Delete a user; the broker closes the user's connections."""
        await self._ask("DELETE", "users", name)

    async def permit(self, user: str, vhost: str = "/", rights: tuple[str, str, str] = EVERYTHING) -> None:
        """Set what a user may configure, write and read, as regular expressions for names."""
        configure, write, read = rights
        body = {"configure": configure, "write": write, "read": read}
        await self._ask("PUT", "permissions", vhost, user, body=body)

    async def forbid(self, user: str, vhost: str = "/") -> None:
        """Remove all permissions of a user in a virtual host, and so its access."""
        await self._ask("DELETE", "permissions", vhost, user)

    async def permit_topics(self, user: str, write: str, read: str, vhost: str = "/") -> None:
        """Set the routing keys of amq.topic that a user may write and read, as regular expressions."""
        body = {"exchange": "amq.topic", "write": write, "read": read}
        await self._ask("PUT", "topic-permissions", vhost, user, body=body)

    async def add_vhost(self, name: str) -> None:
        """Add a virtual host that guest may use."""
        await self._ask("PUT", "vhosts", name, body={})
        await self.permit("guest", name)

    async def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with all that is in it; the broker closes its connections."""
        await self._ask("DELETE", "vhosts", name)

    async def limit(self, kind: str, name: str, limit: str, value: int) -> None:
        """Set a limit.

        Args:
            kind: ``vhost`` or ``user``.
            name: whose.
            limit: for example ``max-connections``.
            value: the most that is allowed.
        """
        await self._ask("PUT", f"{kind}-limits", name, limit, body={"value": value})

    async def add_exchange(self, name: str, kind: str, vhost: str) -> None:
        """Add a transient exchange."""
        await self._ask("PUT", "exchanges", vhost, name, body={"type": kind, "durable": False})

    async def delete_queue(self, name: str, vhost: str = "/") -> None:
        """Delete a queue that is not exclusive, even if it is in use."""
        await self._ask("DELETE", "queues", vhost, name)

    async def connections(self) -> list[dict[str, Any]]:
        """Every connection, as the management pages show it."""
        answer = await asyncio.to_thread(self._ask_now, "GET", "/api/connections", None)
        found: list[dict[str, Any]] = json.loads(answer)
        return found

    async def queues(self) -> list[str]:
        """The names of all queues of all virtual hosts."""
        answer = await asyncio.to_thread(self._ask_now, "GET", "/api/queues?columns=name", None)
        return [queue["name"] for queue in json.loads(answer)]

    async def _ask(self, method: str, *path: str, body: dict[str, Any] | None = None) -> None:
        """Send a request, and fail unless it succeeds."""
        target = "/api/" + "/".join(quote(part, safe="") for part in path)
        _ = await asyncio.to_thread(self._ask_now, method, target, body)

    def _ask_now(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        connection = HTTPConnection(*self._address, timeout=20)
        try:
            headers = {"Authorization": _AUTHORIZATION, "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status < 300, (method, path, answer.status, text)
            return text
        finally:
            connection.close()

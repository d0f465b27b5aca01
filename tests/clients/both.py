"""One conversation held with both servers, RabbitMQ's plugin and the gateway, and what is compared of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from typing import Any, Final

from tests.clients.library import Library
from tests.clients.peer import Address, Peer, Seen

Conversation = Callable[[Peer], list[Seen]]
"""Talks to one server and gives what the client saw of it, in order."""

SIDES: Final = ("plugin", "gateway")

_OWN: Final = {"session", "server", "message-id", "ack"}
"""Headers whose values are each server's own; that they are there is compared."""

_NAMES: Final = (
    (re.compile(r"\btest-[0-9a-f]{12}\b"), "<name>"),
    (re.compile(r"\bamq\.gen-[\w-]+"), "<generated>"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
)


def comparable(seen: Any) -> Any:  # noqa: ANN401 - JSON has every type
    """What a client saw, without the values that no two connections have in common."""
    if isinstance(seen, dict):
        return {name: "<own>" if name in _OWN else comparable(value) for name, value in seen.items()}
    if isinstance(seen, list):
        return [comparable(item) for item in seen]
    if isinstance(seen, str):
        for pattern, name in _NAMES:
            seen = pattern.sub(name, seen)
    return seen


def _lines(seen: list[Seen]) -> list[str]:
    return json.dumps(comparable(seen), indent=1, ensure_ascii=False, sort_keys=True).splitlines()


class Both:
    """The programs of one library, one for each server.

    Args:
        library: whose programs they are.
        addresses: of plugin and gateway.
        virtual_host: that connections name, or None for what the library sends by itself.
    """

    def __init__(self, library: Library, addresses: dict[str, Address], virtual_host: str | None) -> None:
        self.library = library
        self.failed = False
        self._peers = {side: Peer(library, side, addresses[side], virtual_host) for side in SIDES}

    def hold(self, conversation: Conversation) -> list[Seen]:
        """Hold a conversation with both at the same time.

        Returns:
            What the client saw of the gateway.

        Raises:
            AssertionError: with the plugin it saw something else.
        """
        plugin, gateway = self.hear(conversation)
        difference = "\n".join(unified_diff(_lines(plugin), _lines(gateway), *SIDES, lineterm=""))
        assert not difference, f"{self.library.name} sees plugin and gateway differ:\n{difference}"
        return gateway

    def hear(self, conversation: Conversation) -> tuple[list[Seen], list[Seen]]:
        """The same without comparing; gives what it saw of the plugin, and of the gateway."""
        self.failed = True
        with ThreadPoolExecutor(len(SIDES)) as both:
            plugin, gateway = both.map(conversation, [self._peers[side] for side in SIDES])
        self.failed = False
        return plugin, gateway

    def stop(self) -> None:
        """End both."""
        for peer in self._peers.values():
            peer.stop()

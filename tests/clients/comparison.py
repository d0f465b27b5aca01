"""One conversation with both servers, RabbitMQ's plugin and the gateway, and the comparison of its results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from typing import Any, Final

from tests.clients.client_program import Address, ClientProgram, Seen
from tests.clients.library import Library

Conversation = Callable[[ClientProgram], list[Seen]]
"""Has a conversation with one server, and returns what the client received, in order."""

SIDES: Final = ("plugin", "gateway")

_OWN: Final = {"session", "server", "message-id", "ack"}
"""Headers whose values differ between servers. Only their presence is compared."""

_NAMES: Final = (
    (re.compile(r"\btest-[0-9a-f]{12}\b"), "<name>"),
    (re.compile(r"\b(amq\.gen|stomp-subscription)-[\w-]{22}(?![\w-])"), "<generated>"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
)


def comparable(seen: Any) -> Any:  # noqa: ANN401 - JSON has every type
    """What a client received, without the values that differ between any two connections."""
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


class Comparison:
    """The programs of one library, one for each server.

    Args:
        library: to start the programs of.
        addresses: of plugin and gateway.
        virtual_host: that connections name, or None for the default of the library.
    """

    def __init__(self, library: Library, addresses: dict[str, Address], virtual_host: str | None) -> None:
        self.library = library
        self.failed = False
        self._programs = {side: ClientProgram(library, side, addresses[side], virtual_host) for side in SIDES}

    def compare(self, conversation: Conversation) -> list[Seen]:
        """Have a conversation with both servers at the same time, and compare the results.

        Returns:
            What the client received from the gateway.

        Raises:
            AssertionError: it received something else from the plugin.
        """
        plugin, gateway = self.run(conversation)
        difference = "\n".join(unified_diff(_lines(plugin), _lines(gateway), *SIDES, lineterm=""))
        assert not difference, f"{self.library.name} sees plugin and gateway differ:\n{difference}"
        return gateway

    def run(self, conversation: Conversation) -> tuple[list[Seen], list[Seen]]:
        """Have a conversation with both, and return what the client received from the plugin and from the gateway."""
        self.failed = True
        with ThreadPoolExecutor(len(SIDES)) as both:
            plugin, gateway = both.map(conversation, [self._programs[side] for side in SIDES])
        self.failed = False
        return plugin, gateway

    def stop(self) -> None:
        """Stop both programs."""
        for program in self._programs.values():
            program.stop()

"""A worker's answers to its supervisor's calls."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.admin.gateway_view import GatewayView
    from gateway.server.process.gateway import Gateway

_CALLS: Final = frozenset((
    "readiness", "report", "sessions", "session", "close_session", "destination_rows", "links", "fail_back",
    "trace_begin", "trace_take", "trace_end",
))  # fmt: skip


class WorkerAnswers:
    """Answers from the view of this worker's gateway."""

    def __init__(self) -> None:
        self._view: GatewayView | None = None

    async def start(self, gateway: Gateway) -> None:
        """Show this gateway from now on."""
        # The metrics' library takes a moment to load. In a thread, so that clients are served meanwhile.
        module = await asyncio.to_thread(import_module, "gateway.admin.gateway_view")
        self._view = module.GatewayView(gateway)

    async def answer(self, name: str, arguments: tuple[Any, ...]) -> object:
        """Carry out a call of the supervisor."""
        if self._view is None or name not in _CALLS:
            raise GatewayError(f"the worker cannot be asked for {name} now")
        return await getattr(self._view, name)(*arguments)

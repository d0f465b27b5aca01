"""A server without a network that sends given frames."""

from __future__ import annotations

from gateway.parity.stomp_peer import Received, ServerFrame, SilenceError


class ScriptedPeer:
    """Answers every frame with the same frames."""

    def __init__(self, *answers: ServerFrame) -> None:
        self._answers = answers
        self._waiting: list[Received] = []
        self.heard = b""

    async def send(self, _client: str, data: bytes) -> None:
        self.heard += data
        self._waiting += self._answers

    async def receive(self, _client: str) -> Received:
        if not self._waiting:
            raise SilenceError("nothing more")
        return self._waiting.pop(0)

    async def hang_up(self, _client: str) -> None: ...

    async def close(self) -> None: ...

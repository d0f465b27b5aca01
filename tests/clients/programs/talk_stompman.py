"""Carries out the requests of the tests with stompman, one JSON object on each line. See ../README.md."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

import stompman
from stompman.connection import Connection

Request = dict[str, Any]
Shown = dict[str, Any]


class AbortedError(Exception):
    """Leaves the block of a transaction, which is how stompman aborts it."""


def shown(frame: stompman.MessageFrame | stompman.ErrorFrame) -> Shown:
    return {"headers": dict(frame.headers), "body": frame.body.decode()}


class ClientConnection:
    """One connection."""

    def __init__(self, request: Request) -> None:
        host, port = request["address"]
        self.heard: asyncio.Queue[stompman.HeartbeatFrame] = asyncio.Queue()
        self._messages: asyncio.Queue[stompman.AckableMessageFrame] = asyncio.Queue()
        self._errors: asyncio.Queue[stompman.ErrorFrame] = asyncio.Queue()
        self._arrived: dict[str, stompman.AckableMessageFrame] = {}
        self._subscriptions: dict[str, stompman.ManualAckSubscription] = {}
        self._transactions: dict[str, tuple[contextlib.AsyncExitStack, stompman.Transaction]] = {}
        self._parameters = stompman.ConnectionParameters(host, port, request["login"], request["passcode"])
        self._heartbeat = stompman.Heartbeat(*request["heart_beat"])
        self._client = self._made(patience=1)

    def _made(self, patience: int) -> stompman.Client:
        return stompman.Client(
            [self._parameters],
            heartbeat=self._heartbeat,
            on_error_frame=self._errors.put_nowait,
            connect_retry_attempts=1,
            connect_retry_interval=0,
            connect_timeout=20,
            connection_confirmation_timeout=patience,
            connection_class=listening(self.heard),
        )

    async def connect(self) -> Shown:
        """Log in. The library does not show CONNECTED.

        It waits out its time after a refusal, too; so it is given little, and more if the server said nothing in that.
        """
        try:
            await self._client.__aenter__()
        except stompman.FailedAllConnectAttemptsError as failure:
            if refused := refusal(failure):
                return {"refused": refused}
            self._client = self._made(patience=20)
            await self._client.__aenter__()
        return {"connected": {}}

    async def subscribe(self, request: Request) -> Shown:
        headers = dict(request["headers"])
        subscription = await self._client.subscribe_with_manual_ack(
            request["destination"], self._arrive, ack=headers.pop("ack"), headers=headers, receipt_timeout=20
        )
        self._subscriptions[request["id"]] = subscription
        return {"receipt": True}

    async def _arrive(self, message: stompman.AckableMessageFrame) -> None:
        self._messages.put_nowait(message)

    async def unsubscribe(self, request: Request) -> Shown:
        await self._subscriptions.pop(request["id"]).unsubscribe()
        return {}

    async def send(self, request: Request) -> Shown:
        body, headers = request["body"].encode(), dict(request["headers"])
        kind = headers.pop("content-type", None)
        if transaction := headers.pop("transaction", None):
            sender = self._transactions[transaction][1]
            await sender.send(body, request["destination"], content_type=kind, headers=headers)
            return {}
        patience = None if request.get("unconfirmed") else 20.0
        await self._client.send(
            body, request["destination"], content_type=kind, headers=headers, receipt_timeout=patience
        )
        return {} if patience is None else {"receipt": True}

    async def receive(self, request: Request) -> Shown:
        message = await self._messages.get()
        self._arrived[message.headers["message-id"]] = message
        return shown(message)

    async def error(self, request: Request) -> Shown:
        return shown(await self._errors.get())

    async def ack(self, request: Request) -> Shown:
        await self._arrived[request["message"]["message-id"]].ack()
        return {}

    async def nack(self, request: Request) -> Shown:
        await self._arrived[request["message"]["message-id"]].nack()
        return {}

    async def begin(self, request: Request) -> Shown:
        stack = contextlib.AsyncExitStack()
        transaction = await stack.enter_async_context(self._client.begin())
        self._transactions[request["transaction"]] = stack, transaction
        return {}

    async def commit(self, request: Request) -> Shown:
        await self._transactions.pop(request["transaction"])[0].aclose()
        return {}

    async def abort(self, request: Request) -> Shown:
        stack, _ = self._transactions.pop(request["transaction"])
        with contextlib.suppress(AbortedError):
            await stack.__aexit__(AbortedError, AbortedError(), None)
        return {}

    async def beats(self, request: Request) -> Shown:
        for _ in range(request["count"]):
            await self.heard.get()
        return {}

    async def disconnect(self, request: Request) -> Shown:
        for subscription in self._subscriptions.values():
            await subscription.unsubscribe()
        await self._client.__aexit__(None, None, None)
        return {"receipt": True}


def refusal(failure: stompman.FailedAllConnectAttemptsError) -> Shown | None:
    """The ERROR in answer to CONNECT, from the library's exception; None if no answer came in time."""
    (issue,) = failure.issues
    assert isinstance(issue, stompman.ConnectionConfirmationTimeout)
    errors = [frame for frame in issue.frames if isinstance(frame, stompman.ErrorFrame)]
    return shown(errors[0]) if errors else None


def listening(heard: asyncio.Queue[stompman.HeartbeatFrame]) -> type[Connection]:
    """The library's connection, which also reports heart-beats."""

    class Listening(Connection):
        async def read_frames(self) -> AsyncGenerator[stompman.AnyServerFrame, None]:
            async for frame in super().read_frames():
                if isinstance(frame, stompman.HeartbeatFrame):
                    heard.put_nowait(frame)
                yield frame

    return Listening


async def answer(connections: dict[str, ClientConnection], request: Request) -> Shown:
    """Carry out a request, and return the answer."""
    if request["do"] == "connect":
        connection = connections[request["connection"]] = ClientConnection(request)
        return await connection.connect()
    done: Shown = await getattr(connections[request["connection"]], request["do"])(request)
    return done


async def main() -> None:
    """Answer requests until the input ends."""
    connections: dict[str, ClientConnection] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            seen = await answer(connections, json.loads(line))
        except Exception as error:  # noqa: BLE001 - the test has to hear of any
            seen = {"failed": repr(error)}
        print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["version"]:
        print("stompman", importlib.metadata.version("stompman"))
    else:
        asyncio.run(main())

"""The broker behind both sides: its queues over AMQP, its memory through rabbitmqctl."""

import asyncio
import re
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import aio_pika
import aio_pika.exceptions
from aio_pika.abc import AbstractChannel

from deploy.local.errors import LocalError
from tests.bench.wire import NotMeasurableError, RowError

_Result = TypeVar("_Result")
EXPIRES = 15 * 60 * 1000
"""Milliseconds after which the broker drops an unused queue of the benchmark, should the benchmark itself be killed."""
_COLLECT = "lists:foreach(fun erlang:garbage_collect/1, erlang:processes())"
_ALLOCATED = f"{_COLLECT}, {_COLLECT}, M = erlang:memory(), [proplists:get_value(K, M) || K <- [total, binary]]."
_ADD_USER = (
    'rabbit_auth_backend_internal:add_user(U, U, <<"bench">>), '
    'rabbit_auth_backend_internal:set_permissions(U, <<"{host}">>, <<".*">>, <<".*">>, <<".*">>, <<"bench">>)'
)
_DELETE_USER = 'rabbit_auth_backend_internal:delete_user(U, <<"bench">>)'

Control = Callable[[Sequence[str]], str]
"""Runs rabbitmqctl with arguments and returns what it printed; raises when it fails."""


@dataclass(frozen=True)
class Broker:
    """A RabbitMQ node.

    `url` is its AMQP URL with credentials; `control` runs rabbitmqctl against it, None when that is not available;
    `pid` is the node's Erlang process, None when it is not on this machine or may not be seen.
    """

    url: str
    control: Control | None = None
    pid: int | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """`pid`, or nothing."""
        return () if self.pid is None else (self.pid,)

    def declare(self, *queues: str) -> None:
        """Create queues again: durable and empty. The broker deletes them later if this run is killed."""

        async def remake(channel: AbstractChannel) -> None:
            arguments: dict[str, int | str] = {"x-expires": EXPIRES}
            for queue in queues:
                await channel.queue_delete(queue)
                await channel.declare_queue(queue, durable=True, arguments=dict(arguments))

        self._with_channel(remake)

    def delete(self, *queues: str) -> None:
        """Delete those queues that exist."""

        async def remove(channel: AbstractChannel) -> None:
            for queue in queues:
                await channel.queue_delete(queue)

        self._with_channel(remove)

    def depth(self, queue: str) -> tuple[int, int]:
        """Return how many messages are ready in `queue`, and how many consumers it has."""

        async def inspect(channel: AbstractChannel) -> tuple[int, int]:
            result = (await channel.get_queue(queue, ensure=True)).declaration_result
            return result.message_count or 0, result.consumer_count or 0

        return self._with_channel(inspect)

    def require_depth(self, queue: str, expected: int, *, patience: float = 20.0) -> None:
        """Require that `queue` has no consumer any more and `expected` ready messages, after some seconds at most.

        Without consumers, messages that were delivered and never settled count as ready again.

        Raises:
            RowError: the number is another, or consumers are still there after `patience` seconds.
        """
        deadline = time.monotonic() + patience
        ready, consumers = self.depth(queue)
        while (consumers or ready != expected) and time.monotonic() < deadline:
            ready, consumers = self.depth(queue)
        if consumers:
            raise RowError(f"the queue still has {consumers} consumers {patience:.0f} s after the session's end")
        if ready != expected:
            raise RowError(f"the queue holds {ready:,} messages where {expected:,} belong")

    def allocated_after_collection(self) -> tuple[int, int]:
        """Collect the garbage of every Erlang process; return the bytes then allocated, without and for binaries.

        Raises:
            NotMeasurableError: rabbitmqctl is not available, or fails.
        """
        if self.control is None:
            raise NotMeasurableError("memory needs rabbitmqctl for this broker (--rabbitmqctl)")
        try:
            total, binary = re.findall(r"\d+", self.control(["eval", _ALLOCATED]))
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            raise NotMeasurableError(f"rabbitmqctl did not answer: {error}") from error
        return int(total) - int(binary), int(binary)

    def add_users(self, logins: Sequence[str], virtual_host: str) -> None:
        """Create users whose passcode is their login, and who may do everything in the virtual host.

        Raises:
            NotMeasurableError: rabbitmqctl is not available, or fails.
        """
        self._for_each(logins, _ADD_USER.format(host=virtual_host))

    def delete_users(self, logins: Sequence[str]) -> None:
        """Delete users."""
        self._for_each(logins, _DELETE_USER)

    def _for_each(self, logins: Sequence[str], expression: str) -> None:
        names = ",".join(f'<<"{login}">>' for login in logins)
        if self.control is None:
            raise NotMeasurableError("users need rabbitmqctl for this broker (--rabbitmqctl)")
        try:
            self.control(["eval", f"lists:foreach(fun(U) -> {expression} end, [{names}])."])
        except (OSError, subprocess.SubprocessError, LocalError) as error:
            raise NotMeasurableError(f"rabbitmqctl did not answer: {error}") from error

    def version(self) -> str:
        """Return the product and version that the broker states when a connection opens."""

        async def ask(channel: AbstractChannel) -> str:
            properties = (await channel.get_underlay_channel()).connection.server_properties
            return f"{_text(properties.get('product'))} {_text(properties.get('version'))}"

        return self._with_channel(ask)

    def _with_channel(self, work: Callable[[AbstractChannel], Awaitable[_Result]]) -> _Result:
        # A new connection each time: an open one would need its heartbeats served while a row runs.
        async def run() -> _Result:
            async with await aio_pika.connect(self.url) as connection:
                return await work(await connection.channel())

        try:
            return asyncio.run(run())
        except (OSError, aio_pika.exceptions.AMQPError) as error:
            raise RowError(f"the broker refused an errand of the benchmark's own over AMQP: {error}") from error


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

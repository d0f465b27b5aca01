"""One worker as its supervisor sees it: a process, and its successors."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from gateway.config.addresses import ListenAddress
from gateway.config.model import GatewayConfig
from gateway.errors import GatewayError
from gateway.server.fault_boundary import cancelled
from gateway.server.process.worker_channel import WorkerCalls, WorkerError, WorkerGoneError, pass_descriptors
from gateway.server.process.worker_sockets import SocketSet, descriptors_of
from gateway.server.shared_counts import SharedMemory

log = structlog.get_logger("gateway.workers")

_MODULE: Final = "gateway.cli.worker_command"

# In seconds. A worker that served this long is replaced at once. Otherwise the pause grows from the first to the last.
_SERVED: Final = 10.0
_FIRST_PAUSE: Final = 0.5
_LAST_PAUSE: Final = 30.0
# The pause after the third short life in a row, as a multiple of the first.
_KEEPS_DYING: Final = 4
_DYING_HINT: Final = "its last lines are above; if it cannot start a thread, TasksMax, ulimit -u or pids.max is too low"

# The time in seconds for a worker to start, and to count its sessions at a stop.
_START_WITHIN: Final = 60.0
_ANSWER_WITHIN: Final = 2.0


class WorkerProcess:
    """Keeps a process running from ``start`` to ``stop``.

    Args:
        memory: has the counts of the process, which end with it.
        config: returns the configuration for a new process.
        died: called when a process has ended that should not have.
        level: returns the level of its log lines, None for the configured one.
    """

    def __init__(
        self,
        number: int,
        sockets: SocketSet,
        memory: SharedMemory,
        config: Callable[[], GatewayConfig],
        died: Callable[[], None],
        level: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.number = number
        self._sockets = sockets
        self._memory = memory
        self._config = config
        self._died = died
        self._level = level
        self._process: asyncio.subprocess.Process | None = None
        self._calls: WorkerCalls | None = None
        self._files: socket.socket | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._is_stopping = self._is_replaced = False
        self._served_since: float | None = None
        self._pause = 0.0
        self._used: GatewayConfig | None = None
        self._applying = asyncio.Lock()
        # Set while it serves.
        self.pid: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether it serves clients."""
        return self.pid is not None

    @property
    def keeps_dying(self) -> bool:
        """Whether the last three processes ended within ten seconds, and this one is younger than that."""
        return self._pause >= _KEEPS_DYING * _FIRST_PAUSE and not (self.is_running and self._has_served)

    @property
    def _has_served(self) -> bool:
        since = self._served_since
        return since is not None and asyncio.get_running_loop().time() - since >= _SERVED

    async def start(self) -> None:
        """Start a process, and keep one running from then on.

        Raises:
            GatewayError: it could not start.
        """
        try:
            await self._start()
        except (GatewayError, OSError) as error:
            await self._end()
            raise WorkerError(str(error)) from error
        self._keeping = asyncio.create_task(self._keep(), name=f"worker {self.number}")
        self._keeping.add_done_callback(_log_failure)

    async def _start(self) -> None:
        own, other = socket.socketpair()
        self._files, files = socket.socketpair()
        self._served_since, self._is_replaced = None, False
        self._used = self._config()
        handed = self._sockets.handed(addresses_of(self._used), {})
        with own, other, files:
            inherited = [other.fileno(), files.fileno(), self._memory.descriptor]
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", _MODULE, str(other.fileno()), str(files.fileno()), str(self.number),
                pass_fds=[*inherited, *descriptors_of(handed)], env=_environment(),
                start_new_session=True,  # a terminal's signals are for the supervisor
            )  # fmt: skip
            self._calls = await WorkerCalls.over(own.dup())
        await self._calls.call("start", self._used, handed, self._memory.descriptor, within=_START_WITHIN)
        self.pid, self._served_since = self._process.pid, asyncio.get_running_loop().time()
        # Both may have changed meanwhile.
        await self.apply(self._config())
        if (level := self._level()) is not None:
            await self.call("log_level", level)

    async def apply(self, config: GatewayConfig) -> Any:  # noqa: ANN401 - see `Gateway.apply`
        """Let it use another configuration. Returns the result of `Gateway.apply`; None if it is in use already.

        Raises:
            WorkerGoneError: it does not run. Its successor will use the configuration.
            WorkerError: it cannot.
        """
        # One after the other: a worker that has just started calls this, too.
        async with self._applying:
            if self._is_replaced:
                raise WorkerGoneError("the worker is being replaced")
            if config is self._used or self._used is None:
                return None
            handed = self._sockets.handed(addresses_of(config), addresses_of(self._used))
            self._pass(descriptors_of(handed))
            applied = await self.call("apply", config, handed)
            self._used = config
            return applied

    def _pass(self, descriptors: Sequence[int]) -> None:
        if self._files is None or self.pid is None:
            raise WorkerGoneError("the worker does not run")
        try:
            pass_descriptors(self._files, descriptors)
        except OSError as error:
            raise WorkerGoneError("the worker has ended") from error

    async def call(self, name: str, *arguments: object, within: float | None = None) -> Any:  # noqa: ANN401 - any answer
        """Call it. Raises as `WorkerCalls.call` does."""
        if self._calls is None or self.pid is None:
            raise WorkerGoneError("the worker does not run")
        return await self._calls.call(name, *arguments, within=within)

    async def _keep(self) -> None:
        """Wait for the end of each process, and start the next one."""
        while True:
            process = self._process
            if process is not None:
                code = await process.wait()
                if self._is_stopping:
                    return
                if not self._is_replaced:
                    hint = {"hint": _DYING_HINT} if self.keeps_dying else {}
                    log.error("worker died", worker=self.number, pid=process.pid, exit_code=code, **hint)
                    self._died()
                await self._end()
            await self._wait_before_next()
            try:
                await self._start()
            except (GatewayError, OSError) as error:
                log.error("worker not started", worker=self.number, reason=str(error))
                await self._end()
            else:
                log.info("worker started", worker=self.number, pid=self.pid)

    async def _wait_before_next(self) -> None:
        if self._has_served:
            self._pause = 0.0
            return
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LAST_PAUSE)
        self._sockets.pause()
        await asyncio.sleep(self._pause)
        self._sockets.end_pause()

    async def _end(self) -> None:
        """End the process, if it has not ended."""
        process, self._process, self.pid = self._process, None, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
        self._memory.give_back(self.number)
        if self._files is not None:
            self._files.close()
            self._files = None
        if self._calls is not None:
            await self._calls.close()
            self._calls = None

    def kill(self) -> None:
        """Kill it. Another one replaces it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def replace(self) -> None:
        """Let this process drain, and a successor begin with the present configuration."""
        self._is_replaced = True
        await self._tell_to_stop()

    async def _tell_to_stop(self) -> int:
        try:
            return int(await self.call("stop", within=_ANSWER_WITHIN))
        except WorkerError:
            return 0

    async def begin_stop(self) -> int:
        """Let it drain, and start no successor. Returns the number of its sessions."""
        self._is_stopping = True
        if self.pid is None and self._keeping is not None:
            # It is being started, or is about to be.
            self._keeping.cancel()
        return await self._tell_to_stop()

    async def stop(self, within: float) -> None:
        """Wait until it has drained, and kill it after ``within`` seconds."""
        if self._process is not None and self.pid is not None:
            try:
                async with asyncio.timeout(within):
                    await self._process.wait()
            except TimeoutError:
                log.error("worker killed", worker=self.number, reason="it did not drain in time")
        await self.end()

    async def end(self) -> None:
        """End it at once, and start no successor."""
        await cancelled(self._keeping)
        await self._end()


def _log_failure(keeping: asyncio.Task[None]) -> None:
    if not keeping.cancelled() and (error := keeping.exception()) is not None:
        log.error("internal error", exc_info=error)


def addresses_of(config: GatewayConfig) -> Counter[ListenAddress]:
    """The number of listeners by address."""
    return Counter(listener.address for listener in config.listeners)


def _environment() -> dict[str, str]:
    """The supervisor's environment, but a worker finds the same modules, and does not notify systemd."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@dataclass(slots=True)
class Asked:
    """The answers of workers by process id. ``silent``: processes that have ended or hang. Others gave an error."""

    answers: dict[int, Any] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)


async def ask(
    workers: Iterable[WorkerProcess],
    name: str,
    *arguments: object,
    within: float | None = None,
    enough: Callable[[Collection[Any]], bool] = lambda _: False,
) -> Asked:
    """Call all running workers, each for at most ``within`` seconds, until the answers are ``enough``."""
    asked = Asked()

    async def call(worker: WorkerProcess, pid: int) -> None:
        try:
            asked.answers[pid] = await worker.call(name, *arguments, within=within)
        except WorkerGoneError:
            asked.silent.append(pid)
        except WorkerError:
            pass  # it is starting

    calls = [call(worker, worker.pid) for worker in workers if worker.pid is not None]
    for each in asyncio.as_completed(calls):
        await each
        if enough(asked.answers.values()):
            break
    # A copy, because the other calls go on.
    return Asked(asked.answers.copy(), asked.silent.copy())

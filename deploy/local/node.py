"""A private RabbitMQ node with its own ports on loopback, data, cookie and port mapper. It leaves nothing behind.

A node is two processes: the broker, and `epmd`, Erlang's port mapper, by which rabbitmqctl finds the node. A private
epmd on its own port keeps the node apart from a RabbitMQ of the system, and no daemon stays behind.
"""

import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from deploy.local.child import Child
from deploy.local.datadir import OWNER_VARIABLE, DataDirectory
from deploy.local.errors import LocalError
from deploy.local.installation import Installation
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.probe import answers_amqp, listens

_NODE_NAME = "gateway@localhost"
_DISTRIBUTION_ON_LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"
# The node's scripts source this in place of the system's file. Only here the limit can be raised for the node alone.
# A hard limit of "unlimited" may be refused: then the old one stays.
_SHELL_ENVIRONMENT = 'ulimit -n "$(ulimit -H -n)" 2>/dev/null || true\n'
_POLL = 0.1
_PROGRESS_EVERY = 10.0
_LOG_LINES_SHOWN = 12
_ERROR = re.compile(r"\[error\] <[\d.]+> ?(.*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class PrivateNode:
    """A RabbitMQ node that ends at the latest with this process. The user is guest, with passcode guest.

    Use it as a context manager, or call `start` and `stop`. After `kill`, `start` brings the same node back: same
    ports, same data.
    """

    host = LOOPBACK

    def __init__(
        self,
        installation: Installation,
        directory: DataDirectory,
        *,
        plugins: Sequence[str] = (),
        config: Sequence[str] = (),
        say: Callable[[str], None] = lambda _line: None,
        deadline: float = 120.0,
        seed: Self | None = None,
        relay: Callable[[str, int], int] | None = None,
    ) -> None:
        """Choose ports; nothing is started yet.

        Args:
            installation: whose programs to run.
            directory: where data, log and configuration live. The node releases it at `stop`.
            plugins: to enable. `rabbitmq_stomp` and `rabbitmq_management` get a port of their own; any other that
                listens needs its address in `config`.
            config: further lines for rabbitmq.conf.
            say: takes a line about the progress.
            deadline: seconds that a start may take.
            seed: a node that runs. The new node joins its cluster at its first start, and must be stopped before it.
            relay: takes the node's name and the port of the port mapper, and returns the port where the node is to ask
                for it.
        """
        self._installation = installation
        self._directory = directory
        self._say = say
        self._deadline = deadline
        self.amqp_port, self._epmd_port, self._distribution_port, stomp, management = free_ports(5)
        self.stomp_port = stomp if "rabbitmq_stomp" in plugins else None
        self.management_port = management if "rabbitmq_management" in plugins else None
        self._plugins = tuple(plugins)
        self._config = tuple(config)
        self._seed = seed
        self.name = _NODE_NAME
        if seed is not None:
            self.name = f"gateway-{self.amqp_port}@localhost"
            self._epmd_port = seed._epmd_port
            self._config += tuple(
                f"cluster_formation.classic_config.nodes.{number} = {name}"
                for number, name in enumerate((seed.name, self.name), 1)
            )
        self._mapper_port = self._epmd_port if relay is None else relay(self.name, self._epmd_port)
        self._epmd: Child | None = None
        self._server: Child | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @property
    def amqp_url(self) -> str:
        """AMQP address with credentials, virtual host /."""
        return f"amqp://guest:guest@{self.host}:{self.amqp_port}/"

    @property
    def cookie(self) -> str:
        """The secret that the nodes of a cluster share."""
        return (self.data / "home/.erlang.cookie").read_text()

    @property
    def log(self) -> Path:
        """The broker's log, with everything that it printed."""
        return self._directory.path / "rabbitmq.log"

    @property
    def data(self) -> Path:
        """The directory with everything that belongs to the node."""
        return self._directory.path

    @property
    def description(self) -> str:
        """A description for people."""
        return f"RabbitMQ {self._installation.version}".rstrip() + f", a private node in {shown(self.data)}"

    @property
    def os_pid(self) -> int:
        """Process id of the broker's virtual machine, whose memory is the broker's memory.

        Raises:
            LocalError: the node does not run.
        """
        try:
            return int(self._pid_file.read_text())
        except (OSError, ValueError) as error:
            raise LocalError("The private RabbitMQ node does not run: start it first.") from error

    @property
    def running(self) -> bool:
        """Whether the broker's process is there."""
        return self._server is not None and self._server.wait(0) is None

    def start(self) -> None:
        """Start the node and wait until it takes connections on every port.

        Raises:
            LocalError: it did not come up; the text names the log and shows its end.
        """
        try:
            self._write_configuration()
        except OSError as error:
            raise LocalError(f"Cannot write {error.filename}: {error.strerror}; check who owns it.") from error
        self._say(f"Starting a private RabbitMQ node (data in {shown(self.data)})")
        try:
            self._start()
        except LocalError:
            self._directory.keep()  # with the log that the error names
            raise

    def _start(self) -> None:
        began = time.monotonic()
        environment = self._environment()
        if self._seed is None and (self._epmd is None or self._epmd.wait(0) is not None):
            epmd = self._command(self._installation.epmd, "-port", str(self._epmd_port), "-address", LOOPBACK)
            self._epmd = self._child(epmd, environment)
            self._wait(self._epmd, "epmd", began, lambda: listens(LOOPBACK, self._epmd_port))
        self.kill()  # what a server that ended by itself may have left
        self._server = self._child(self._command(self._installation.scripts / "rabbitmq-server"), environment)
        self._wait(self._server, "RabbitMQ", began, self._ready)
        self._say(f"RabbitMQ is ready after {time.monotonic() - began:.0f} s")

    def stop(self) -> None:
        """Shut the node down, and release its directory. Calling it again does nothing."""
        try:
            for child in (self._server, self._epmd):
                if child:
                    child.stop()
        finally:
            self._directory.release()

    def shut_down(self) -> None:
        """Stop the broker in good order, as a service manager does. `start` brings it back."""
        if self._server:
            self._server.stop(self._deadline)

    def kill(self) -> None:
        """End the broker as a power cut would: SIGKILL to everything it runs."""
        if self._server:
            self._server.kill()

    def ctl(self, *arguments: str, timeout: float = 180.0, program: str = "rabbitmqctl") -> str:
        """Run rabbitmqctl against this node, e.g. `ctl("list_queues", "name", "messages")`. It takes about a second.

        Only `eval` does not: Erlang's own `erl_call` does the same in milliseconds, where there is one.

        Args:
            arguments: of rabbitmqctl.
            timeout: seconds.
            program: another of RabbitMQ's commands, `rabbitmq-queues` for example.

        Returns:
            What it printed, tables without their header and banner lines.

        Raises:
            LocalError: it failed; the text holds what it printed.
        """
        if arguments[0] == "eval" and arguments[1].isascii() and self._erl_call.exists():
            return self._evaluated(arguments[1], timeout)
        command = self._command(self._installation.scripts / program, "--quiet", *arguments)
        done = self._run(command, timeout)
        if done.returncode != 0:
            raise LocalError(f"`{program} {' '.join(arguments)}` failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def _evaluated(self, expressions: str, timeout: float) -> str:
        answer = self.data / f"answer-{secrets.token_hex(4)}"
        # As rabbitmqctl prints it, not with ~tp: that takes a list of numbers for a text more often.
        value = f"begin {expressions.rstrip().removesuffix('.')} end"
        text = f'unicode:characters_to_binary(io_lib:format("~p~n", [{value}]))'
        given = f'ok = file:write_file("{answer}", {text}).\n'
        done = self._run(self._command(self._erl_call, "-sname", self.name, "-e"), timeout, given)
        try:
            return answer.read_text()
        except FileNotFoundError:
            raise LocalError(f"`eval {expressions}` failed: {(done.stderr or done.stdout).strip()}") from None
        finally:
            answer.unlink(missing_ok=True)

    def _run(
        self, command: Sequence[str], timeout: float, given: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, env=self._environment(), input=given, capture_output=True, text=True, timeout=timeout, check=False
        )

    @property
    def _erl_call(self) -> Path:
        return self._installation.epmd.with_name("erl_call")

    def erlang(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        """The command of an Erlang of the node's release, and its environment. It finds the nodes of the cluster.

        Args:
            arguments: of `erl`.
        """
        command = self._command(
            self._installation.epmd.with_name("erl"), *_DISTRIBUTION_ON_LOOPBACK.split(), *arguments
        )
        return command, self._environment() | {"ERL_EPMD_PORT": str(self._epmd_port)}

    @property
    def _pid_file(self) -> Path:
        return self.data / "rabbitmq.pid"

    def _write_configuration(self) -> None:
        home = self.data / "home"
        home.mkdir(exist_ok=True)
        cookie = home / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(secrets.token_hex(20) if self._seed is None else self._seed.cookie)
        lines = [f"listeners.tcp.1 = {LOOPBACK}:{self.amqp_port}", "log.console = true", "log.file = false"]
        if self.stomp_port:
            lines.append(f"stomp.listeners.tcp.1 = {LOOPBACK}:{self.stomp_port}")
        if self.management_port:
            lines += [f"management.tcp.ip = {LOOPBACK}", f"management.tcp.port = {self.management_port}"]
        (self.data / "rabbitmq.conf").write_text("\n".join([*lines, *self._config]) + "\n")
        (self.data / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")
        (self.data / "environment.sh").write_text(_SHELL_ENVIRONMENT)
        self._pid_file.unlink(missing_ok=True)
        if self._server is None:
            self.log.write_bytes(b"")

    def _environment(self) -> dict[str, str]:
        """Everything that the scripts would take from the system, without inherited variables that they would use."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RABBITMQ_", "ERL_", "ERLANG_", "NOTIFY_SOCKET"))
        }
        data = str(self.data)
        return inherited | {
            OWNER_VARIABLE: data,
            "HOME": f"{data}/home",
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _DISTRIBUTION_ON_LOOPBACK,
            "RABBITMQ_CTL_ERL_ARGS": _DISTRIBUTION_ON_LOOPBACK,
            "RABBITMQ_CONF_ENV_FILE": f"{data}/environment.sh",
            "RABBITMQ_CONFIG_FILE": f"{data}/rabbitmq.conf",
            "RABBITMQ_CONFIG_FILES": f"{data}/no-more-configuration",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{data}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{data}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{data}/mnesia",
            "RABBITMQ_LOG_BASE": f"{data}/log",
            "RABBITMQ_PID_FILE": str(self._pid_file),
        }

    def _command(self, program: Path, *arguments: str) -> list[str]:
        return [*self._installation.through, str(program), *arguments]

    def _child(self, argv: list[str], environment: dict[str, str]) -> Child:
        try:
            return Child(argv, env=environment, log=self.log)
        except OSError as error:
            raise LocalError(f"Cannot start {argv[0]}: {error.strerror}; reinstall RabbitMQ.") from error

    def _ready(self) -> bool:
        others = (port for port in (self.stomp_port, self.management_port) if port)
        return answers_amqp(LOOPBACK, self.amqp_port) and all(listens(LOOPBACK, port) for port in others)

    def _wait(self, child: Child, name: str, began: float, ready: Callable[[], bool]) -> None:
        report_at = began + _PROGRESS_EVERY
        while not ready():
            now = time.monotonic()
            if child.wait(_POLL) is not None:  # the exit status is not the node's: its script hides it
                raise LocalError(self._failure(f"{name} did not start"))
            if now - began > self._deadline:
                raise LocalError(self._failure(f"{name} did not take connections within {self._deadline:.0f} s"))
            if now > report_at:
                self._say(f"Still waiting for {name} ({now - began:.0f} s)")
                report_at += _PROGRESS_EVERY

    def _failure(self, what: str) -> str:
        text = _COLOUR.sub("", self.log.read_text(errors="replace"))
        # The first errors show the cause; crash reports of other processes follow.
        errors = [line for line in _ERROR.findall(text) if line.strip()][:_LOG_LINES_SHOWN]
        lines = errors or [line for line in text.splitlines() if line.strip()][-_LOG_LINES_SHOWN:]
        return f"{what}; its log {shown(self.log)} says:\n" + "\n".join(f"  {line}" for line in lines)


def shown(path: Path) -> str:
    """The path relative to the working directory, if it is inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)

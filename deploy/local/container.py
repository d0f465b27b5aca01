"""RabbitMQ in a container, where a Docker engine answers."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import cast

import docker
from docker.errors import DockerException
from testcontainers.core.config import ConnectionMode
from testcontainers.core.container import DockerContainer

from deploy.local.errors import LocalError
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.probe import answers_amqp, listens

IMAGE = "rabbitmq:3.13-management"

_AMQP, _STOMP, _MANAGEMENT = 5672, 61613, 15672
_PROBE_TIMEOUT = 10
_POLL = 0.2


def engine_answers() -> bool:
    """Whether a Docker engine answers the library that talks to it."""
    try:
        with contextlib.closing(docker.from_env(timeout=_PROBE_TIMEOUT)) as client:
            return bool(client.ping())
    except (DockerException, OSError):
        return False


class BrokerContainer:
    """RabbitMQ's official image, started by testcontainers, whose reaper removes it even if this process is killed.

    The user is guest, with passcode guest. Host ports are fixed, so they survive `kill` and `start`.
    """

    os_pid: int | None = None  # in a namespace of its own

    def __init__(
        self,
        *,
        plugins: Sequence[str] = (),
        config: Sequence[str] = (),
        say: Callable[[str], None] = lambda _line: None,
        deadline: float = 300.0,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            plugins: to enable, and no other.
            config: further lines for rabbitmq.conf.
            say: takes a line about the progress.
            deadline: seconds that a start may take, the image's download included.
        """
        self._plugins = tuple(plugins)
        self._config = tuple(config)
        self._say = say
        self._deadline = deadline
        self._container: DockerContainer | None = None
        self.host = LOOPBACK
        self.amqp_port, stomp, management = free_ports(3)
        self.stomp_port = stomp if "rabbitmq_stomp" in plugins else None
        self.management_port = management if "rabbitmq_management" in plugins else None
        self.description = f"RabbitMQ in a container of {IMAGE}"

    @property
    def amqp_url(self) -> str:
        """AMQP address with credentials, virtual host /."""
        return f"amqp://guest:guest@{self.host}:{self.amqp_port}/"

    @property
    def running(self) -> bool:
        """Whether the container runs."""
        if self._container is None:
            return False
        try:
            self._container.reload()  # otherwise the status is that of the last command
            return self._container.status == "running"
        except (DockerException, OSError):
            return False

    def start(self) -> None:
        """Start the container, or a killed one again, and wait until it takes connections on every port.

        Raises:
            LocalError: the engine refused, or RabbitMQ did not come up.
        """
        try:
            if self._container:
                self._container.get_wrapped_container().start()
            else:
                self._say(f"Starting RabbitMQ in a container (image {IMAGE}; its first use downloads it)")
                self._container = self._describe()
                self._container.start()
                self.host = self._container.get_container_host_ip()
        except (DockerException, OSError, RuntimeError) as error:
            raise LocalError(f"Docker could not start {IMAGE}: {error}") from error
        self._wait()

    def stop(self) -> None:
        """Remove the container. Calling it again does nothing."""
        if self._container:
            self._container.stop()
            self._container = None

    def kill(self) -> None:
        """End the broker as a power cut would."""
        if self._container:
            self._container.get_wrapped_container().kill()

    def ctl(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run rabbitmqctl in the container.

        Args:
            arguments: of rabbitmqctl.
            timeout: has no effect here.

        Returns:
            What it printed, tables without their header and banner lines.

        Raises:
            LocalError: it failed; the text holds what it printed.
        """
        if self._container is None:
            raise LocalError("The RabbitMQ container does not run: start it first.")
        done = self._container.exec(["rabbitmqctl", "--quiet", *arguments])
        text = done.output.decode(errors="replace")
        if done.exit_code != 0:
            raise LocalError(f"`rabbitmqctl {' '.join(arguments)}` failed: {text.strip()}")
        return text

    def _describe(self) -> DockerContainer:
        container = DockerContainer(IMAGE)
        container.with_copy_into_container(f"[{','.join(self._plugins)}].\n".encode(), "/etc/rabbitmq/enabled_plugins")
        lines = "".join(f"{line}\n" for line in self._config)
        container.with_copy_into_container(lines.encode(), "/etc/rabbitmq/conf.d/90-local.conf")
        ports = {_AMQP: self.amqp_port, _STOMP: self.stomp_port, _MANAGEMENT: self.management_port}
        engine = container.get_docker_client()
        if engine.get_connection_mode() is ConnectionMode.docker_host and engine.host() == "localhost":
            # docker-py accepts an address with the port. Testcontainers passes it on, though its types do not allow it.
            bound = {f"{inside}/tcp": (LOOPBACK, outside) for inside, outside in ports.items() if outside}
            container.ports.update(cast("dict[str, int | None]", bound))
        else:  # an engine on another host, or this process runs in a container: its loopback is not ours
            for inside, outside in ports.items():
                if outside:
                    container.with_bind_ports(inside, outside)
        return container

    def _ready(self) -> bool:
        others = (port for port in (self.stomp_port, self.management_port) if port)
        return answers_amqp(self.host, self.amqp_port) and all(listens(self.host, port) for port in others)

    def _wait(self) -> None:
        ends = time.monotonic() + self._deadline
        while not self._ready():
            if not self.running:
                raise LocalError(f"RabbitMQ in a container of {IMAGE} ended at once: `docker logs` tells why.")
            if time.monotonic() > ends:
                raise LocalError(f"RabbitMQ in a container of {IMAGE} was not up after {self._deadline:.0f} s.")
            time.sleep(_POLL)

"""`make run`, in a process of its own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from deploy.local.broker import Broker
from deploy.local.datadir import DataDirectory
from deploy.local.debian import can_install
from deploy.local.installation import Installation
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.probe import listens
from tests.support.stomp_client import StompClient

_DEADLINE = 60.0

needs_a_private_broker = pytest.mark.skipif(
    Installation.find() is None and not can_install(),
    reason="RabbitMQ is not installed here, and in a container there is no process of ours to kill",
)

# As much of nc as the example needs: it copies standard input to the port, and the answers to standard output.
_NC = """\
#!{python}
import socket, sys, threading
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    def forward():
        while data := sys.stdin.buffer.raw.read(4096):
            connection.sendall(data)
    threading.Thread(target=forward, daemon=True).start()
    while data := connection.recv(4096):
        sys.stdout.buffer.raw.write(data)
"""


@dataclass
class Job:
    """A running `make run`, its port, and what it printed up to the line about Ctrl-C."""

    process: "subprocess.Popen[str]"
    port: int
    printed: str

    def example(self, first: str, last: str) -> str:
        lines = self.printed.splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith(first))
        end = next(number for number, line in enumerate(lines) if line.endswith(last))
        return "\n".join(lines[start : end + 1])


def _command(directory: Path) -> list[str]:
    return [sys.executable, "-m", "deploy.local.run", "--directory", str(directory)]


def _environment(**variables: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"AMQP_URL", "STOMP_PORT"}} | variables


@contextmanager
def _job(directory: Path, **variables: str) -> Iterator[Job]:
    [port] = free_ports(1)
    with (directory / "stderr").open("w") as errors:
        process = subprocess.Popen(
            _command(directory),
            env=_environment(STOMP_PORT=str(port), **variables),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with process:
        try:
            yield Job(process, port, _printed(process, directory))
        finally:
            process.terminate()
            process.wait(_DEADLINE)


def _printed(process: "subprocess.Popen[str]", directory: Path) -> str:
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C stops"):
            return "".join(lines)
    raise AssertionError("".join(lines) + (directory / "stderr").read_text())


def _refusal(directory: Path, **variables: str) -> str:
    """The error when it cannot start."""
    done = subprocess.run(
        _command(directory),
        env=_environment(**variables),
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # orphaned, until init collects it
    except psutil.NoSuchProcess:
        return False


def _children(job: Job) -> list[psutil.Process]:
    return psutil.Process(job.process.pid).children(recursive=True)


def test_a_port_that_is_taken_is_an_error_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        error = _refusal(tmp_path / "run", STOMP_PORT=str(port))

    assert error == (
        f"run: Port {port} on 127.0.0.1 is taken: stop the program that listens there, "
        f"or choose another, e.g. STOMP_PORT={port + 1} make run.\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("port", ["no", "0", "65536", "-1", "٣"])
def test_an_invalid_port_is_refused(tmp_path: Path, port: str) -> None:
    assert f"STOMP_PORT is {port!r}, which is no port" in _refusal(tmp_path, STOMP_PORT=port)


@pytest.mark.system
def test_refused_credentials_are_an_error_before_the_gateway_starts(tmp_path: Path, broker: Broker) -> None:
    [port] = free_ports(1)
    url = f"amqp://guest:secret@{broker.host}:{broker.amqp_port}"
    error = _refusal(tmp_path, AMQP_URL=url, STOMP_PORT=str(port))

    assert "The broker cannot be used as AMQP_URL says; correct that, or unset it:" in error
    assert "secret" not in error


@pytest.mark.system
def test_its_examples_work(tmp_path: Path, broker: Broker) -> None:
    nc = tmp_path / "nc"
    nc.write_text(_NC.format(python=sys.executable))
    nc.chmod(0o755)
    with _job(tmp_path, AMQP_URL=broker.amqp_url) as job:
        shell = job.example("(printf", f"nc 127.0.0.1 {job.port}")
        path = f"{tmp_path}:{os.environ['PATH']}"
        answer = subprocess.check_output(["sh", "-c", shell], env={"PATH": path}, timeout=_DEADLINE)
        python = job.example("import stomp", "c.disconnect()").replace('"the passcode in AMQP_URL"', '"guest"')
        with subprocess.Popen(
            [sys.executable, "-u", "-c", python], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as client:
            assert client.stdin
            assert client.stdout
            received = next(line for line in client.stdout if "Hello" in line)
            client.communicate("\n", timeout=_DEADLINE)

    assert answer.startswith(b"CONNECTED\n")
    assert answer.count(b"MESSAGE\n") == 1
    assert b"\n\nHello\0" in answer
    assert received
    assert client.returncode == 0


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_cleanly_and_nothing_is_left(tmp_path: Path, broker: Broker, number: signal.Signals) -> None:
    with _job(tmp_path, AMQP_URL=broker.amqp_url) as job:
        children = _children(job)
        job.process.send_signal(number)
        assert job.process.stdout
        printed_at_the_end = job.process.stdout.read()
        status = job.process.wait(_DEADLINE)

    assert printed_at_the_end.strip() == "Stopped."
    assert status == 0
    assert children
    assert [child for child in children if _runs(child)] == []
    assert not listens(LOOPBACK, job.port)
    assert broker.running


@pytest.mark.system
@needs_a_private_broker
def test_when_the_gateway_dies_the_broker_is_stopped_and_nothing_is_left(tmp_path: Path) -> None:
    with _job(tmp_path) as job:
        children = _children(job)
        _kill("gateway", job)
        status = job.process.wait(_DEADLINE)

    assert status == 2
    assert "The gateway ended by itself" in (tmp_path / "stderr").read_text()
    _require_nothing_left(children, tmp_path)


@pytest.mark.system
@needs_a_private_broker
async def test_a_broker_that_dies_is_started_again_and_clients_stay(tmp_path: Path) -> None:
    with _job(tmp_path) as job:
        async with StompClient.logged_in((LOOPBACK, job.port), login="guest", passcode="guest") as client:
            await client.ask("SUBSCRIBE", id="1", destination="/topic/news")
            _kill("beam.smp", job)
            client.write("SEND", b"after", destination="/topic/news")
            message = await client.receive(_DEADLINE)
            assert (message.command, message.body) == ("MESSAGE", b"after")
        children = _children(job)
        _kill("beam.smp", job)
        status = job.process.wait(_DEADLINE)

    assert status == 2
    assert "RabbitMQ ended by itself again" in (tmp_path / "stderr").read_text()
    _require_nothing_left(children, tmp_path)


def _kill(victim: str, job: Job) -> None:
    [process] = [child for child in _children(job) if victim in (Path(child.cmdline()[0]).name, *child.cmdline())]
    process.kill()


def _require_nothing_left(children: list[psutil.Process], directory: Path) -> None:
    assert [child for child in children if _runs(child)] == []
    DataDirectory(directory / "rabbitmq").release()  # which would be refused to a second owner

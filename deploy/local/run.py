"""`make run`: a RabbitMQ, the gateway in front of it, and examples of their use.

AMQP_URL in the environment names a broker to use instead of a private one, STOMP_PORT the port to listen on.
Exit codes: 0 stopped by Ctrl-C or SIGTERM, 1 could not start, 2 the gateway ended by itself, or RabbitMQ did
twice within a minute: the first time it is started again.
"""

import argparse
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

from deploy.local.address import Address
from deploy.local.broker import FOR_RUNNING, VAR, Broker, running
from deploy.local.child import Child
from deploy.local.errors import LocalError
from deploy.local.gateway_config import write_configuration
from deploy.local.node import shown
from deploy.local.ports import LOOPBACK, free_ports

_OK, _NOT_STARTED, _DIED = 0, 1, 2
_DEFAULT_PORT = 61613
_ADMIN_PORT = 15693
_GATEWAY_DEADLINE = 30.0
_WATCH_EVERY = 0.5
_BROKER_LIVES_AT_LEAST = 60.0
"""Seconds. A private broker that ends sooner after its start is not started again."""

# The examples are not indented, so that they can be pasted.
_BANNER = """
Gateway   STOMP on {host}:{port}, configuration in {config}
Broker    {broker}, AMQP on {amqp_host}:{amqp_port}
Look in   http://{host}:{admin_port}/ shows what goes on, /metrics is for Prometheus

To talk to it with stomp.py, in {python}:

import stomp; c = stomp.Connection([("{host}", {port})]); c.set_listener("", stomp.PrintingListener())
c.connect("{login}", {passcode}, wait=True); c.subscribe("/queue/hello", id=1)
c.send("/queue/hello", "Hello"); input("Enter ends this\\n"); c.disconnect()

or with nc, in a shell:

(printf 'CONNECT\\naccept-version:1.2\\nhost:localhost\\n\\n\\0SUBSCRIBE\\nid:1\\ndestination:/queue/hello\\n\\n\\0'
printf 'SEND\\ndestination:/queue/hello\\n\\nHello\\0'; sleep 1; printf 'DISCONNECT\\n\\n\\0') | nc {host} {port}

Ctrl-C stops {both}.
"""


class _StopRequested(BaseException):
    """A signal asked the program to stop."""


class _DiedError(Exception):
    """The gateway or the broker ended by itself."""


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run until asked to stop.

    Args:
        arguments: without the program's name; the process's own when absent.
        environ: AMQP_URL and STOMP_PORT, both optional.

    Returns:
        The exit code, as the module describes.
    """
    parser = argparse.ArgumentParser(
        prog="python -m deploy.local.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=VAR / "run", help="for configuration and data (%(default)s)")
    options = parser.parse_args(arguments)
    _stop_by_signals()
    try:
        _run(options.directory.absolute(), environ)
    except LocalError as error:
        return _failed(error, _NOT_STARTED)
    except _DiedError as error:
        return _failed(error, _DIED)
    except _StopRequested:
        say("Stopped.")
    return _OK


def say(line: str) -> None:
    """Print a line at once. A closed terminal is not an error."""
    with contextlib.suppress(OSError):
        print(line, flush=True)


def _stop_by_signals() -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)  # ignore further signals: the clean-up has its own time limits
        raise _StopRequested

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, stop)


def _failed(error: Exception, code: int) -> int:
    with contextlib.suppress(OSError):
        print(f"run: {error}", file=sys.stderr, flush=True)
    return code


def _run(directory: Path, environ: Mapping[str, str]) -> None:
    port = _stomp_port(environ)
    _require_free(port)  # before a broker is started, or even installed
    given = bool(environ.get("AMQP_URL"))
    with running(order=FOR_RUNNING, data_dir=directory / "rabbitmq", environ=environ, say=say) as broker:
        config = directory / "gateway.yaml"
        address = Address.parse(broker.amqp_url)
        admin_port = _admin_port()
        secrets = write_configuration(config, address, port, admin_port)
        environment = {**environ, **secrets}
        if given:
            _check(config, environment)
        with _gateway(config, environment, port) as gateway:
            say(_banner(port, admin_port, config, broker, address, given))
            _watch(gateway, broker)


def _stomp_port(environ: Mapping[str, str]) -> int:
    text = environ.get("STOMP_PORT") or str(_DEFAULT_PORT)
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 16:
        raise LocalError(f"STOMP_PORT is {text!r}, which is no port: give a number from 1 to 65535.")
    return int(text)


def _admin_port() -> int:
    """The default port of the admin listener, or another one: RabbitMQ's own metrics use the same."""
    try:
        _require_free(_ADMIN_PORT)
    except LocalError:
        return free_ports(1)[0]
    return _ADMIN_PORT


def _require_free(port: int) -> None:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore connections in TIME_WAIT
        try:
            trial.bind((LOOPBACK, port))
        except OSError as error:
            raise LocalError(_port_advice(port, error)) from error


def _port_advice(port: int, error: OSError) -> str:
    other = f"choose another, e.g. STOMP_PORT={port + 1 if port >= 1024 else _DEFAULT_PORT} make run."  # noqa: PLR2004
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {LOOPBACK} is taken: stop the program that listens there, or {other}"
    if error.errno == errno.EACCES:
        return f"You are not permitted to listen on port {port}: {other}"
    return f"Cannot listen on port {port} of {LOOPBACK} ({error.strerror}): {other}"


def _check(config: Path, environment: Mapping[str, str]) -> None:
    """Let the gateway check login and virtual host, which a broker that AMQP_URL names may refuse."""
    command = [sys.executable, "-m", "gateway", "check", "--config", str(config)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        answer = (done.stdout + done.stderr).strip()
        raise LocalError(f"The broker cannot be used as AMQP_URL says; correct that, or unset it:\n{answer}")


@contextlib.contextmanager
def _gateway(config: Path, environment: Mapping[str, str], port: int) -> Iterator[Child]:
    with Child([sys.executable, "-m", "gateway", "serve", "--config", str(config)], env=environment) as gateway:
        ends = time.monotonic() + _GATEWAY_DEADLINE
        while not _listens(gateway, port):
            if (status := gateway.wait(0.1)) is not None:
                raise LocalError(f"The gateway did not start (exit status {status}): it said why, just above.")
            if time.monotonic() > ends:
                raise LocalError(f"The gateway did not listen within {_GATEWAY_DEADLINE:.0f} s; what it said is above.")
        yield gateway


def _listens(gateway: Child, port: int) -> bool:
    """Whether the gateway listens on the port. Unlike a trial connection, this leaves no session in its log."""
    try:
        connections = psutil.Process(gateway.pid).net_connections("tcp4")
    except psutil.Error:  # it has ended, as the caller will notice
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)


def _watch(gateway: Child, broker: Broker) -> None:
    started = -_BROKER_LIVES_AT_LEAST  # the first time, it is always started again
    while True:
        if (status := gateway.wait(_WATCH_EVERY)) is not None:
            raise _DiedError(f"The gateway ended by itself (exit status {status}); what it said is above.")
        if broker.running:
            continue
        if time.monotonic() - started < _BROKER_LIVES_AT_LEAST:
            raise _DiedError(f"RabbitMQ ended by itself again, so the gateway is stopped too ({broker.description}).")
        say("RabbitMQ ended by itself. It is started again; meanwhile the gateway keeps its clients.")
        broker.start()
        started = time.monotonic()


def _banner(port: int, admin_port: int, config: Path, broker: Broker, address: Address, given: bool) -> str:
    return _BANNER.format(
        host=LOOPBACK,
        port=port,
        admin_port=admin_port,
        config=shown(config),
        broker=broker.description,
        amqp_host=broker.host,
        amqp_port=broker.amqp_port,
        python=shown(Path(sys.executable)),
        login=address.login,
        passcode='"the passcode in AMQP_URL"' if given else f'"{address.passcode}"',
        both="the gateway" if given else "both",
    )


if __name__ == "__main__":
    sys.exit(main())

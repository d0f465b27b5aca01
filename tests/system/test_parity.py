"""`stomp-gateway parity` as a process, on the plugin and on a gateway of one broker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deploy.local.broker import Broker
from deploy.local.given import GivenBroker
from gateway.errors import ExitCode
from gateway.parity.transcript import load_transcripts
from tests.support.deadline import PATIENCE
from tests.support.gateway import Address, configuration, gateway_process
from tests.support.transcripts import identity

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@contextmanager
def parity(plugin: Address, gateway: Address, broker_url: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    user = identity(broker_url)
    servers = ["--plugin", f"{plugin[0]}:{plugin[1]}", "--gateway", f"{gateway[0]}:{gateway[1]}", "--amqp", broker_url]
    command = [sys.executable, "-m", "gateway", "parity", *servers, "--login", user.login, "--host", user.host, *more]
    environment = {**os.environ, "STOMP_PASSCODE": user.passcode}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def before(broker: Broker) -> set[str]:
    """The queues and exchanges before anything is played; empty for a broker that AMQP_URL names."""
    return set() if isinstance(broker, GivenBroker) else _made(broker)


def _wait_until_nothing_is_left(broker: Broker, before: set[str]) -> None:
    """Wait until all is gone; an exclusive queue goes with its connection, which a server closes when it sees it go."""
    deadline = time.monotonic() + PATIENCE
    while left := _made(broker) - before:
        assert time.monotonic() < deadline, left


def _made(broker: Broker) -> set[str]:
    """The queues and exchanges of the virtual host /, in one call, since rabbitmqctl takes a second to start."""
    names = broker.ctl("eval", "rabbit_amqqueue:list_names() ++ rabbit_exchange:list_names().")
    found = set(re.findall(r'\{resource,\s*<<"/">>,\s*(.*?)\}', names, re.DOTALL))
    assert any("amq.topic" in name for name in found)
    return found


@dataclass(frozen=True)
class Whole:
    """The result of a run of all transcripts."""

    returncode: int
    printed: str
    errors: str


@pytest.fixture(scope="module")
def whole(before: set[str], plugin_address: Address, gateway_address: Address, broker_url: str) -> Whole:
    """Run once, after `before` has listed the broker's queues."""
    del before
    with parity(plugin_address, gateway_address, broker_url) as process:
        printed, errors = process.communicate(timeout=300)
    return Whole(process.returncode, printed, errors)


def test_no_rule_is_different(whole: Whole) -> None:
    assert (whole.returncode, whole.errors) == (ExitCode.OK, ""), whole.printed
    assert "DIFFERENT  " not in whole.printed
    plain = [each.name for each in load_transcripts() if each.setup == "plain"]
    others = [each.name for each in load_transcripts() if each.setup != "plain"]
    outcomes = {words[1]: words[0] for line in whole.printed.splitlines() if len(words := line.split()) > 1}
    assert {outcomes[name] for name in plain} == {"equal", "departure"}
    assert {outcomes[name] for name in others} <= {"skipped"}


def test_nothing_is_left_in_the_broker(own_broker: Broker, before: set[str], whole: Whole) -> None:
    assert whole.returncode == ExitCode.OK
    _wait_until_nothing_is_left(own_broker, before)


@pytest.mark.parametrize(
    ("number", "code", "rules"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED, 1),
        (signal.SIGTERM, ExitCode.TERMINATED, 20),
        (signal.SIGINT, ExitCode.INTERRUPTED, 60),
        pytest.param(signal.SIGTERM, ExitCode.TERMINATED, 1, marks=pytest.mark.brokers),
        pytest.param(signal.SIGINT, ExitCode.INTERRUPTED, 20, marks=pytest.mark.brokers),
        pytest.param(signal.SIGTERM, ExitCode.TERMINATED, 60, marks=pytest.mark.brokers),
    ],
)
def test_a_signal_leaves_nothing_in_the_broker(
    number: signal.Signals,
    code: ExitCode,
    rules: int,
    own_broker: Broker,
    before: set[str],
    plugin_address: Address,
    gateway_address: Address,
    broker_url: str,
) -> None:
    with parity(plugin_address, gateway_address, broker_url, "--jobs", "32") as process:
        assert process.stdout is not None
        outcomes = (line for line in process.stdout if line.startswith(("equal", "departure")))
        for _ in range(rules):
            next(outcomes)
        process.send_signal(number)
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (code, "")
    _wait_until_nothing_is_left(own_broker, before)


def test_a_closed_standard_output_ends_it_silently(
    own_broker: Broker, before: set[str], plugin_address: Address, gateway_address: Address, broker_url: str
) -> None:
    with parity(plugin_address, gateway_address, broker_url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        next(line for line in process.stdout if line.startswith(("equal", "departure")))
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(timeout=300)
    assert (process.returncode, errors) == (ExitCode.FAILURE, "")
    _wait_until_nothing_is_left(own_broker, before)


def test_a_gateway_that_passes_every_host_on_is_equal(plugin_address: Address, broker_url: str) -> None:
    """As `migrate` configures it; without "*" these two depart."""
    with gateway_process(configuration(broker_url, virtual_hosts={"/": None, "*": None})) as process:
        with parity(plugin_address, process.address, broker_url, "--only", "connect/*") as comparison:
            output, _ = comparison.communicate(timeout=300)
    assert comparison.returncode == ExitCode.OK
    assert output.count("(this gateway does as the plugin does)") == 2


def test_servers_of_different_virtual_hosts_are_an_error_before_anything_is_played(
    own_broker: Broker, before: set[str], plugin_address: Address, broker_url: str
) -> None:
    """As with a gateway that maps the name to another virtual host of the broker."""
    own_broker.ctl("add_vhost", "parity-elsewhere")
    own_broker.ctl("set_permissions", "-p", "parity-elsewhere", identity(broker_url).login, ".*", ".*", ".*")
    elsewhere = configuration(broker_url, virtual_hosts={"/": {"amqp_vhost": "parity-elsewhere"}})
    with gateway_process(elsewhere) as other, parity(plugin_address, other.address, broker_url) as process:
        printed, errors = process.communicate(timeout=300)
    assert process.returncode == ExitCode.FAILURE
    assert f"what is sent through the gateway at {other.address[0]}:{other.address[1]} does not arrive" in errors
    assert "--plugin, --gateway and --amqp must be of the same broker" in errors
    assert not [line for line in printed.splitlines() if line.startswith(("equal", "DIFFERENT"))]
    _wait_until_nothing_is_left(own_broker, before)


def test_a_user_without_permissions_is_an_error_in_one_sentence(
    own_broker: Broker, plugin_address: Address, gateway_address: Address, broker_url: str
) -> None:
    own_broker.ctl("add_user", "parity-weak", "parity-weak")
    own_broker.ctl("set_permissions", "parity-weak", "", "", ".*")
    parts = urlsplit(broker_url)
    weak = parts._replace(netloc=f"parity-weak:parity-weak@{parts.hostname}:{parts.port}").geturl()
    with parity(plugin_address, gateway_address, weak) as process:
        printed, errors = process.communicate(timeout=300)
    assert process.returncode == ExitCode.FAILURE
    assert "refuses 'parity-weak' a queue" in errors
    assert "needs the right to configure, write and read everything" in errors
    assert "DIFFERENT" not in printed

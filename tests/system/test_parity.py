"""`stomp-gateway parity` as a process, on the plugin and on a gateway of one broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.broker import Broker
from gateway.errors import ExitCode
from gateway.parity.library import conversations
from tests.support.gateway import Address
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


def test_no_rule_is_different(plugin_address: Address, gateway_address: Address, broker_url: str) -> None:
    with parity(plugin_address, gateway_address, broker_url) as process:
        printed, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (ExitCode.OK, ""), printed
    assert "DIFFERENT  " not in printed
    plain = [each.name for each in conversations() if each.setup == "plain"]
    others = [each.name for each in conversations() if each.setup != "plain"]
    outcomes = {words[1]: words[0] for line in printed.splitlines() if len(words := line.split()) > 1}
    assert {outcomes[name] for name in plain} == {"equal", "departure"}
    assert {outcomes[name] for name in others} <= {"skipped"}


def _made(broker: Broker) -> set[str]:
    kinds = ("queues", "exchanges")
    return {line for kind in kinds for line in broker.ctl("--quiet", f"list_{kind}", "name").splitlines()}


@pytest.mark.parametrize("interrupted", [False, True])
def test_nothing_is_left_in_the_broker(
    interrupted: bool, own_broker: Broker, plugin_address: Address, gateway_address: Address, broker_url: str
) -> None:
    before = _made(own_broker)
    with parity(plugin_address, gateway_address, broker_url) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith(("equal", "departure")))
        if interrupted:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode == (ExitCode.INTERRUPTED if interrupted else ExitCode.OK)
    assert _made(own_broker) - before == set()

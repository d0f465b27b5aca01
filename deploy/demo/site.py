"""A broker with the demonstration's users, and a gateway with a journal in front of it."""

import base64
import contextlib
import json
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import quote

import yaml

from deploy.demo import sensors, shop
from deploy.local.address import Address
from deploy.local.broker import Broker
from deploy.local.child import Child
from deploy.local.errors import LocalError
from deploy.local.node import shown
from deploy.local.ports import LOOPBACK
from deploy.local.probe import listens

_AUTHORIZATION: Final = "Basic " + base64.b64encode(b"guest:guest").decode()  # of a private node on loopback
_START_TIMEOUT: Final = 120.0
"""Seconds that the gateway may take to listen."""
_STOP_TIMEOUT: Final = 40.0
"""Seconds that it may take to stop; more than its drain_timeout."""

ARCHIVE: Final = "prices-archive"
ARCHIVED: Final = "/topic/prices."
"""The stream of the shop's archive, and how the destinations begin whose messages it keeps."""
REPLAYED: Final = "/queue/prices-again"

_PERMITTED: Final = "^(?!secret$).*"
"""The names that users have permission for."""


def prepare_broker(broker: Broker) -> str:
    """Create virtual hosts, users and queues.

    Args:
        broker: has the management plugin, and guest as administrator.

    Returns:
        The passcode of every user.

    Raises:
        LocalError: the management interface refused something.
    """
    passcode = secrets.token_urlsafe(12)
    for host, users in ((shop.HOST, shop.USERS), (sensors.HOST, sensors.USERS)):
        _put(broker, "vhosts", host)
        _put(broker, "permissions", host, "guest", configure=".*", write=".*", read=".*")
        for user in users:
            _put(broker, "users", user, password=passcode, tags="")
            _put(
                broker,
                "permissions",
                host,
                user,
                configure=_PERMITTED,
                write=_PERMITTED,
                read=_PERMITTED,
            )
    for name, arguments in shop.QUEUES.items():
        _put(broker, "queues", shop.HOST, name, durable=True, arguments=arguments)
    return passcode


def _put(broker: Broker, *path: str, **body: object) -> None:
    assert broker.management_port is not None  # noqa: S101 - asked for when it was started
    target = "/api/" + "/".join(quote(part, safe="") for part in path)
    try:
        with contextlib.closing(HTTPConnection(broker.host, broker.management_port, timeout=20)) as connection:
            headers = {"Authorization": _AUTHORIZATION, "Content-Type": "application/json"}
            connection.request("PUT", target, json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise LocalError(f"RabbitMQ's management interface did not take {target}: {error}") from error
    if answer.status >= 300:  # noqa: PLR2004 - all below are HTTP successes
        raise LocalError(f"RabbitMQ's management interface refused {target}: {answer.status} {text}")


def write_configuration(path: Path, broker: Broker, port: int, journal: Path | None) -> None:
    """Write the gateway's configuration: one virtual host is journalled in full, the other one in sums.

    Args:
        path: the file.
        broker: where the users are.
        port: TCP port for STOMP.
        journal: the directory of the journal; None for no journal.
    """
    if journal is None:
        levels, in_files = ["off", "off"], {}
    else:
        levels, in_files = ["message", "session"], {"directory": str(journal), "rotate_after": "10s", "node": "demo"}
    archive = {"stream": ARCHIVE, "destinations": [f"{ARCHIVED}*"], "user": {"login": "guest", "passcode": "guest"}}
    document = {
        "listeners": [{"tcp": f"{LOOPBACK}:{port}"}],
        "upstream": {"urls": [Address.parse(broker.amqp_url).upstream]},
        "default_vhost": shop.HOST,
        "defaults": {
            "default_user": None,
            "confirm_window": {"messages": 500},  # small, so that a client has to wait
            "journal": in_files,
        },
        "virtual_hosts": {
            shop.HOST: {"journal": {"level": levels[0]}, "archives": [archive]},
            sensors.HOST: {"journal": {"level": levels[1]}},
        },
        "admin": {"address": None},
        "logging": {"level": "warning", "format": "console"},
    }
    path.write_text("# Written by `make demo-pipeline`, anew each time.\n" + yaml.safe_dump(document, sort_keys=False))


@contextlib.contextmanager
def gateway(config: Path, port: int, log: Path) -> Iterator[Child]:
    """Run a gateway, and stop it with SIGTERM, so that it closes its journal.

    Raises:
        LocalError: it did not start, or did not end with 0.
    """
    with Child([sys.executable, "-m", "gateway", "serve", "--config", str(config)], log=log) as child:
        ends = time.monotonic() + _START_TIMEOUT
        while not listens(LOOPBACK, port):
            if child.wait(0.1) is not None or time.monotonic() > ends:
                raise LocalError(f"The gateway did not start; its log {shown(log)} says:\n{_end_of(log)}")
        yield child
        child.stop(grace=_STOP_TIMEOUT)
        if status := child.wait(0):
            raise LocalError(f"The gateway ended with {status}; its log {shown(log)} says:\n{_end_of(log)}")


def _end_of(log: Path) -> str:
    return "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-12:])


def command(arguments: Sequence[str], log: Path | None = None) -> int:
    """Run `stomp-gateway` to its end, and return its exit code; its output goes to ``log`` if given."""
    with Child([sys.executable, "-m", "gateway", *arguments], log=log) as child:
        status = child.wait()
    assert status is not None  # noqa: S101 - without a time limit it is known
    return status

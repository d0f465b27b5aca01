"""The client libraries: where each is found, and what it supports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
NODE_MODULES: Final = HERE.parents[1] / "var" / "clients" / "node" / "node_modules"
"""Where `make clients` has npm install, outside the sources."""

EVERY_FRAME: Final = frozenset(
    ("subscribe", "unsubscribe", "send", "ack", "nack", "begin", "commit", "abort", "disconnect")
)
"""The requests that can have a receipt."""


def _environment() -> dict[str, str]:
    return {**os.environ, "NODE_PATH": str(NODE_MODULES)}


def _always() -> str | None:
    return None


@dataclass(frozen=True)
class Library:
    """A client library.

    ``arguments`` are the command line of its program, without the interpreter. ``receipts`` are the requests for which
    it can ask for a receipt and tell when it came. ``escapes`` are the versions of STOMP in which it escapes headers,
    ``heart_beats`` those in which it sends and takes heart-beats, ``refuses_in`` those in which it has NACK, and
    ``sends_host`` those in which it sends the server's address as ``host`` by default.
    ``missing`` gives the reason why it cannot run here, or None. The output of ``version`` is for people.
    """

    name: str
    interpreter: str
    arguments: Sequence[str]
    versions: Sequence[str] = ("1.0", "1.1", "1.2")
    refuses_in: Sequence[str] = ("1.1", "1.2")
    receipts: frozenset[str] = EVERY_FRAME
    escapes: Sequence[str] = ("1.1", "1.2")
    heart_beats: Sequence[str] = ("1.1", "1.2")
    temporary_queues: bool = True
    acknowledges_in_transactions: bool = True
    sends_host: Sequence[str] = ()
    chooses_host: bool = True
    chooses_subscription_id: bool = True
    shows_connected: bool = True
    missing: Callable[[], str | None] = _always

    @property
    def in_python(self) -> bool:
        """Whether it runs in the normal suite."""
        return self.interpreter == sys.executable

    def command(self) -> list[str]:
        """Command line of its program."""
        return [self.interpreter, *self.arguments]

    def environment(self) -> dict[str, str]:
        """Environment of its program."""
        return _environment()


def _lacks(*probe: str, package: str) -> Callable[[], str | None]:
    def missing() -> str | None:
        if shutil.which(probe[0]) is None:
            return f"{probe[0]} is not installed; `make clients` installs it (package {package}) when run as root"
        done = subprocess.run(probe, env=_environment(), capture_output=True, check=False, timeout=60)
        return None if done.returncode == 0 else f"{package} is not installed; `make clients` installs it"

    return missing


def _program(name: str) -> str:
    return str(HERE / "programs" / name)


STOMP_PY: Final = Library(
    "stomp.py", sys.executable, ["-m", "tests.clients.programs.talk_stomp_py"], sends_host=("1.2",)
)
STOMPMAN: Final = Library(
    "stompman",
    sys.executable,
    ["-m", "tests.clients.programs.talk_stompman"],
    versions=("1.2",),
    receipts=frozenset(("subscribe", "send", "disconnect")),
    heart_beats=("1.2",),
    temporary_queues=False,
    acknowledges_in_transactions=False,
    sends_host=("1.2",),
    chooses_host=False,
    chooses_subscription_id=False,
    shows_connected=False,
)
RUBY: Final = Library(
    "ruby",
    "ruby",
    [_program("talk.rb")],
    sends_host=("1.1", "1.2"),
    missing=_lacks("ruby", "-e", "require 'stomp'", package="ruby-stomp"),
)
PERL: Final = Library(
    "perl",
    "perl",
    [_program("talk.pl")],
    refuses_in=("1.0", "1.1", "1.2"),
    escapes=(),
    heart_beats=(),
    missing=_lacks("perl", "-MNet::Stomp", "-MJSON::PP", "-e", "1", package="libnet-stomp-perl"),
)
NODE: Final = Library(
    "node",
    "node",
    [_program("talk.cjs")],
    refuses_in=("1.0", "1.1", "1.2"),
    receipts=EVERY_FRAME - {"begin", "commit", "abort"},
    escapes=("1.2",),
    missing=_lacks(
        "node", str(HERE / "programs" / "talk.cjs"), "version", package="@stomp/stompjs with @stomp/tcp-wrapper and ws"
    ),
)

LIBRARIES: Final = (STOMP_PY, STOMPMAN, RUBY, PERL, NODE)

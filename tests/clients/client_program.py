"""The program of a client library: it carries out requests and answers with what the library received.

Program and test exchange JSON, one object on each line. The test writes ``{"do": "receive", "connection": "a"}``; the
program waits for a message from the library and writes ``{"headers": {...}, "body": "..."}``. So one conversation
serves all libraries, in any language. README.md in this directory lists the requests.
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any, Final

from tests.clients.library import Library

ROOT: Final = Path(__file__).parents[2]

_ANSWER_TIMEOUT: Final = 30.0
"""Seconds that one answer may take; only a failing test waits so long."""

Address = tuple[str, int]
Seen = dict[str, Any]


class ClientFailedError(AssertionError):
    """A program could not carry out a request, or did not answer."""


class ClientProgram:
    """The program of one library, for one server.

    Args:
        library: to start the program of.
        side: what to call the server when something fails.
        address: of the server.
        virtual_host: what its connections send as ``host`` unless told otherwise.
    """

    def __init__(self, library: Library, side: str, address: Address, virtual_host: str | None) -> None:
        self._name = f"{library.name} with the {side}"
        self._address = address
        self._virtual_host = virtual_host
        self._errors = tempfile.TemporaryFile()
        self._child = subprocess.Popen(
            library.command(),
            cwd=ROOT,
            env=library.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, do: str, connection: str, **arguments: Any) -> Seen:  # noqa: ANN401 - JSON has every type
        """Send a request to the program.

        Args:
            do: the kind of request.
            connection: its name in the program, for example ``a``.
            **arguments: depend on the kind.

        Returns:
            What the library returned or received.

        Raises:
            ClientFailedError: the library refused, or nothing came.
        """
        assert self._child.stdin is not None
        request = json.dumps({"do": do, "connection": connection, **arguments})
        try:
            self._child.stdin.write(request + "\n")
            self._child.stdin.flush()
            answer = self._answers.get(timeout=_ANSWER_TIMEOUT)
        except (queue.Empty, BrokenPipeError):
            answer = ""
        seen: Seen = json.loads(answer) if answer else {"failed": f"no answer; it wrote: {self._error_output()}"}
        if "failed" in seen:
            raise ClientFailedError(f"{self._name}: {request}: {seen['failed']}")
        return seen

    def _error_output(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def connect(self, connection: str, version: str, dialled: str = "", **arguments: Any) -> Seen:  # noqa: ANN401
        """Open a connection as guest and log in.

        Args:
            connection: name for it.
            version: of STOMP.
            dialled: another name for the server's address.
            **arguments: to use instead of the usual ones.

        Returns:
            ``connected`` with the headers of CONNECTED, or ``refused`` with the ERROR.
        """
        usual = {
            "address": (dialled or self._address[0], self._address[1]),
            "login": "guest",
            "passcode": "guest",
            "virtual_host": self._virtual_host,
            "version": version,
            "heart_beat": [0, 0],
        }
        return self.ask("connect", connection, **usual | arguments)

    def receive(self, connection: str) -> Seen:
        """The next MESSAGE of a connection: ``headers`` and ``body``."""
        return self.ask("receive", connection)

    def subscribe(
        self, connection: str, destination: str, identifier: str = "s", headers: Mapping[str, str] | None = None
    ) -> Seen:
        """Subscribe, by default to a queue that is deleted with its last consumer."""
        given = {"auto-delete": "true", "ack": "auto", **(headers or {})}
        return self.ask("subscribe", connection, destination=destination, id=identifier, headers=given)

    def send(
        self, connection: str, destination: str, body: str, headers: Mapping[str, str] | None = None, **more: bool
    ) -> Seen:
        """Send a message, with a receipt unless ``unconfirmed`` is set."""
        given = {"auto-delete": "true", **(headers or {})}
        return self.ask("send", connection, destination=destination, body=body, headers=given, **more)

    def stop(self) -> None:
        """Stop the program."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.kill()
        self._child.wait()
        self._reader.join()
        for stream in (self._child.stdin, self._child.stdout, self._errors):
            stream.close()

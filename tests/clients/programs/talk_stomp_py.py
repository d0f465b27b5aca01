"""Carries out the requests of the tests with stomp.py, one JSON object on each line. See ../README.md."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

import stomp

from tests.clients.stomp_py import Message, StompPy

Request = dict[str, Any]


def shown(message: Message) -> dict[str, Any]:
    return {"headers": message.headers, "body": message.body}


class Connections:
    """The connections, by the names that the test gives them."""

    def __init__(self) -> None:
        self._clients: dict[str, StompPy] = {}

    def answer(self, request: Request) -> dict[str, Any]:
        """Carry out a request, and return the answer."""
        method = getattr(self, f"do_{request['do']}")
        answer: dict[str, Any] = method(request)
        return answer

    def _client(self, request: Request) -> StompPy:
        return self._clients[request["connection"]]

    def do_connect(self, request: Request) -> dict[str, Any]:
        version, host = request["version"], request["virtual_host"]
        options: dict[str, Any] = {"reconnect_attempts_max": 1}
        headers = {}
        if version == "1.0":
            # The library's client for this version has no argument for the virtual host.
            headers = {"host": host} if host is not None else {}
        else:
            options.update(vhost=host, heartbeats=tuple(request["heart_beat"]))
        client = StompPy(tuple(request["address"]), version, **options)
        try:
            client.connection.connect(request["login"], request["passcode"], wait=True, headers=headers)
        except stomp.exception.ConnectFailedException:
            client.connection.transport.stop()
            return {"refused": shown(client.inbox.error())}
        self._clients[request["connection"]] = client
        return {"connected": client.inbox.connected}

    def do_subscribe(self, request: Request) -> dict[str, Any]:
        client = self._client(request)
        headers = dict(request["headers"])
        ack = headers.pop("ack")
        client.confirmed(
            client.connection.subscribe, request["destination"], id=request["id"], ack=ack, headers=headers
        )
        return {"receipt": True}

    def do_unsubscribe(self, request: Request) -> dict[str, Any]:
        client = self._client(request)
        client.confirmed(client.connection.unsubscribe, id=request["id"], headers=request["headers"])
        return {"receipt": True}

    def do_send(self, request: Request) -> dict[str, Any]:
        client = self._client(request)
        arguments = (request["destination"], request["body"])
        if request.get("unconfirmed"):
            client.connection.send(*arguments, headers=request["headers"])
            return {}
        client.confirmed(client.connection.send, *arguments, headers=request["headers"])
        return {"receipt": True}

    def do_receive(self, request: Request) -> dict[str, Any]:
        return shown(self._client(request).inbox.message())

    def do_error(self, request: Request) -> dict[str, Any]:
        return shown(self._client(request).inbox.error())

    def do_ack(self, request: Request) -> dict[str, Any]:
        client = self._client(request)
        acknowledge = client.ack if request["do"] == "ack" else client.nack
        acknowledge(Message(request["message"], ""), request["subscription"], **request["headers"])
        return {"receipt": True}

    do_nack = do_ack

    def do_begin(self, request: Request) -> dict[str, Any]:
        client = self._client(request)
        client.confirmed(getattr(client.connection, request["do"]), request["transaction"])
        return {"receipt": True}

    do_commit = do_abort = do_begin

    def do_beats(self, request: Request) -> dict[str, Any]:
        self._client(request).inbox.wait_for_heart_beats(request["count"])
        return {}

    def do_disconnect(self, request: Request) -> dict[str, Any]:
        self._clients.pop(request["connection"]).disconnect()
        return {"receipt": True}


def main() -> None:
    """Answer requests until the input ends."""
    if sys.argv[1:] == ["version"]:
        print("stomp.py", importlib.metadata.version("stomp.py"))
        return
    connections = Connections()
    for line in sys.stdin:
        try:
            seen = connections.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the test has to hear of any
            seen = {"failed": repr(error)}
        print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()

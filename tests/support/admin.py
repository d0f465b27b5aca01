"""A client of the admin listener, that knows nothing of the gateway's code."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.deadline import PATIENCE

Address = tuple[str, int]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - JSON has every type
        """The body, read."""
        return json.loads(self.text)


@dataclass(frozen=True)
class AdminClient:
    """Asks the admin listener of a gateway, each time over a connection of its own.

    ``user`` is login and passcode; ``tls`` speaks HTTPS to a server that calls itself localhost.
    """

    address: Address
    user: tuple[str, str] | None = None
    tls: ssl.SSLContext | None = None

    async def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Ask for a path. A header's name is given with underscores for its hyphens."""
        return await asyncio.to_thread(self._ask, path, method, headers)

    async def json(self, path: str) -> Any:  # noqa: ANN401 - JSON has every type
        """Ask for a path that is there, and read the answer."""
        answer = await self.ask(path)
        assert answer.status == 200, answer
        return answer.json

    async def samples(self) -> Samples:
        """All metrics: values by name and labels."""
        answer = await self.ask("/metrics")
        assert answer.status == 200, answer
        return samples_of(answer.text)

    def _ask(self, path: str, method: str, headers: Mapping[str, str]) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.user is not None:
            given["Authorization"] = "Basic " + base64.b64encode(":".join(self.user).encode()).decode()
        host, port = self.address
        if self.tls is None:
            connection = HTTPConnection(host, port, timeout=PATIENCE)
        else:
            connection = HTTPSConnection("localhost", port, timeout=PATIENCE, context=self.tls)
        try:
            connection.request(method, path, headers=given)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())
        finally:
            connection.close()


def samples_of(text: str) -> Samples:
    """The samples in an answer in Prometheus's text format."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_host(samples: Samples, virtual_host: str, leave_out: Iterable[str] = ()) -> dict[str, float]:
    """The samples of one virtual host that are not 0, as `name` or `name value` of its other label.

    Args:
        samples: all.
        virtual_host: which.
        leave_out: names that do not matter.
    """
    found = {}
    for (name, labels), value in samples.items():
        others = dict(labels)
        if others.pop("virtual_host", None) == virtual_host and value and not name.startswith(tuple(leave_out)):
            words = [name.removeprefix("stomp_gateway_"), *(others[label] for label in sorted(others))]
            found[" ".join(words)] = value
    return found

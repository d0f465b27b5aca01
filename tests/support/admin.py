"""A client of the admin listener. It shares no code with the gateway."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.deadline import PATIENCE

Address = tuple[str, int]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Answer:
    """The response to a request."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - JSON has every type
        """The body, parsed."""
        return json.loads(self.text)


@dataclass(frozen=True)
class AdminClient:
    """Sends requests to the admin listener of a gateway, each over a new connection.

    ``user`` is login and passcode; ``tls`` is for HTTPS to a server whose certificate names localhost.
    """

    address: Address
    user: tuple[str, str] | None = None
    tls: ssl.SSLContext | None = None

    async def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Request a path. In the name of a header an underscore stands for a hyphen."""
        return await asyncio.to_thread(self._ask, path, method, headers)

    async def json(self, path: str) -> Any:  # noqa: ANN401 - JSON has every type
        """Request a path that must exist, and parse the answer."""
        answer = await self.ask(path)
        assert answer.status == 200, answer
        return answer.json

    async def samples(self) -> Samples:
        """All metrics, by name and labels."""
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
    """The samples of a text in Prometheus's format."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

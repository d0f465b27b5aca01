"""An S3 of the test's own: moto's server, on a port of this machine."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.request import Request, urlopen

BUCKET = "journals"


@dataclass(frozen=True)
class ObjectStore:
    """Where it is, and what a program needs to use it."""

    endpoint: str

    @property
    def url(self) -> str:
        """Of a folder in its bucket."""
        return f"s3://{BUCKET}/fleet"

    def keys(self) -> list[str]:
        """Of all that is in its bucket, also of what stands for a directory, which clients do not show."""
        with urlopen(f"{self.endpoint}/{BUCKET}?list-type=2") as answer:  # noqa: S310 - of this machine
            return re.findall("<Key>(.*?)</Key>", answer.read().decode())

    @property
    def environment(self) -> dict[str, str]:
        """As the tools of S3 read it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "some-key",
            "AWS_SECRET_ACCESS_KEY": "never-in-a-log",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@contextmanager
def running_store() -> Iterator[ObjectStore]:
    """Start one, with an empty bucket, in threads of this process."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - it loads slowly, and few tests need it

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with contextlib.redirect_stdout(io.StringIO()):
        server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")).close()  # noqa: S310 - of this machine
        urlopen(Request(f"{endpoint}/{BUCKET}", method="PUT")).close()  # noqa: S310
        yield ObjectStore(endpoint)
    finally:
        server.stop()

"""`stomp-gateway check` against a real broker: it shows what works, and the step that fails."""

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import pytest

from gateway.errors import ExitCode
from tests.support.deadline import PATIENCE

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
WRONG = "correct-horse-battery"


class Broker(Protocol):
    """What these tests need of the broker."""

    amqp_url: str
    host: str
    amqp_port: int


class Checked:
    """How one run of the command ended."""

    def __init__(self, code: int | None, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def found(self, url: str, names: str) -> dict[str, str]:
        """The findings about one upstream, by step."""
        paragraphs = [paragraph.splitlines() for paragraph in self.out.split("\n\n")]
        (lines,) = [lines[1:] for lines in paragraphs if lines[0] == f"{url} for {names}"]
        steps = [line.strip().partition("  ") for line in lines]
        return {step: finding.strip() for step, _, finding in steps}


async def check(tmp_path: Path, text: str, *options: str, passcode: str = "") -> Checked:
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    command = [sys.executable, "-m", "gateway", "check", "--config", str(file), *options]
    child = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "STOMP_GATEWAY_CHECK_PASSCODE": passcode},
    )
    out, err = await asyncio.wait_for(child.communicate(), 60)
    assert WRONG.encode() not in out + err
    return Checked(child.returncode, out.decode(), err.decode())


def user_of(broker: Broker) -> str:
    parts = urlsplit(broker.amqp_url)
    return f'{{login: "{unquote(parts.username or "guest")}", passcode: "{unquote(parts.password or "guest")}"}}'


async def test_a_usable_broker_is_described(broker: Broker, tmp_path: Path) -> None:
    url = f"amqp://{broker.host}:{broker.amqp_port}"
    done = await check(tmp_path, f"upstream: {{urls: ['{url}']}}\ndefaults: {{default_user: {user_of(broker)}}}")
    assert (done.code, done.err) == (ExitCode.OK, "")
    found = done.found(url, "virtual host /")
    product, _, version = found.pop("broker").partition(" ")
    assert product == "RabbitMQ"
    assert version[0].isdigit()
    assert found.pop("login").startswith("yes: ")
    assert found == {"reachable": "yes", "TLS": "not used", "virtual host": "yes: / can be used", "alarm": "none"}


async def test_each_virtual_host_that_cannot_be_served_is_named_with_the_reason(broker: Broker, tmp_path: Path) -> None:
    url = f"amqp://{broker.host}:{broker.amqp_port}"
    done = await check(
        tmp_path,
        f"""
upstream: {{urls: ['{url}']}}
defaults: {{default_user: {user_of(broker)}}}
virtual_hosts:
  /: {{}}
  twin: {{amqp_vhost: /}}
  absent: {{amqp_vhost: no-such-virtual-host}}
  locked: {{amqp_vhost: /, default_user: {{login: nobody, passcode: {WRONG}}}}}
  own: {{default_user: null}}
  "*": {{}}
""",
    )
    assert done.code == ExitCode.FAILURE
    assert done.err.strip() == "no usable upstream for: absent, locked"
    assert done.found(url, "virtual hosts /, twin")["virtual host"] == "yes: / can be used"
    assert "no-such-virtual-host" in done.found(url, "virtual host absent")["virtual host"]
    assert done.found(url, "virtual host locked")["login"].startswith("no: nobody is refused")
    assert done.found(url, "virtual host own")["login"].startswith("not tried: there is no default_user")
    assert done.found(url, "virtual host own")["broker"].startswith("RabbitMQ")
    assert done.found(url, "virtual host *")["virtual host"] == "not tried: clients name it"


async def test_users_of_certificates_are_tried_and_a_login_of_ones_own(broker: Broker, tmp_path: Path) -> None:
    url = f"amqp://{broker.host}:{broker.amqp_port}"
    good = user_of(broker)
    users = f"{{users: {{app: {good}, other: {{login: nobody, passcode: {WRONG}}}}}}}"
    text = f"upstream: {{urls: ['{url}']}}\ndefaults: {{default_user: null, certificate_users: {users}}}"
    done = await check(tmp_path, text)
    assert (done.code, done.err.strip()) == (ExitCode.FAILURE, "no usable upstream for: / as nobody")

    absent = f"upstream: {{urls: ['{url}']}}\nvirtual_hosts: {{/: {{default_user: null, amqp_vhost: no-such-one}}}}"
    done = await check(tmp_path, absent)
    assert done.code == ExitCode.OK
    assert "warning: virtual host /: no login was tried" in done.out
    parts = urlsplit(broker.amqp_url)
    login, passcode = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    done = await check(tmp_path, absent, "--login", login, passcode=passcode)
    assert (done.code, done.err.strip()) == (ExitCode.FAILURE, "no usable upstream for: /")
    file = tmp_path / "passcode"
    file.write_text(f"{WRONG}\n")
    done = await check(tmp_path, absent, "--login", "nobody", "--passcode-file", str(file))
    assert done.found(url, "virtual host /")["login"].startswith("no: nobody is refused")
    done = await check(tmp_path, absent, "--login", "nobody")
    assert done.code == ExitCode.CONFIGURATION
    assert "--passcode-file" in done.err


async def test_one_usable_url_is_enough(broker: Broker, tmp_path: Path) -> None:
    dead, alive = "amqp://127.0.0.1:1", f"amqp://{broker.host}:{broker.amqp_port}"
    text = f"upstream: {{urls: ['{dead}', '{alive}']}}\ndefaults: {{default_user: {user_of(broker)}}}"
    done = await check(tmp_path, text)
    assert done.code == ExitCode.OK
    found = done.found(dead, "virtual host /")
    advice = found.pop("advice")
    assert found == {"reachable": "no: connection refused"}
    assert advice.startswith("does RabbitMQ run there and listen for AMQP on this address and port?")
    assert done.out.splitlines()[-2:] == [
        f"virtual host /: 1 of 2 brokers can be used, but not {dead}",
        f"warning: virtual host /: its links cannot go to its first broker, {dead}",
    ]


async def test_silent_brokers_are_tried_at_the_same_time(broker: Broker, tmp_path: Path) -> None:
    """One after the other, they would take longer than the test has."""
    alive = f"amqp://{broker.host}:{broker.amqp_port}"
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(40)]
        urls = [*(f"amqp://127.0.0.1:{listening.getsockname()[1]}" for listening in silent), alive]
        text = f"upstream: {{urls: {urls}, connect_timeout: 5s}}\ndefaults: {{default_user: {user_of(broker)}}}"
        done = await check(tmp_path, text)
    assert done.code == ExitCode.OK
    for url in urls[:-1]:
        assert done.found(url, "virtual host /")["broker"].startswith("no: no answer within 5 s")
    assert done.found(alive, "virtual host /")["virtual host"] == "yes: / can be used"


async def test_tls_on_a_plain_port_is_recognised(broker: Broker, tmp_path: Path) -> None:
    url = f"amqps://{broker.host}:{broker.amqp_port}"
    done = await check(tmp_path, f"upstream: {{urls: ['{url}']}}")
    assert done.code == ExitCode.FAILURE
    assert done.found(url, "virtual host /")["TLS"].endswith("Does this port speak TLS?")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
async def test_tls_says_whether_the_certificate_is_accepted(broker: Broker, tmp_path: Path) -> None:
    async with tls_in_front_of(broker, tmp_path) as port:
        url = f"amqps://localhost:{port}"
        hosts = f"""
defaults: {{default_user: {user_of(broker)}}}
virtual_hosts:
  /: {{upstream: {{urls: ['{url}'], tls: {{ca_file: certificate.pem}}}}}}
  doubted: {{amqp_vhost: /, upstream: {{urls: ['{url}']}}}}
  careless: {{amqp_vhost: /, upstream: {{urls: ['{url}'], tls: {{verify: false}}}}}}
  misnamed: {{amqp_vhost: /, upstream: {{urls: ['amqps://127.0.0.1:{port}'], tls: {{ca_file: certificate.pem}}}}}}
  plain: {{amqp_vhost: /, upstream: {{urls: ['amqp://localhost:{port}'], connect_timeout: 5s}}}}
"""
        done = await check(tmp_path, hosts)
    assert done.found(url, "virtual host /")["TLS"].startswith("yes: TLSv1.")
    assert done.found(url, "virtual host /")["virtual host"] == "yes: / can be used"
    assert "certificate is not accepted, self-signed certificate" in done.found(url, "virtual host doubted")["TLS"]
    assert done.found(url, "virtual host careless")["TLS"].endswith("certificate not checked")
    misnamed = done.found(f"amqps://127.0.0.1:{port}", "virtual host misnamed")["TLS"]
    assert "certificate is not accepted, IP address mismatch" in misnamed
    assert "amqps" in done.found(f"amqp://localhost:{port}", "virtual host plain")["broker"]
    assert done.err.strip() == "no usable upstream for: doubted, misnamed, plain"


@contextlib.asynccontextmanager
async def tls_in_front_of(broker: Broker, directory: Path) -> AsyncIterator[int]:
    """A TLS port that forwards to the broker; its certificate is in certificate.pem."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    openssl = await asyncio.create_subprocess_exec(
        "openssl", *request, *names, "-keyout", str(key), "-out", str(certificate), stderr=asyncio.subprocess.DEVNULL
    )
    assert await openssl.wait() == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    served: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        upstream_reader, upstream_writer = await asyncio.open_connection(broker.host, broker.amqp_port)
        await asyncio.gather(copy(reader, upstream_writer), copy(upstream_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.wait(served, timeout=PATIENCE)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.transport.abort()

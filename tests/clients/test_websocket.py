"""@stomp/stompjs over WebSocket, in Node and in a page in a real browser."""

from __future__ import annotations

import asyncio
import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from tests.clients.library import HERE, NODE, NODE_MODULES
from tests.support.browser import DESKTOP, Browser
from tests.support.deadline import within
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process, listening

pytestmark = [pytest.mark.system, pytest.mark.clients]

TOUR: Final = HERE / "programs" / "tour.js"
LIBRARY: Final = NODE_MODULES / "@stomp" / "stompjs" / "bundles" / "stomp.umd.js"
PAGE: Final = b"""<!doctype html><meta charset="utf-8"><title>STOMP</title>
<script src="/stomp.js"></script><script src="/tour.js"></script>"""
SEEN: Final = {"subprotocol": "v12.stomp", "disconnect": "confirmed"}


class Site(http.server.BaseHTTPRequestHandler):
    """Serves the page and its two scripts."""

    def do_GET(self) -> None:
        files = {"/": PAGE, "/stomp.js": LIBRARY.read_bytes(), "/tour.js": TOUR.read_bytes()}
        content = files.get(self.path)
        self.send_response(404 if content is None else 200)
        kind = "text/html" if self.path == "/" else "text/javascript"
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def library() -> None:
    if reason := NODE.missing():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def site(library: None) -> Iterator[str]:
    """The address of a page, which is also its origin."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def gateway(broker_url: str, site: str) -> Iterator[GatewayProcess]:
    address = {"websocket": "127.0.0.1:0"}
    listeners = [
        address | {"allowed_origins": [site]},
        address | {"allowed_origins": [site], "compression": True, "frame": "binary"},
        address | {"allowed_origins": ["https://example.org"]},
    ]
    with gateway_process(configuration(broker_url, listeners=listeners)) as process:
        yield process


def url(address: Address) -> str:
    return f"ws://{address[0]}:{address[1]}/ws"


async def test_stompjs_in_node_alone_and_five_hundred_times(gateway: GatewayProcess, queue: str) -> None:
    command = (NODE.interpreter, str(TOUR), url(gateway.address), queue, "500")
    program = await asyncio.create_subprocess_exec(
        *command, env=NODE.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with within(120):
        printed, errors = await program.communicate()
    assert errors == b""
    assert json.loads(printed) == SEEN | {"crowd": 500}


@pytest.mark.parametrize("listener", [0, 1], ids=["text", "compressed-binary"])
async def test_stompjs_in_a_browser(
    gateway: GatewayProcess, browser: Browser, site: str, queue: str, listener: int
) -> None:
    address = url(listening(gateway, 3)[listener])
    browser.open(f"{site}/", DESKTOP)
    assert browser.value(f"tour({json.dumps(address)}, {json.dumps(queue)})") == SEEN
    assert browser.value(f"crowd({json.dumps(address)}, {json.dumps(queue)}, 40)") == 40


def test_a_page_of_another_origin_is_refused(gateway: GatewayProcess, browser: Browser, site: str) -> None:
    addresses = [url(address) for address in listening(gateway, 3)]
    browser.open(f"{site}/", DESKTOP)
    assert browser.value(f"tryToConnect({json.dumps(addresses[0])})") == "open"
    assert browser.value(f"tryToConnect({json.dumps(addresses[2])})") == "closed 1006"


def test_a_browser_learns_why_it_is_closed(gateway: GatewayProcess, browser: Browser, site: str) -> None:
    """The ERROR comes first, then the close code."""
    address = json.dumps(url(gateway.address))
    browser.open(f"{site}/", DESKTOP)
    script = f"""new Promise((resolve) => {{
        const seen = [], socket = new WebSocket({address}, ["v12.stomp"]);
        socket.onopen = () => socket.send("SEND\\nno colon\\n\\n\\0");
        socket.onmessage = (event) => seen.push(event.data.split("\\n").slice(0, 2).join(" "));
        socket.onclose = (event) => resolve([...seen, event.code, event.wasClean]);
    }})"""
    assert browser.value(script) == ["ERROR message:Malformed frame", 1007, True]

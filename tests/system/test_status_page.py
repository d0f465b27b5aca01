"""The status page in a browser and the terminal commands, with a real gateway and real sessions."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from gateway.cli import main
from gateway.errors import ExitCode
from tests.support.admin import AdminClient
from tests.support.browser import DESKTOP, PHONE, SMALL_PHONE, Browser
from tests.support.deadline import until
from tests.support.gateway import GatewayProcess, configuration, gateway_process
from tests.support.stomp_client import StompClient

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
ROWS = "[...document.querySelectorAll('#list tbody tr')].map(row => row.innerText)"
HOSTILE = "/topic/<img src=x onerror=alert(1)>"


class Sessions:
    """The admin listener of a gateway with two clients: one sends to the subscription of the other."""

    def __init__(self, url: str, sender: StompClient, subscriber: StompClient) -> None:
        self.url = url
        self.sender = sender
        self.subscriber = subscriber

    @staticmethod
    def peer(client: StompClient) -> str:
        """A client's address as the gateway sees it."""
        host, port = client.writer.get_extra_info("sockname")
        return f"{host}:{port}"


def page(gateway: GatewayProcess) -> str:
    """Address of the status page."""
    return "http://{}:{}/".format(*gateway.admin)


@pytest.fixture(scope="module")
def watched(broker_url: str) -> Iterator[GatewayProcess]:
    with gateway_process(configuration(broker_url, admin={"address": "127.0.0.1:0"})) as process:
        yield process


@pytest_asyncio.fixture
async def sessions(watched: GatewayProcess, queue: str) -> AsyncIterator[Sessions]:
    # Those of the test before may not have gone yet.
    overview = AdminClient(watched.admin)
    await until(lambda: overview.json("/api/overview"), lambda found: not found["sessions"])
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(StompClient.logged_in(watched.address)) for _ in range(2)]
        sender, subscriber = clients
        await subscriber.ask("SUBSCRIBE", id="1", destination=f"/queue/{queue}", ack="client")
        for _ in range(3):
            await sender.ask("SEND", b"x" * 2048, destination=f"/queue/{queue}")
        await sender.ask("SEND", b"", destination=HOSTILE)
        await subscriber.messages(3)
        yield Sessions(page(watched), sender, subscriber)


@pytest.mark.asyncio
async def test_the_page_shows_sessions_and_their_traffic(sessions: Sessions, browser: Browser, queue: str) -> None:
    browser.open(sessions.url, DESKTOP)
    browser.until(f"{ROWS}.length === 2")
    assert browser.value("document.getElementById('ready').innerText") == "Ready"
    sender, subscriber = (Sessions.peer(client) for client in (sessions.sender, sessions.subscriber))
    rows = browser.value(f"{ROWS}.sort((a, b) => b.includes('{sender}') - a.includes('{sender}'))")
    assert isinstance(rows, list)
    assert sender in rows[0]
    assert subscriber in rows[1]
    # Subscriptions, unacknowledged messages, in and out, without the rates.
    stats = [[cell for cell in row.split("reading")[1].split() if cell.isdigit()][:4] for row in rows]
    assert stats == [["0", "0", "4", "0"], ["1", "3", "0", "3"]]
    browser.value("document.querySelector('[data-view=destinations]').click()")
    browser.until(f"{ROWS}.some(row => row.includes('/queue/{queue}') && row.includes('6\\u00a0KiB'))")
    browser.until(f"{ROWS}.some(row => row.includes({HOSTILE!r}))")
    browser.value("document.querySelector('[data-view=links]').click()")
    browser.until(f"{ROWS}.some(row => row.includes('publish')) && {ROWS}.every(row => row.includes('RabbitMQ'))")
    browser.value("document.querySelector('[data-view=virtual-hosts]').click()")
    browser.until(f"{ROWS}.some(row => row.includes('localhost'))")
    # No error, and the Content-Security-Policy blocked nothing that the page needs.
    assert not browser.complaints


@pytest.mark.asyncio
async def test_rates_errors_and_search_follow_what_happens(sessions: Sessions, browser: Browser) -> None:
    browser.open(sessions.url, DESKTOP)
    browser.until(f"{ROWS}.length === 2")
    # So many that a page that looks late still shows a rate.
    for _ in range(1000):
        sessions.sender.write("SEND", b"x", destination="/topic/nobody")
    sessions.sender.write("SEND", b"", destination="/nowhere/x")
    await sessions.sender.expect("ERROR")
    browser.until("parseFloat(document.querySelector('.figure.in .value').innerText) > 5")
    browser.until("document.getElementById('errors').innerText.includes('unknown-destination')")
    port = Sessions.peer(sessions.subscriber).rpartition(":")[2]
    browser.value(
        f"{{ const s = document.getElementById('search'); s.value = ':{port}'; s.dispatchEvent(new Event('input')); }}"
    )
    browser.until(f"{ROWS}.length === 1 && {ROWS}[0].includes(':{port}')")


@pytest.mark.asyncio
async def test_a_session_is_shown_and_closed(sessions: Sessions, browser: Browser, queue: str) -> None:
    browser.open(sessions.url, PHONE)
    browser.until(f"{ROWS}.length === 2")
    peer = Sessions.peer(sessions.subscriber)
    browser.value(
        "[...document.querySelectorAll('#list tbody tr')]"
        f".find(row => row.innerText.includes('{peer}')).querySelector('.open').click()"
    )
    browser.until(f"document.getElementById('subscriptions').innerText.includes('/queue/{queue}')")
    browser.until(f"document.getElementById('facts').innerText.includes('{peer}')")
    browser.value("document.getElementById('ask-close').click()")
    browser.value("document.getElementById('reason').value = 'maintenance at 18:00'")
    browser.value("document.getElementById('close-now').click()")
    error = await sessions.subscriber.expect("ERROR", message="Closed by operator")
    assert b"maintenance at 18:00" in error.body
    await sessions.subscriber.closed()
    browser.until("document.getElementById('detail-note').innerText === 'This session has ended.'")
    browser.value("document.getElementById('leave').click()")
    browser.until(f"{ROWS}.length === 1")


@pytest.mark.asyncio
async def test_it_fits_a_phone(sessions: Sessions, browser: Browser) -> None:
    browser.open(sessions.url, SMALL_PHONE)
    browser.until(f"{ROWS}.length >= 2")
    for view in ("destinations", "virtual-hosts", "links", "sessions"):
        browser.value(f"document.querySelector('[data-view={view}]').click()")
        browser.until(f"document.querySelector('[data-view={view}][aria-current]') && {ROWS}.length > 0")
        assert browser.value(OVERFLOW) == 0, view


@pytest.mark.asyncio
async def test_the_terminal_commands_show_and_close_sessions(
    sessions: Sessions, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        assert main([*arguments, "--url", sessions.url]) == ExitCode.OK
        return capsys.readouterr().out

    peers = {Sessions.peer(sessions.sender), Sessions.peer(sessions.subscriber)}
    listed = {item["peer"]: item for item in json.loads(said("sessions", "--json"))}
    assert listed.keys() == peers
    ended = listed[Sessions.peer(sessions.subscriber)]["id"]
    for line in said("sessions", "--columns", "session_id,conn_name,auth_login,protocol").splitlines()[1:]:
        assert line.split()[1] in peers
        assert line.endswith("guest       STOMP 1.2")
    assert "unacknowledged 3" in said("top", "--once", "--interval", "0.1")
    purposes = {line.split()[2] for line in said("links", "--columns", "login,virtual_host,purpose").splitlines()[1:]}
    assert "publish" in purposes
    assert "unacknowledged      3" in said("sessions", "show", ended)
    assert said("sessions", "close", ended, "--reason", "by hand") == f"closed: {ended}\n"
    error = await sessions.subscriber.expect("ERROR", message="Closed by operator")
    assert b"by hand" in error.body
    assert main(["sessions", "--hold", "none-such", "--url", sessions.url]) == ExitCode.FAILURE
    assert "hold is one of operation, commit" in capsys.readouterr().err

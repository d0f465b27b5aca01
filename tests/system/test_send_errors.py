"""Sessions that go on after a SEND that goes wrong (`on_send_error`)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from gateway.journal.segments import PATTERN
from gateway.parity.amqp_broker import AmqpBroker
from gateway.server.process.gateway import Gateway
from tests.support.chaos import ChaosProxy
from tests.support.deadline import until
from tests.support.gateway import gateway_here, parsed, upstream
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system

LARGEST = 4000
KEEP = {"action": "keep"}


@asynccontextmanager
async def application(gateway: Gateway, queue: str) -> AsyncIterator[tuple[StompClient, StompClient]]:
    """An application's session, and another one of the same login with a subscription to the queue."""
    address = gateway.addresses[0]
    async with StompClient.logged_in(address) as sender, StompClient.logged_in(address) as browser:
        await browser.ask("SUBSCRIBE", id="s", destination=f"/queue/{queue}")
        yield sender, browser


async def works_on(sender: StompClient, browser: StompClient, queue: str, body: bytes = b"still here") -> None:
    """The session sends as before, and the other one has noticed nothing."""
    await sender.ask("SEND", body, destination=f"/queue/{queue}")
    await browser.expect("MESSAGE", body)


@pytest.mark.asyncio
async def test_a_session_survives_what_the_broker_refuses(broker_url: str, amqp: AmqpBroker, queue: str) -> None:
    async with (
        gateway_here(parsed(broker_url, {"on_send_error": KEEP, "max_frame_size": LARGEST})) as gateway,
        application(gateway, queue) as (sender, browser),
        StompClient.logged_in(gateway.addresses[0]) as owner,
    ):
        for number in range(3):
            # What comes after the wrong one, without a wait, is published all the same.
            sender.write("SEND", b"before", destination=f"/queue/{queue}", receipt="before")
            sender.write("SEND", b"lost", destination="/exchange/no-such-exchange/key", receipt="lost")
            sender.write("SEND", b"after", destination=f"/queue/{queue}", receipt="after")
            answers = {frame["receipt-id"]: frame for frame in [await sender.receive() for _ in range(3)]}
            assert [answers[each].command for each in ("before", "lost", "after")] == ["RECEIPT", "ERROR", "RECEIPT"]
            assert answers["lost"]["message"] == "not_found"
            await sender.ask("SEND", b"end %d" % number, destination=f"/queue/{queue}")
            bodies = [(await browser.expect("MESSAGE")).body]
            while bodies[-1] != b"end %d" % number:
                bodies.append((await browser.expect("MESSAGE")).body)
            # What was not confirmed when the broker closed the channel may come twice.
            assert list(dict.fromkeys(bodies)) == [b"before", b"after", b"end %d" % number]

        conflict = f"{queue}-conflict"
        await amqp.declare_queue(conflict, durable=False, auto_delete=True, arguments={})
        sender.write("SEND", b"x", destination=f"/queue/{conflict}", receipt="conflict")
        await sender.expect("ERROR", message="precondition_failed", receipt_id="conflict")
        await works_on(sender, browser, queue, b"after the conflict")
        await amqp.delete_queue(conflict)

        locked = f"/queue/{queue}-locked"
        await owner.ask("SUBSCRIBE", id="1", destination=locked, exclusive="true", auto_delete="true", durable="false")
        sender.write("SEND", b"x", destination=locked, receipt="locked")
        await sender.expect("ERROR", message="resource_locked", receipt_id="locked")
        await works_on(sender, browser, queue, b"after the locked queue")


@pytest.mark.asyncio
@pytest.mark.parametrize("has_length", [True, False], ids=["content-length", "nul"])
async def test_a_frame_that_is_too_large_is_read_to_its_end(broker_url: str, queue: str, has_length: bool) -> None:
    async with (
        gateway_here(parsed(broker_url, {"on_send_error": KEEP, "max_frame_size": LARGEST})) as gateway,
        application(gateway, queue) as (sender, browser),
    ):
        await works_on(sender, browser, queue, b"before")
        body = b"A" * (50 * LARGEST)
        length = f"content-length:{len(body)}\n" if has_length else ""
        head = f"SEND\ndestination:/queue/{queue}\nreceipt:large\n{length}\n".encode()
        sender.writer.write(head + body + b"\0\n")
        await sender.expect("ERROR", message="Malformed frame", receipt_id="large")
        await works_on(sender, browser, queue, b"after")


@pytest.mark.asyncio
async def test_without_a_receipt_the_error_is_only_logged_if_that_is_wanted(broker_url: str, queue: str) -> None:
    with capture_logs() as logs:
        async with (
            gateway_here(parsed(broker_url, {"on_send_error": {"action": "log"}})) as gateway,
            application(gateway, queue) as (sender, browser),
        ):
            sender.write("SEND", b"lost", destination="/exchange/no-such-exchange/key")
            sender.write("SEND", b"nowhere", destination="nowhere/")
            await works_on(sender, browser, queue)
            sender.write("SEND", b"lost", destination="/exchange/no-such-exchange/key", receipt="1")
            await sender.expect("ERROR", message="not_found", receipt_id="1")
            await works_on(sender, browser, queue, b"and again")
    failed = [line["message"] for line in logs if line["event"] == "send failed"]
    assert sorted(failed) == ["Unknown destination", "not_found"]


@pytest.mark.asyncio
@pytest.mark.parametrize("action", ["keep", "log"])
async def test_a_denied_send_counts_as_denied_though_its_session_goes_on(
    broker_url: str, queue: str, tmp_path: Path, action: str
) -> None:
    defaults = {
        "on_send_error": {"action": action},
        "destination_rules": [{"action": "deny", "destination": "/topic/*"}],
        "journal": {"level": "session", "directory": str(tmp_path)},
    }
    async with (
        gateway_here(parsed(broker_url, defaults)) as gateway,
        application(gateway, queue) as (sender, browser),
    ):
        sender.write("SEND", b"x", destination="/topic/t", receipt="denied")
        await sender.expect("ERROR", message="access_refused", receipt_id="denied")
        sender.write("SEND", b"x", destination="/topic/t")
        if action == "keep":
            await sender.expect("ERROR", message="access_refused")
        await works_on(sender, browser, queue)
        assert gateway.stats.host("/").errors == {"destination-denied": 2}
    assert _journalled_errors(tmp_path) == ["destination-denied"] * 2


def _journalled_errors(directory: Path) -> list[str]:
    texts = [path.read_text() for path in directory.glob(f"d*=*/{PATTERN}")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return [line["x"] for line in lines if line["e"] == "err"]


@pytest.mark.asyncio
async def test_the_sessions_of_other_logins_are_closed(broker_url: str) -> None:
    settings = {"on_send_error": {"action": "keep", "logins": ["spring-*"]}}
    async with (
        gateway_here(parsed(broker_url, settings)) as gateway,
        StompClient.logged_in(gateway.addresses[0]) as sender,
    ):
        sender.write("SEND", b"lost", destination="/exchange/no-such-exchange/key", receipt="1")
        await sender.expect("ERROR", message="not_found", receipt_id="1")
        await sender.closed()


@pytest.mark.asyncio
async def test_a_commit_with_a_wrong_message_settles_nothing_and_the_session_goes_on(
    broker_url: str, queue: str
) -> None:
    async with (
        gateway_here(parsed(broker_url, {"on_send_error": KEEP})) as gateway,
        application(gateway, queue) as (sender, browser),
    ):
        sender.write("BEGIN", transaction="t")
        sender.write("SEND", b"lost", destination="/exchange/no-such-exchange/key", transaction="t")
        sender.write("COMMIT", transaction="t", receipt="commit")
        await sender.expect("ERROR", message="not_found")
        await sender.expect("ERROR", message="Message rejected", receipt_id="commit")
        await works_on(sender, browser, queue)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_first", [True, False], ids=["first-send", "later-send"])
async def test_sends_are_refused_when_the_broker_has_taken_none_for_so_long(
    broker_url: str, proxy: ChaosProxy, queue: str, is_first: bool
) -> None:
    config = parsed(broker_url, {"hold_sends_for": "500ms"}, upstream=upstream(proxy.address))
    with capture_logs() as logs:
        async with gateway_here(config) as gateway, application(gateway, queue) as (sender, browser):
            if not is_first:
                await sender.ask("SEND", b"to nobody", destination=f"/topic/{queue}")
            await proxy.close()
            await until(partial(_links, logs), lambda links: not links)
            for number in range(3):
                sender.write("SEND", b"%d" % number, destination=f"/queue/{queue}", receipt=f"{number}")
            # The first one of the session waits for its channel, and is sent in the end.
            refused = range(is_first, 3)
            for number in refused:
                await sender.expect("ERROR", message="Upstream unavailable", receipt_id=f"{number}")
            # What may not be refused waits, with what comes after it.
            sender.write("BEGIN", transaction="t", receipt="begin")
            sender.write("SEND", b"in order", destination=f"/queue/{queue}", receipt="in order")
            await proxy.open()
            sent = ["0"] if is_first else []
            answers = [await sender.expect("RECEIPT") for _ in (*sent, "begin", "in order")]
            assert {answer["receipt-id"] for answer in answers} == {*sent, "begin", "in order"}
            for body in (*sent, "in order"):
                await browser.expect("MESSAGE", body.encode())
            await works_on(sender, browser, queue)


async def _links(logs: Sequence[EventDict]) -> int:
    events = [line["event"] for line in logs]
    return events.count("link opened") - events.count("link closed")

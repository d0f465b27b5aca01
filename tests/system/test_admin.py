"""The admin listener of a busy gateway: what it shows is what clients did."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics

from deploy.local.ports import free_ports
from tests.support.admin import AdminClient, Samples
from tests.support.chaos import Direction, chaos
from tests.support.deadline import until, within
from tests.support.gateway import GatewayProcess, configuration, gateway_process, listening, upstream
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system

# Each test has a virtual host of its own; all map to the same one of the broker.
HOSTS = ("counted", "implicit", "listed", "paged", "shown", "closed", "sampled", "broken", "*")


@pytest.fixture(scope="module")
def gateway(broker_url: str) -> Iterator[GatewayProcess]:
    hosts = {name: {"amqp_vhost": "/"} for name in HOSTS}
    document = configuration(
        broker_url,
        listeners=[{"tcp": "127.0.0.1:0"}, {"tcp": "127.0.0.1:0", "implicit_connect": True}],
        admin="127.0.0.1:0",
        virtual_hosts={"/": {}, **hosts},
        default_vhost="implicit",
    )
    with gateway_process(document) as process:
        yield process


@pytest.fixture
def admin(gateway: GatewayProcess) -> AdminClient:
    return AdminClient(gateway.admin)


# Metrics.


def of_host(samples: Samples, virtual_host: str, leave_out: Iterable[str] = ()) -> dict[str, float]:
    """The samples of one virtual host that are not 0, by `name`, or by `name value` with the value of another label.

    Names that begin with one of ``leave_out`` are ignored.
    """
    found = {}
    for (name, labels), value in samples.items():
        others = dict(labels)
        if others.pop("virtual_host", None) == virtual_host and value and not name.startswith(tuple(leave_out)):
            words = [name.removeprefix("stomp_gateway_"), *(others[label] for label in sorted(others))]
            found[" ".join(words)] = value
    return found


_NOT_OF_BROKERS = tuple(
    f"stomp_gateway_{kind}" for kind in ("link", "channel", "session", "frame", "client", "message", "hold", "confirm")
)
_OF_LINKS = ("stomp_gateway_link", "stomp_gateway_channel", "stomp_gateway_upstream", "stomp_gateway_virtual_host")
_OF_TIME = ("stomp_gateway_confirm_latency", "stomp_gateway_holds", "stomp_gateway_client_")


async def test_metrics_are_what_a_client_did(gateway: GatewayProcess, admin: AdminClient, queue: str) -> None:
    async with StompClient.logged_in(gateway.address, host="counted") as client:
        destination = f"/queue/{queue}"
        for body in (b"one", b"two", b"three"):
            await client.ask("SEND", body, destination=destination)
        client.write("SEND", b"four", destination=destination)
        await client.ask("SEND", b"nowhere", destination=f"/topic/{queue}")
        await client.ask("SUBSCRIBE", id="1", destination=destination, ack="client-individual")
        first, second, third, _ = await client.messages(4)
        await client.ask("ACK", id=first["ack"])
        await client.ask("NACK", id=second["ack"])
        await client.messages(1)  # the second again
        await client.ask("NACK", id=third["ack"], requeue="false")
        client.write("ABORT", transaction="none")
        await client.expect("ERROR", message="Bad transaction")
        client.write("INVENTED")
        await client.expect("ERROR", message="Bad command")

        expected = {
            "sessions_started_total tcp 1.2": 1,
            "frames_received_total CONNECT": 1,
            "frames_received_total SEND": 5,
            "frames_received_total SUBSCRIBE": 1,
            "frames_received_total ACK": 1,
            "frames_received_total NACK": 2,
            "frames_received_total ABORT": 1,
            "frames_received_total other": 1,
            "frames_sent_total CONNECTED": 1,
            "frames_sent_total RECEIPT": 8,
            "frames_sent_total MESSAGE": 5,
            "frames_sent_total ERROR": 2,
            "messages_published_total queue": 4,
            "messages_published_total topic": 1,
            "messages_published_bytes_total queue": 15,
            "messages_published_bytes_total topic": 7,
            "messages_confirmed_total": 5,
            "messages_delivered_total queue": 5,
            "messages_delivered_bytes_total queue": 18,
            "messages_redelivered_total": 1,
            "messages_acknowledged_total": 1,
            "messages_requeued_total": 1,
            "messages_discarded_total": 1,
            "errors_total bad-transaction": 1,
            "errors_total bad-command": 1,
        }
        now = {"sessions": 1, "subscriptions client-individual": 1, "messages_unacknowledged": 2}

        async def counts() -> dict[str, float]:
            return of_host(await admin.samples(), "counted", [*_OF_LINKS, *_OF_TIME])

        # The confirm of the message without a receipt comes on another link than the answers to what followed it.
        await until(counts, lambda found: found == expected | now)
        await client.disconnect()
    # The same after the end of the session, when its counts have moved to the totals of the virtual host.
    ended = {
        "frames_received_total DISCONNECT": 1,
        "frames_sent_total RECEIPT": 9,
        "sessions_ended_total disconnect": 1,
    }
    assert await counts() == expected | ended


async def test_bytes_links_and_confirms_are_counted(gateway: GatewayProcess, admin: AdminClient, queue: str) -> None:
    async with StompClient.logged_in(gateway.address, host="sampled") as client:
        await client.ask("SUBSCRIBE", id="1", destination=f"/queue/{queue}", ack="auto")
        for _ in range(3):
            await client.ask("SEND", b"x" * 1000, destination=f"/topic/{queue}")
        found = of_host(await admin.samples(), "sampled")
        assert found["client_received_bytes_total"] > 3000
        assert 0 < found["client_sent_bytes_total"] < 3000
        assert found["confirm_latency_seconds_count"] == 3
        assert found["confirm_latency_seconds_bucket +Inf"] == 3
        assert 0 < found["confirm_latency_seconds_sum"] < 60
        assert found["links publish"] == found["links consume"] == 1
        assert found["links_opened_total"] == found["channels"] == 2
        assert found["holds_begun_total operation"] >= 1


async def test_heart_beats_count_as_bytes_sent(gateway: GatewayProcess, admin: AdminClient) -> None:
    async with within(), StompClient.dialled(gateway.address) as client:
        client.write("CONNECT", accept_version="1.2", host="shown", heart_beat="0,100")
        connected = await client.reader.readuntil(b"\0\n")
        assert await client.reader.readexactly(2) == b"\n\n"
        session = connected.partition(b"\nsession:")[2].partition(b"\n")[0].decode()
        assert (await admin.json(f"/api/sessions/{session}"))["bytes_sent"] >= len(connected) + 2


async def test_an_implicit_login_sends_no_connected_frame(gateway: GatewayProcess, admin: AdminClient) -> None:
    async with StompClient.dialled(listening(gateway, 2)[1]) as client:
        await client.ask("SEND", b"x", destination="/topic/implicit")
        client.write("CONNECT", accept_version="1.2")
        await client.expect("ERROR", message="Illegal command")
    found = of_host(await admin.samples(), "implicit", [*_OF_LINKS, *_OF_TIME])
    assert found["sessions_started_total tcp 1.0"] == found["frames_received_total CONNECT"] == 1
    assert "frames_sent_total CONNECTED" not in found


async def test_metrics_have_both_formats(admin: AdminClient) -> None:
    plain = await admin.ask("/metrics")
    assert plain.headers["Content-Type"].startswith("text/plain; version=")
    modern = await admin.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert modern.headers["Content-Type"].startswith("application/openmetrics-text")
    names = {family.name for family in open_metrics(modern.text)}  # type: ignore[no-untyped-call]
    assert {"stomp_gateway", "stomp_gateway_sessions_started", "process_cpu_seconds"} <= names


@pytest.mark.parametrize("version", ["abc", "9", "1.0.0.0", "x y"])
async def test_an_unknown_metrics_format_is_answered_with_plain_text(
    gateway: GatewayProcess, admin: AdminClient, version: str
) -> None:
    for kind in ("text/plain", "application/openmetrics-text"):
        answer = await admin.ask("/metrics", Accept=f"{kind};version={version}")
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert not gateway.logged("admin request failed")


async def test_many_sessions_and_invented_names_add_no_metrics(gateway: GatewayProcess, admin: AdminClient) -> None:
    """Names that clients invent, of virtual hosts or of commands, are in no label."""

    async def one(number: int) -> None:
        client = await stack.enter_async_context(StompClient.dialled(gateway.address))
        # All of them but for one name what the broker does not know: that is refused, and counted.
        client.write("CONNECT", accept_version="1.2", host="broken" if number else f"invented-{number}")
        await client.receive()
        client.write(f"COMMAND{number}")
        await client.expect("ERROR")

    async with contextlib.AsyncExitStack() as stack:
        await one(1)
        await one(0)
        before = await admin.samples()
        async with within(60):
            for start in range(2, 502, 50):
                await asyncio.gather(*(one(number) for number in range(start, start + 50)))
        after = await admin.samples()
        assert of_host(after, "broken")["sessions"] == 501
        # Buckets exist from the start.
        assert {name for name, _ in after} == {name for name, _ in before}
        assert len(after) == len(before)
        page = await admin.json("/api/sessions?virtual_host=broken&page_size=1000")
        assert page["total"] == len(page["items"]) == 501


# The API.


async def test_sessions_are_listed_and_found(gateway: GatewayProcess, admin: AdminClient, queue: str) -> None:
    async with (
        StompClient.logged_in(gateway.address, host="listed", version="1.1", heart_beat="0,60000") as one,
        StompClient.logged_in(gateway.address, host="listed"),
    ):
        await one.ask("SEND", b"hello", destination=f"/queue/{queue}")
        await one.ask("SUBSCRIBE", id="1", destination=f"/queue/{queue}", ack="client")
        await one.messages(1)
        await one.ask("BEGIN", transaction="t")
        identity = one.connected["session"]
        page = await admin.json("/api/sessions?virtual_host=listed&sort=-messages_published")
        assert (page["total"], page["page"], page["page_size"]) == (2, 1, 100)
        shown = page["items"][0]
        sent, got = shown.pop("bytes_received"), shown.pop("bytes_sent")
        assert sent > 100
        assert got > 100
        assert datetime.now(UTC) - datetime.fromisoformat(shown.pop("connected_at")) < timedelta(minutes=5)
        assert shown == {
            "id": identity,
            "virtual_host": "listed",
            "login": "guest",
            "peer": "{}:{}".format(*one.writer.get_extra_info("sockname")),
            "transport": "tcp",
            "tls": False,
            "version": "1.1",
            "state": "connected",
            "heart_beat": one.connected["heart-beat"],
            "listener": "127.0.0.1:0",
            "holds": [],
            "awaited_queues": [],
            "subscriptions": 1,
            "unacknowledged": 1,
            "unconfirmed": 0,
            "transactions": 1,
            "frames_received": 4,
            "messages_published": 1,
            "messages_delivered": 1,
            "write_buffer_bytes": 0,
        }
        for query, found in (
            (f"q={identity[-10:].lower()}", 1),
            (f"q={shown['peer']}", 1),
            ("virtual_host=listed&login=guest", 2),
            ("virtual_host=listed&login=guest&hold=commit", 0),
            ("virtual_host=list", 0),
        ):
            assert (await admin.json(f"/api/sessions?{query}"))["total"] == found, query


async def test_lists_have_pages_and_an_order(gateway: GatewayProcess, admin: AdminClient) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(StompClient.logged_in(gateway.address, host="paged")) for _ in range(5)
        ]
        for number, client in enumerate(clients):
            for _ in range(number):
                await client.ask("BEGIN", transaction="t")
        identities = [client.connected["session"] for client in clients]
        query = "/api/sessions?virtual_host=paged&sort=-frames_received&page_size=2&page="
        pages = [await admin.json(f"{query}{number}") for number in (1, 2, 3, 4)]
        assert [[item["id"] for item in page["items"]] for page in pages] == [
            [identities[4], identities[3]],
            [identities[2], identities[1]],
            [identities[0]],
            [],
        ]
        assert {page["total"] for page in pages} == {5}


@pytest.mark.parametrize(
    "path",
    [
        "/api/sessions?sort=passcode",
        "/api/sessions?page=0",
        "/api/sessions?page=1.5",
        "/api/sessions?page_size=1001",
        "/api/sessions?page=99999999999999999999",
        "/api/sessions?colour=red",
        "/api/sessions?hold=hands",
        "/api/sessions?sort=holds",
        "/api/destinations?kind=quorum",
        "/api/links?hold=commit",
        "/api/virtual-hosts?sort=limits",
        "/api/overview?page=1",
    ],
)
async def test_an_invalid_query_is_refused(admin: AdminClient, path: str) -> None:
    answer = await admin.ask(path)
    assert answer.status == 400
    assert answer.json["error"].endswith(".")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/sessions/session-nobody", 404),
        ("DELETE", "/api/sessions/session-nobody", 404),
        ("GET", "/api/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("POST", "/api/sessions", 405),
        ("DELETE", "/api/sessions", 405),
        ("OPTIONS", "/api/sessions/x", 405),
    ],
)
async def test_an_unknown_path_or_method_is_an_error_of_one_sentence(
    admin: AdminClient, method: str, path: str, status: int
) -> None:
    answer = await admin.ask(path, method)
    assert answer.status == status
    assert answer.json["error"].endswith(".")
    assert "Access-Control-Allow-Origin" not in answer.headers


async def test_one_session_is_shown_in_full(
    gateway: GatewayProcess, admin: AdminClient, queue: str, broker_url: str
) -> None:
    async with StompClient.logged_in(gateway.address, host="shown") as client:
        for _ in range(2):
            await client.ask("SEND", b"hello", destination=f"/queue/{queue}")
        await client.ask("SUBSCRIBE", id="<b>", destination=f"/queue/{queue}", ack="client")
        await client.messages(2)
        identity = client.connected["session"]
        shown = await admin.json(f"/api/sessions/{identity}")
        assert shown["sends"] == [{"destination": f"/queue/{queue}", "kind": "queue", "messages": 2, "bytes": 10}]
        assert shown["subscriptions_list"] == [
            {
                "id": "<b>",
                "destination": f"/queue/{queue}",
                "ack": "client",
                "queue": queue,
                "awaits_queue": False,
                "delivered": 2,
                "redelivered": 0,
                "unacknowledged": 2,
                "delivered_bytes": 10,
            }
        ]
        # The same session in the log and in the journal.
        [started] = [line for line in gateway.logged("session started") if line["session"] == identity]
        [opened] = gateway.logged("journal opened")
        assert shown["journal"]["boot"] == opened["boot"]
        assert started["journal"] == f"{opened['boot']} {shown['journal']['session']}"

        destinations = await admin.json(f"/api/destinations?q={queue}")
        assert destinations["items"] == [
            {
                "virtual_host": "shown",
                "destination": f"/queue/{queue}",
                "kind": "queue",
                "published": 2,
                "published_bytes": 10,
                "delivered": 2,
                "delivered_bytes": 10,
                "subscriptions": 1,
            }
        ]
        hosts = {item["name"]: item for item in (await admin.json("/api/virtual-hosts"))["items"]}
        assert set(hosts) == {"/", *HOSTS}
        assert hosts["shown"]["published"] == hosts["shown"]["delivered"] == 2
        assert hosts["shown"]["sessions"] == 1
        links = (await admin.json("/api/links?virtual_host=shown&sort=purpose"))["items"]
        assert [(link["purpose"], link["channels"], link["sessions"]) for link in links] == [
            ("own", 1, 1),
            ("publish", 1, 1),
        ]
        assert identity in links[0]["name"]
        assert re.fullmatch(r"[0-9.]+", links[0]["broker_version"])
        assert links[0]["broker"] == "{}:{}".format(*_address_of(broker_url))


async def test_the_overview_has_the_totals(gateway: GatewayProcess, admin: AdminClient) -> None:
    # The clients of earlier tests have gone, which the gateway may not have noticed yet.
    before = await until(lambda: admin.json("/api/overview"), lambda overview: overview["sessions"] == 0)
    async with StompClient.logged_in(gateway.address) as client:
        await client.ask("SEND", b"hello", destination="/topic/overview")
        after = await admin.json("/api/overview")
        assert after["sessions"] == 1
        grown = {name: after["totals"][name] - before["totals"][name] for name in after["totals"]}
        assert grown["messages_published"] == grown["messages_confirmed"] == grown["sessions_started"] == 1
        assert grown["published_bytes"] == 5
        assert after["ready"] is True
        assert after["reasons"] == []
        assert 0 < after["confirm_latency_seconds"]["p50"] <= after["confirm_latency_seconds"]["p99"]


# Closing a session.


async def test_an_operator_closes_a_session(gateway: GatewayProcess, admin: AdminClient) -> None:
    async with StompClient.logged_in(gateway.address, host="closed") as client:
        path = f"/api/sessions/{client.connected['session']}"
        answer = await admin.ask(f"{path}?reason=mend%0A%00the%20roof%E2%80%A8{'x' * 300}", "DELETE")
        assert (answer.status, answer.text) == (204, "")
        error = await client.expect("ERROR", message="Closed by operator")
        assert error.body == b"mend the roof " + b"x" * (200 - len("mend the roof ")) + b"\n"
        await client.closed()
        assert (await admin.ask(path, "DELETE")).status == 404
        [line] = gateway.logged("session closed by operator")
        assert line["session"] == client.connected["session"]
        assert line["operator"].startswith("127.0.0.1:")
        found = of_host(await admin.samples(), "closed")
        assert found["sessions_ended_total operator"] == found["errors_total closed-by-operator"] == 1


async def test_a_session_can_be_closed_without_a_reason(gateway: GatewayProcess, admin: AdminClient) -> None:
    async with StompClient.logged_in(gateway.address) as client:
        await admin.ask(f"/api/sessions/{client.connected['session']}", "DELETE")
        await client.expect("ERROR", b"An operator of the gateway has closed this session.\n")
        await client.closed()


# Readiness.


async def test_without_a_broker_the_gateway_is_not_ready(broker_url: str) -> None:
    host, (port,) = "127.0.0.1", free_ports(1)
    document = configuration(broker_url, admin="127.0.0.1:0", upstream=upstream((host, port)))
    with gateway_process(document) as process:
        admin = AdminClient(process.admin)
        answer = await admin.ask("/readyz")
        assert answer.status == 503
        [reason] = answer.json["reasons"]
        assert answer.json["ready"] is False
        assert reason.startswith(f"amqp://{host}:{port}: ")
        assert (await admin.ask("/healthz")).text == "ok"
        assert (await admin.samples())["stomp_gateway_ready", frozenset()] == 0
        # A broker that hangs takes TCP connections: the kernel accepts. asyncio would leave a connection half made if
        # the test ended in that moment.
        with socket.create_server((host, port)):
            await until(lambda: admin.ask("/readyz"), lambda answer: "no answer" in answer.text)
        async with chaos(_address_of(broker_url), port=port):
            ready = await until(lambda: admin.ask("/readyz"), lambda answer: answer.status == 200)
        assert ready.json == {"ready": True, "reasons": []}


async def test_a_dead_virtual_host_is_shown_while_the_others_are_served(broker_url: str) -> None:
    [nobody] = free_ports(1)
    alive = "{}:{}".format(*_address_of(broker_url))
    dead = f"127.0.0.1:{nobody}"
    hosts = {"/": {}, "orders": {"amqp_vhost": "/", "upstream": {"urls": [f"amqp://{dead}"]}}}
    both = {"urls": [f"amqp://{dead}", f"amqp://{alive}"]}
    document = configuration(broker_url, admin="127.0.0.1:0", upstream=both, virtual_hosts=hosts)
    with gateway_process(document) as process:
        admin = AdminClient(process.admin)
        # A slow answer of the broker is news for the next request.
        await until(lambda: admin.ask("/readyz"), lambda answer: answer.status == 200)
        assert (await admin.ask("/readyz?virtual_host=/")).status == 200
        answer = await admin.ask("/readyz?virtual_host=orders")
        assert answer.status == 503
        assert answer.json["reasons"] == [f"amqp://{dead}: connection refused"]
        assert (await admin.ask("/readyz?virtual_host=unknown")).status == 404
        assert (await admin.json("/api/overview"))["virtual_hosts_down"] == ["orders"]
        async with StompClient.logged_in(process.address) as client:
            await client.disconnect()
            links = {f"upstream_links {alive}": 1}
            up = {"virtual_host_up": 1, f"upstream_up {alive}": 1}
            samples = await admin.samples()
            assert of_host(samples, "/", _NOT_OF_BROKERS) == up | links
            assert of_host(samples, "orders", _NOT_OF_BROKERS) == {}
            for name, labels in (("virtual_host_up", {}), ("upstream_up", {"broker": dead})):
                assert samples[f"stomp_gateway_{name}", frozenset({"virtual_host": "orders", **labels}.items())] == 0
            found = {item["name"]: item for item in (await admin.json("/api/virtual-hosts"))["items"]}
            assert (found["/"]["up"], found["orders"]["up"]) == (True, False)
            assert found["/"]["brokers"] == [
                {"broker": dead, "up": False, "reason": "connection refused", "links": 0, "alarm": None},
                {"broker": alive, "up": True, "reason": None, "links": 1, "alarm": None},
            ]


async def test_a_gateway_that_drains_is_alive_and_not_ready(broker_url: str) -> None:
    async with chaos(_address_of(broker_url)) as proxy:
        document = configuration(
            broker_url,
            {"confirm_window": {"messages": 1}},
            admin="127.0.0.1:0",
            upstream=upstream(proxy.address, ride_through=0),
            drain_timeout=60,
        )
        with gateway_process(document) as process:
            admin = AdminClient(process.admin)
            async with StompClient.logged_in(process.address) as client:
                await client.ask("SEND", b"x", destination="/topic/drain")
                proxy.reset()
                await client.expect("ERROR", message="connection_forced")
                found = of_host(await admin.samples(), "/")
                assert found["links_lost_total"] == found["sessions_ended_total link-lost"] == 1
                assert "links publish" not in found
            async with StompClient.logged_in(process.address) as client:
                await client.ask("SEND", b"x", destination="/topic/drain")
                assert (await admin.json("/readyz"))["ready"] is True
                proxy.stall(Direction.DOWN)
                client.write("SEND", b"x", destination="/topic/drain", receipt="late")
                held = "/api/sessions?hold=confirm-window"
                page = await until(lambda: admin.json(held), lambda page: bool(page["total"]))
                assert page["items"][0]["holds"] == ["confirm-window"]
                assert page["items"][0]["unconfirmed"] == 1
                assert (await admin.json("/api/overview"))["holds"] == {"confirm-window": 1}
                found = of_host(await admin.samples(), "/")
                assert found["holds confirm-window"] == found["messages_unconfirmed"] == 1
                process.terminate()
                answer = await until(lambda: admin.ask("/readyz"), lambda answer: answer.status == 503)
                assert answer.json == {"ready": False, "reasons": ["draining"]}
                assert (await admin.ask("/healthz")).status == 200
                proxy.release(Direction.DOWN)
                await client.expect("RECEIPT", receipt_id="late")
                await client.expect("ERROR", message="Shutting down")
            assert await process.exit_code(20) == 0


def _address_of(broker_url: str) -> tuple[str, int]:
    found = re.search(r"@?([^@/:]+):([0-9]+)(?:/|$)", broker_url)
    assert found is not None
    return found[1], int(found[2])

import asyncio
import contextlib
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench import neighbour_loads, neighbours
from tests.bench.broker import Broker
from tests.bench.environment import GATEWAY, PLUGIN
from tests.bench.neighbour_loads import LOADS, Load
from tests.bench.neighbour_run import ERROR, RECEIPT, Peer, Run
from tests.bench.neighbour_servers import DEDICATED, SHARED, TCP, TLS, WEBSOCKET, Server
from tests.bench.neighbours import Measured, Waits, main
from tests.bench.wire import NotMeasurableError, RowError
from tests.support.deadline import PATIENCE
from tests.support.virtual_time import run_in_virtual_time

_CALM = Waits.of([1.0, 2.0, 3.0])


def _done(seconds: float | None = None, *, same: float = 1.0, other: float = 1.0) -> Measured:
    return Measured(Waits.of([same]), Waits.of([other]), _CALM, seconds)


def test_an_unknown_row_is_refused_with_the_rows_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--rows", "nothing,quiet"])

    assert ended.value.code == 2
    assert "no row quiet; there are nothing, header-lines" in capsys.readouterr().err


def test_waits_are_summed_up_as_median_99th_percentile_and_worst() -> None:
    assert Waits.of([float(wait) for wait in range(200, 0, -1)]) == Waits(100.5, 199.0, 200.0, 200)


@pytest.mark.parametrize("which", ["same", "other"])
def test_a_neighbour_that_waits_longer_than_the_aim_and_the_plugins_misses_it(which: str) -> None:
    load, slow = LOADS["nothing"], _done(**{which: 80.0})

    assert _done(**{which: 49.0}).meets(load, None)
    assert not slow.meets(load, None)
    assert slow.meets(load, _done(**{which: 90.0}))
    assert not slow.meets(load, _done(**{which: 70.0}))
    assert not slow.meets(load, _done(**{"other" if which == "same" else "same": 90.0}))


@pytest.mark.parametrize(("same", "other"), [([], [1.0]), ([1.0], [])])
def test_a_neighbour_without_samples_is_an_error(same: list[float], other: list[float]) -> None:
    with pytest.raises(RowError, match="no sample"):
        Measured(Waits.of(same), Waits.of(other), _CALM, None)


def test_work_that_takes_longer_than_the_rows_aim_and_the_plugin_misses_it() -> None:
    load = LOADS["subscribes"]

    assert _done(9.0).meets(load, None)
    assert not _done(11.0).meets(load, None)
    assert _done(11.0).meets(load, _done(12.0))
    assert not _done(13.0).meets(load, _done(12.0))
    assert not _done(11.0).meets(load, _done(None))


def test_work_that_was_not_timed_misses_the_rows_aim() -> None:
    assert not _done(None).meets(LOADS["subscribes"], None)
    assert _done(None).meets(LOADS["nothing"], None)


def test_a_rows_aim_is_for_its_full_scale() -> None:
    load = LOADS["subscribes"]

    assert not _done(2.1).meets(load, None, 0.2)
    assert _done(1.9).meets(load, None, 0.2)
    assert _done(19.0).meets(load, None, 2.0)


# The rows of the list that the gateway is held to, and where each is measured.
_LISTED = {
    "nothing": "", "header-lines": "tls", "tiny-sends": "tls websocket dedicated", "transaction": "",
    "flooders": "tls websocket dedicated", "subscribes": "tls websocket dedicated", "connects": "tls", "vanish": "tls",
    "session-end": "tls websocket dedicated", "commit": "tls websocket dedicated", "commit-bytes": "",
    "disconnects": "tls", "line-feeds": "tls websocket", "half-open": "tls websocket", "wrong-passcodes": "",
    "slow-reader": "tls websocket", "full-queue": "tls websocket dedicated", "unbounded-prefetch": "tls", "tokens": "",
    "metrics": "",
}  # fmt: skip
_NAMES = [name for row, others in _LISTED.items() for name in (row, *(f"{row}-{other}" for other in others.split()))]


@pytest.mark.parametrize("name", _NAMES)
def test_a_row_is_there_and_is_measured_where_its_name_says(name: str) -> None:
    load = LOADS[name]
    _, _, where = name.rpartition("-")
    assert load.name == name
    assert load.transport == (where if where in (TLS, WEBSOCKET) else TCP)
    assert load.links == (DEDICATED if where == DEDICATED or name == "tokens" else SHARED)


def test_rows_with_an_aim_of_their_own_have_it() -> None:
    assert {name: LOADS[name].within for name in ("subscribes", "connects", "vanish")} == {
        "subscribes": 10.0,
        "connects": 4.0,
        "vanish": 0.5,
    }


# The program: what it says of a row, and how it ends.


class _Measures:
    """Stands in for the measuring; an exception is raised."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **results: Measured | Exception | list[Measured]
    ) -> None:
        self.asked: list[tuple[str, str, float]] = []
        self._results = results
        servers = {name: _server(name) for name in (PLUGIN, GATEWAY)}

        @contextlib.contextmanager
        def started(*_: object) -> Iterator[dict[str, Server]]:
            yield servers

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(neighbours, "started_servers", started)
        monkeypatch.setattr(neighbours, "measure", self._measure)

    def _measure(self, server: Server, load: Load, scale: float) -> Measured:
        self.asked.append((server.name, load.name, scale))
        result = self._results[server.name]
        if isinstance(result, list):
            result = result.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


def _server(name: str, port: int = 1) -> Server:
    ports = dict.fromkeys((TCP, TLS, WEBSOCKET), port)
    logins = (("guest", "guest"), ("other", "other"))
    return Server(name, ports, logins, {SHARED: "/", DEDICATED: "/"}, ssl.create_default_context(), Broker(""), ())


@pytest.mark.parametrize(
    ("results", "code", "verdict"),
    [
        ({"plugin": _done(1.0), "gateway": _done(1.0)}, 0, "(aim 1 s)  ok"),
        ({"plugin": _done(1.0), "gateway": _done(1.5)}, 1, "(aim 1 s)  MISSED"),
        ({"plugin": _done(2.0), "gateway": _done(1.5)}, 0, "(aim 1 s)  ok"),
        ({"plugin": _done(1.0), "gateway": _done(1.0, same=60)}, 1, "MISSED"),
        ({"plugin": _done(1.0, same=70), "gateway": _done(1.0, same=60)}, 0, "ok"),
        ({"plugin": _done(1.0), "gateway": RowError("no answer")}, 1, "FAILED: RowError('no answer')"),
        ({"plugin": TimeoutError(), "gateway": _done(1.0)}, 1, "FAILED: TimeoutError()"),
        ({"plugin": NotMeasurableError("none"), "gateway": _done(1.0)}, 0, "not measured: none"),
        ({"plugin": _done(1.0), "gateway": NotMeasurableError("none")}, 1, "not measured: none"),
    ],
)
def test_the_program_fails_with_a_row_that_failed_or_missed_its_aim(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    results: dict[str, Any],
    code: int,
    verdict: str,
) -> None:
    measures = _Measures(monkeypatch, tmp_path, **results)

    assert main(["--rows", "subscribes", "--scale", "0.1"]) == code

    times = 2 if verdict.endswith("MISSED") else 1
    assert measures.asked == [("plugin", "subscribes", 0.1), *[("gateway", "subscribes", 0.1)] * times]
    assert verdict in capsys.readouterr().out
    written = json.loads((tmp_path / "var" / "bench-neighbours.json").read_text())["subscribes"]
    assert set(written) == {side for side, result in results.items() if isinstance(result, Measured)}


@pytest.mark.parametrize(("waits", "code"), [([60, 40, 49], 0), ([60, 40, 51], 1), ([51, 52], 1), ([50], 0)])
def test_a_row_misses_its_aim_if_it_does_so_twice_of_three_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], waits: list[int], code: int
) -> None:
    measured = [_done(same=wait) for wait in waits]
    _Measures(monkeypatch, tmp_path, gateway=measured)

    assert main(["--rows", "metrics"]) == code

    assert not measured
    printed = capsys.readouterr().out
    assert (printed.count("missed, once more"), printed.count("MISSED")) == (len(waits) > 1, code)


def test_a_row_that_only_the_gateway_has_is_not_asked_of_the_plugin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measures = _Measures(monkeypatch, tmp_path, gateway=_done())

    assert main(["--rows", "metrics"]) == 0

    assert measures.asked == [("gateway", "metrics", 1.0)]


@pytest.mark.parametrize(("at_rest", "said"), [(True, ""), (False, "gateway still works after 0.5 s of rest")])
def test_servers_that_do_not_come_to_rest_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], at_rest: bool, said: str
) -> None:
    used = itertools.count()
    monkeypatch.setattr("tests.bench.processes.cpu_seconds", lambda _: 0 if at_rest else next(used))
    monkeypatch.setattr(neighbours, "_QUIET_WITHIN", 0.5)
    neighbours._await_quiet(replace(_server(GATEWAY), pids=(1,)))
    assert capsys.readouterr().err.startswith(said)
    assert at_rest == (next(used) == 0)


# The loading client.


def test_the_loading_client_counts_frames_that_arrive_in_pieces() -> None:
    peer = Peer(websocket=False)
    stream = b"CONNECTED\n\n\0RECEIPT\nreceipt-id:1\n\n\0MESSAGE\n\nRECEIPT\0" + b"RECEIPT\nreceipt-id:2\n\n\0" * 3
    for at in range(len(stream)):
        peer.data_received(stream[at : at + 1])

    assert peer.counts[b"RECEIPT\n"] == 4
    assert peer.counts[b"MESSAGE\n"] == peer.counts[b"CONNECTED\n"] == 1


async def test_the_loading_client_does_not_take_an_end_for_an_answer() -> None:
    peer = Peer(websocket=False)
    peer.data_received(b"ERROR\nmessage:no\n\n\0RECEIPT\nreceipt-id:1\n\n\0")
    peer.connection_lost(None)

    await peer.expect(RECEIPT)
    with pytest.raises(RowError, match="closed a loading client: b'ERROR"):
        await peer.expect(RECEIPT, 2)
    await peer.expect(RECEIPT, 2, or_end=True)


async def test_the_loading_client_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bench.neighbour_run._PATIENCE", 0.0)
    with pytest.raises(RowError, match="only 0 of 1,000 RECEIPT came"):
        await Peer(websocket=False).expect(RECEIPT, 1000)


def test_the_loading_client_waits_as_long_as_something_comes() -> None:
    async def receipts(pause: float) -> float:
        loop, peer = asyncio.get_running_loop(), Peer(websocket=False)
        for number in range(1, 6):
            loop.call_later(number * pause, peer.data_received, b"RECEIPT\nreceipt-id:1\n\n\0")
            # Other frames are no answer.
            loop.call_later(number * 20, peer.data_received, b"MESSAGE\n\n\0")
        await peer.expect(RECEIPT, 5)
        return loop.time()

    assert run_in_virtual_time(receipts(50)) == 250
    with pytest.raises(RowError, match="only 0 of 5 RECEIPT came, and none for 60 s"):
        run_in_virtual_time(receipts(70))


@contextlib.asynccontextmanager
async def _answering(answer: bytes) -> AsyncIterator[int]:
    """A server that gives one answer to a client's first bytes, and an end to an HTTP client; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        await writer.drain()
        if not answer.startswith(b"HTTP"):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1]


async def test_header_lines_without_an_error_fail_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _answering(b"CONNECTED\n\n\0") as port:
        run = Run(_server(GATEWAY, port), TCP, SHARED, 1e-6)
        log_in = run.session

        async def session() -> Peer:
            peer = await log_in()
            monkeypatch.setattr("tests.bench.neighbour_run._PATIENCE", 0.0)  # for what does not come
            return peer

        monkeypatch.setattr(run, "session", session)
        with pytest.raises(RowError, match="only 0 of 1 ERROR"):
            await LOADS["header-lines"].work(run)
        for peer in run.peers:
            peer.transport.close()
        await asyncio.sleep(0)


async def test_metrics_that_are_not_answered_with_200_fail_the_row() -> None:
    async with _answering(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n") as port:
        run = Run(replace(_server(GATEWAY), admin=port), TCP, SHARED, 1.0)
        with pytest.raises(RowError, match="not answered with 200"):
            await asyncio.wait_for(neighbour_loads._metrics(run), PATIENCE)


def test_the_first_bytes_of_a_client_are_those_of_its_transport() -> None:
    first = {over: Run(_server(GATEWAY), over, SHARED, 1.0).first_bytes() for over in (TCP, TLS, WEBSOCKET)}

    assert first[TCP].startswith(b"CONNECT\n")
    assert first[TLS].startswith(b"\x16\x03")
    assert first[WEBSOCKET].startswith(b"GET /ws HTTP/1.1\r\n")
    assert ERROR not in first.values()

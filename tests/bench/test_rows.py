"""Every row, with few messages, on every side that can do it: what it counts has really happened."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from deploy.local.broker import Broker
from tests.bench import environment as measured
from tests.bench import session_rows, startup
from tests.bench.environment import GATEWAY, LIMIT, PLUGIN, Environment, Sample, Side
from tests.bench.growth import measure_sessions, measure_subscriptions
from tests.bench.rows import MEASURES
from tests.bench.session_rows import measure_beats
from tests.bench.startup import StartOptions, started_environment
from tests.bench.targets import ROWS, Row
from tests.bench.wire import NotMeasurableError, RowError

COUNT = 60
SESSIONS = 5
Grown = Callable[[Environment, Side, int, int], Sample]
ORDINARY = [row for row in ROWS.values() if not row.is_memory and row.name != "beats"]
NOT_OF_THE_LIMIT = ["first_sends", "rtt_busy", "rtt_busy_50"]
BY_TRANSPORT = [name for name in ROWS if name.endswith(("_tls", "_websocket"))]

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def environment(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    assert broker.stomp_port is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "VAR", tmp_path_factory.mktemp("bench"))
        patch.setattr(measured, "_QUIET_WITHIN", 0)  # others use this broker, too
        patch.setattr(session_rows, "_BEATS_SESSIONS", SESSIONS)
        options = StartOptions(broker.amqp_url, (broker.host, broker.stomp_port))
        with started_environment(options, print) as found:
            yield replace(found, broker=replace(found.broker, control=lambda words: broker.ctl(*words)))


@pytest.mark.parametrize("side", [GATEWAY, LIMIT])
@pytest.mark.parametrize("row", ORDINARY, ids=lambda row: row.name)
def test_a_row_is_measured_and_proves_that_nothing_was_lost(row: Row, side: str, environment: Environment) -> None:
    if row.name in BY_TRANSPORT and side != GATEWAY:
        pytest.skip("this broker has one port for STOMP, and the limit speaks no STOMP")
    if row.name in NOT_OF_THE_LIMIT and side == LIMIT:
        pytest.skip("AMQP has nothing to compare it with")
    sample = MEASURES[row.name](environment, environment.sides[side], COUNT)

    assert sample.value > 0
    assert sample.operations >= COUNT - COUNT % 50


def test_sessions_that_only_beat_are_measured_by_their_cpu_time(environment: Environment) -> None:
    if environment.broker.pid is None:
        pytest.skip("the broker's process cannot be seen")
    for side in (PLUGIN, GATEWAY):
        sample = measure_beats(environment, environment.sides[side], 1)
        assert sample.operations == SESSIONS
        assert sample.seconds >= 1


@pytest.mark.parametrize("measure", [measure_sessions, measure_subscriptions])
def test_growth_is_measured_and_proves_that_nothing_was_lost(measure: Grown, environment: Environment) -> None:
    for side in (PLUGIN, GATEWAY):
        sample = measure(environment, environment.sides[side], SESSIONS, COUNT)
        assert sample.operations == COUNT
        assert sample.value > 0


@pytest.mark.parametrize("row", ["unacknowledged", "uncommitted", "idle_subscribed"])
def test_memory_is_measured(row: str, environment: Environment) -> None:
    if environment.broker.pid is None:
        pytest.skip("the broker's process cannot be seen")

    sample = MEASURES[row](environment, environment.sides[GATEWAY], 50)

    assert sample.operations == 50
    assert "gateway_kb" in sample.others


def test_a_side_without_a_port_for_a_transport_says_so(environment: Environment) -> None:
    with pytest.raises(NotMeasurableError, match="no port for tls"):
        MEASURES["e2e_tls"](environment, environment.sides[LIMIT], COUNT)


def test_a_login_that_the_broker_refuses_fails_the_row(environment: Environment) -> None:
    side = environment.sides[LIMIT]

    with pytest.raises(RowError, match="the session was refused"):
        replace(side, account=replace(side.account, passcode="wrong")).open()

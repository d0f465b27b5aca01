import pytest

from tests.bench.neighbour_loads import LOADS, Peer
from tests.bench.neighbours import Measured, Waits, main
from tests.bench.wire import RowError

_CALM = Waits.of([1.0, 2.0, 3.0])


def test_an_unknown_row_is_refused_with_the_rows_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--rows", "nothing,quiet"])

    assert ended.value.code == 2
    assert "no row quiet; there are nothing, header-lines" in capsys.readouterr().err


def test_a_neighbour_that_waits_longer_than_the_aim_and_the_plugins_misses_it() -> None:
    load, slow = LOADS["nothing"], Waits.of([80.0])

    assert Measured(_CALM, _CALM, _CALM, None).meets(load, None)
    assert not Measured(_CALM, slow, _CALM, None).meets(load, None)
    assert Measured(_CALM, slow, _CALM, None).meets(load, Measured(_CALM, Waits.of([90.0]), _CALM, None))


@pytest.mark.parametrize(("same", "other"), [([], [1.0]), ([1.0], [])])
def test_a_neighbour_without_samples_is_an_error(same: list[float], other: list[float]) -> None:
    with pytest.raises(RowError, match="no sample"):
        Measured(Waits.of(same), Waits.of(other), _CALM, None)


def test_work_that_takes_longer_than_the_rows_aim_misses_it() -> None:
    assert Measured(_CALM, _CALM, _CALM, 9.0).meets(LOADS["subscribes"], None)
    assert not Measured(_CALM, _CALM, _CALM, 11.0).meets(LOADS["subscribes"], None)


def test_the_loading_client_counts_frames_that_arrive_in_pieces() -> None:
    peer = Peer(websocket=False)
    stream = b"CONNECTED\n\n\0RECEIPT\nreceipt-id:1\n\n\0MESSAGE\n\nRECEIPT\0" + b"RECEIPT\nreceipt-id:2\n\n\0" * 3
    for at in range(len(stream)):
        peer.data_received(stream[at : at + 1])

    assert peer.counts[b"RECEIPT\n"] == 4
    assert peer.counts[b"MESSAGE\n"] == peer.counts[b"CONNECTED\n"] == 1

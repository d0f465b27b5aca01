"""Shipping to an object store: an S3 on this machine, through the library that the gateway uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import obstore
import pytest
from obstore.store import from_url

from gateway import cli
from gateway.errors import ExitCode, GatewayError
from gateway.journal.segments import mark_of
from gateway.journal.ship_targets import ObjectTarget, open_store
from gateway.journal.shipper import SegmentDiffersError, ShipError, Shipper
from tests.support.object_store import ObjectStore, running_store
from tests.unit.journal.test_shipper import contents, finished


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with running_store() as store:
        yield store


@pytest.fixture
def store(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A folder of its own; the credentials are in the environment."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"{s3.url}/{request.node.name[:40]}"


def stored(url: str) -> dict[str, bytes]:
    store = from_url(url)
    names = [meta["path"] for batch in obstore.list(store) for meta in batch]
    return {name: obstore.get(store, name).bytes().to_bytes() for name in names}


def test_segments_have_the_layout_of_the_journal(store: str, tmp_path: Path) -> None:
    for number in range(3):
        finished(tmp_path, number, b"{}\n" * 100_000)
    Shipper(tmp_path, open_store(store)).ship_now()
    assert stored(store) == contents(tmp_path)


def test_what_is_there_is_not_written_again_and_what_differs_is_refused(store: str, tmp_path: Path) -> None:
    same, other = finished(tmp_path, 1, b"same\n"), finished(tmp_path, 2, b"mine\n")
    target = ObjectTarget(store)
    for path, data in ((same, b"same\n"), (other, b"somebody else's\n")):
        obstore.put(from_url(store), f"{path.parent.name}/{path.name}", data)
    with pytest.raises(SegmentDiffersError):
        Shipper(tmp_path, target).ship_now()
    assert mark_of(same).exists()
    assert not mark_of(other).exists()
    assert b"somebody else's\n" in stored(store).values()


def test_a_store_that_refuses_is_an_error_without_secrets(
    s3: ObjectStore, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = finished(tmp_path, 1)
    with pytest.raises(ShipError, match="NoSuchBucket") as caught:
        Shipper(tmp_path, ObjectTarget("s3://nowhere/x")).ship_now()
    assert "never-in-a-log" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not mark_of(path).exists()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ShipError, match="s3://"):
        Shipper(tmp_path, ObjectTarget(store)).ship_now()
    assert not mark_of(path).exists()
    assert urlopen(s3.endpoint).status == 200  # noqa: S310 - of this machine


def test_a_url_that_no_store_has_is_refused_at_once() -> None:
    with pytest.raises(GatewayError, match="cannot be used"):
        ObjectTarget("az://container")  # no account is named anywhere


def test_the_command_ships_once_and_says_what(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished(tmp_path, 1, b"12345")
    finished(tmp_path, 2, b"12345")
    assert cli.main(["journal", "ship", str(tmp_path), "--to", store]) == ExitCode.OK
    assert capsys.readouterr().out == "2 segments shipped, 10 bytes\n"
    assert stored(store) == contents(tmp_path)
    assert cli.main(["journal", "ship", str(tmp_path), "--to", store]) == ExitCode.OK
    assert capsys.readouterr().out == "0 segments shipped, 0 bytes\n"
    assert cli.main(["journal", "ship", str(tmp_path), "--to", store, "--again"]) == ExitCode.OK
    assert capsys.readouterr().out == "2 segments shipped, 10 bytes\n"


def test_the_command_says_why_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished(tmp_path, 1)
    (tmp_path / "file").write_text("")
    assert cli.main(["journal", "ship", str(tmp_path), "--to", str(tmp_path / "file")]) == ExitCode.FAILURE
    assert "Not a directory" in capsys.readouterr().err
    assert cli.main(["journal", "ship", str(tmp_path / "no"), "--to", "/x"]) == ExitCode.FAILURE
    assert "no such directory" in capsys.readouterr().err
    secret = "s3://key:secret@bucket/x"
    with pytest.raises(SystemExit) as caught:
        cli.main(["journal", "ship", str(tmp_path), "--to", secret])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert "secret" not in capsys.readouterr().err

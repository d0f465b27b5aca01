"""What `stomp-gateway tap` keeps of its journal, as its options say."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gateway.cli.command_line import main
from gateway.errors import ExitCode
from gateway.journal.segments import SegmentName
from gateway.tap import tap_server
from gateway.tap.tap_server import TapSettings, open_journal


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ((), []),
        (("--retain", "30d"), [10]),
        (("--retain", "null"), [10, 40]),
        (("--retain", "null", "--retain-bytes", "1KiB"), [10]),
        (("--retain", "1h", "--retain-bytes", "null"), []),
    ],
)
def test_segments_are_kept_as_the_options_say(
    options: tuple[str, ...], kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = {}
    for number in (10, 40):
        path = tmp_path / "d=2026-11-01" / str(SegmentName("plugin", "n", "0123456789abcdef", 1, number))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 600)
        at = time.time() - number * 86_400
        os.utime(path, (at, at))
        days[path] = number

    async def run_tap(settings: TapSettings) -> None:
        assert open_journal(settings).virtual_host.writer.close()

    monkeypatch.setattr(tap_server, "run_tap", run_tap)
    usual = ("--listen", ":0", "--upstream", "a:1", "--journal", str(tmp_path), "--node", "n")
    assert main(["tap", *usual, *options]) == ExitCode.OK
    assert [number for path, number in days.items() if path.exists()] == kept


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--retain", "30 days", "argument --retain: A duration is"),
        ("--retain", "0", "argument --retain: This duration must be more than 0."),
        ("--retain-bytes", "4MB", "argument --retain-bytes: A size is"),
        ("--node", "a/b", "argument --node: Only letters"),
        ("--listen", "nonsense", "argument --listen: An address is written host:port."),
        ("--upstream", ":x", "argument --upstream: An address is written host:port."),
    ],
)
def test_a_value_that_a_configuration_would_not_take_is_a_mistake(
    option: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["tap", "--listen", ":0", "--upstream", "a:1", "--journal", "/x", option, text])
    assert caught.value.code == ExitCode.CONFIGURATION
    assert said in capsys.readouterr().err

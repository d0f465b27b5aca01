from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pytest

from gateway.cli.command_line import build_parser
from gateway.errors import ExitCode
from gateway.journal import stat as counting
from gateway.journal.reading import UnreadableError
from gateway.journal.segments import SegmentName
from gateway.journal.stat import BootStat, as_text, contents_of
from tests.support.journals import SECOND, START, JournalMaker


def _run(*arguments: str | Path) -> ExitCode:
    options = build_parser().parse_args(["journal", "stat", *map(str, arguments)])
    code = options.run(options)
    assert isinstance(code, ExitCode)
    return code


def _boot(directory: Path) -> BootStat:
    (boot,) = contents_of(directory).boots
    return boot


def test_everything_is_counted_as_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = JournalMaker(tmp_path, seed=1).write(500, per_segment=100)
    two = JournalMaker(tmp_path, seed=2, node="node2", start=START - 86_400 * SECOND).write(300, close=False)
    assert _run(tmp_path, "--json") == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    paths = one.segments + two.segments
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert found["segments"]["finished"] == len(paths)
    assert found["bytes"] == sum(path.stat().st_size for path in paths)
    assert found["lines"] == one.lines + two.lines
    assert found["events"] == dict(Counter(one.events) + Counter(two.events))
    assert found["errors"] == dict(Counter(line["x"] for line in lines if line["e"] == "err"))
    assert found["sessions"] == {"begun": found["events"]["conn"], "ended": found["events"]["end"]}
    assert (found["first_us"], found["last_us"]) == (min(line["t"] for line in lines), max(line["t"] for line in lines))
    assert [(boot["node"], boot["closed"], boot["lines"]) for boot in found["boots"]] == [
        ("node2", False, two.lines), ("node1", True, one.lines)
    ]  # fmt: skip
    assert {boot["gateway_version"] for boot in found["boots"]} == {"0.1.0"}
    assert all(boot["missing"] == boot["repeated"] == boot["bad_lines"] == 0 for boot in found["boots"])
    for boot, made in zip(found["boots"], (two, one), strict=True):
        drops = [
            json.loads(line) for path in made.segments for line in path.read_text().splitlines() if '"drop"' in line
        ]
        assert boot["dropped"] == sum(line["n"] for line in drops)
    sent, sent_bytes = 0.0, 0.0
    for line in lines:
        counts = line.get("cnt", {})
        weight = line.get("w", 1)
        sent += counts.get("send", 0) + (weight if line["e"] == "send" else 0)
        sent_bytes += counts.get("send_bytes", 0) + (weight * line.get("b", 0) if line["e"] == "send" else 0)
    assert sum(each["sent"] for each in found["destinations"]) == sent
    assert sum(each["sent_bytes"] for each in found["destinations"]) == sent_bytes
    totals = [each["sent"] + each["delivered"] for each in found["destinations"]]
    assert totals == sorted(totals, reverse=True)


def test_numbers_that_are_missing_or_repeated(tmp_path: Path) -> None:
    segments = JournalMaker(tmp_path, seed=1).write(500, per_segment=100).segments
    segments[2].unlink()
    assert _boot(tmp_path).missing == 100
    segments[0].unlink()
    assert (_boot(tmp_path).first_number, _boot(tmp_path).missing) == (100, 100)
    segments[4].write_bytes(segments[4].read_bytes() + segments[4].read_bytes())
    assert _boot(tmp_path).repeated == 100


def test_bad_lines_account_for_numbers_that_are_not_there(tmp_path: Path) -> None:
    segments = JournalMaker(tmp_path, seed=1).write(300, per_segment=100).segments
    content = segments[1].read_bytes().splitlines(keepends=True)
    segments[1].write_bytes(b"".join([*content[:10], b"junk\n", *content[12:]]))
    boot = _boot(tmp_path)
    assert (boot.bad_lines, boot.skipped, boot.missing) == (1, 2, 1)


def test_open_segments_count_up_to_their_last_whole_line(tmp_path: Path) -> None:
    (segment,) = JournalMaker(tmp_path, seed=1).write(50, close=False).segments
    name = SegmentName.read(segment.name)
    assert name is not None
    content = segment.read_bytes()
    segment.rename(segment.with_name(name.while_open)).write_bytes(content + b'{"e":"us')
    contents = contents_of(tmp_path)
    assert (contents.finished, contents.being_written, contents.bad_lines) == (0, 1, 0)
    assert contents.size == len(content)
    assert "being written" in "\n".join(as_text(contents))


def test_what_is_not_counted_is_reported(tmp_path: Path) -> None:
    (segment,) = JournalMaker(tmp_path, seed=1).write(50).segments
    segment.with_name(segment.name.replace(".v1.", ".v2.")).write_text("?")
    segment.with_name("notes").write_text("?")
    text = "\n".join(as_text(contents_of(tmp_path)))
    assert "1 segment of a later schema version not counted" in text
    assert "other files   1" in text


def test_a_segment_that_may_not_be_read_is_reported(tmp_path: Path) -> None:
    day = tmp_path / "d=2026-11-21"
    (day / str(SegmentName("gateway", "n", "0" * 16, 1, 0))).mkdir(parents=True)
    contents = contents_of(tmp_path)
    assert contents.unreadable == 1
    assert "unreadable    1 segment could" in "\n".join(as_text(contents))


def test_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = JournalMaker(tmp_path, seed=1).write(500, per_segment=100, close=False)
    made.segments[1].unlink()
    _run(tmp_path)
    text = capsys.readouterr().out
    assert "did not close: running, or killed" in text
    assert "100 MISSING" in text
    assert f"{made.events['send']:,}" in text or "send" in text
    assert "destinations" in text


def test_long_lists_are_cut_in_words() -> None:
    boots = [BootStat("i", f"node-{number}", "b") for number in range(70)]
    boots_in_words = list(counting._boots(boots))
    assert "node-69" in boots_in_words[-2]
    assert boots_in_words[-1] == "  and 20 earlier ones (--json has all)"
    busy = [counting.DestinationStat("/", f"/queue/{number}") for number in range(30)]
    busy_in_words = list(counting._destinations(busy))
    assert "/queue/19 " in busy_in_words[-2]
    assert busy_in_words[-1] == "  and 10 more (--json has all)"


def test_a_journal_without_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(tmp_path) == ExitCode.OK
    assert "no lines" in capsys.readouterr().out
    assert _run(tmp_path, "--json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["first_us"] is None


def test_a_journal_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot read the journal"):
        _run(tmp_path / "none")


def test_impossible_values_do_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    day = tmp_path / "d=2026-11-21"
    day.mkdir()
    lines = [
        '{"e":"\x1b[2J","t":9223372036854775807,"q":-4}',
        '{"e":"err","t":-9223372036854775808,"q":9223372036854775807}',
    ]
    (day / str(SegmentName("gateway", "n", "0" * 16, 1, 0))).write_text(
        "\n".join(lines).replace("\x1b", "\\u001b") + "\n"
    )
    _run(tmp_path)
    assert "\x1b" not in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals_and_for_what_takes_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    JournalMaker(tmp_path, seed=1).write(300, per_segment=100)
    quick = Terminal()
    contents_of(tmp_path, counting._Progress(quick))
    assert quick.getvalue() == ""
    monkeypatch.setattr(counting, "_PROGRESS_AFTER", 0.0)
    slow, pipe = Terminal(), io.StringIO()
    contents_of(tmp_path, counting._Progress(slow))
    contents_of(tmp_path, counting._Progress(pipe))
    assert "reading: 0 of " in slow.getvalue()
    assert slow.getvalue().endswith("\r\033[K")
    assert pipe.getvalue() == ""

"""`stomp-gateway parity` as its user sees it, against false servers and without a broker."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from gateway.cli import main
from gateway.errors import ExitCode
from gateway.parity.amqp_broker import AmqpBroker
from gateway.parity.comparison import Outcome, Verdict
from gateway.parity.recording import EventGroup, EventOrder, RecordedEvent
from gateway.parity.report import ParityReport, side_by_side
from gateway.parity.transcript import SETUPS, load_departures, load_transcripts
from tests.support.false_server import Answer, connected, false_server, receipt
from tests.support.gateway import Address

NOWHERE = "amqp://guest:guest@127.0.0.1:1/"  # an unprivileged process cannot listen there


def plugin_server(command: str, headers: Mapping[str, str]) -> bytes:
    """A plugin that answers as connect/receipt-ignored expects."""
    if command == "CONNECT":
        return connected("RabbitMQ/4")
    return receipt(headers["receipt"]) if "receipt" in headers else b""


def surplus_receipt_gateway(command: str, headers: Mapping[str, str]) -> bytes:
    """A gateway that sends a receipt for CONNECT too, unlike the plugin."""
    if command == "CONNECT" and "receipt" in headers:
        return connected("RabbitMQ/4 stomp-gateway/0") + receipt(headers["receipt"])
    return plugin_server(command, headers).replace(b"RabbitMQ/4", b"RabbitMQ/4 stomp-gateway/0")


def equal_gateway(command: str, headers: Mapping[str, str]) -> bytes:
    """A gateway that answers as the plugin does."""
    return plugin_server(command, headers).replace(b"RabbitMQ/4", b"RabbitMQ/4 stomp-gateway/0")


def refusing(_command: str, _headers: Mapping[str, str]) -> bytes:
    """Refuses every login."""
    return b"ERROR\nmessage:Bad CONNECT\ncontent-length:4\n\nnope\0\n"


async def run(plugin: Answer | Address, gateway: Answer | Address, *more: str) -> ExitCode:
    """Run the command in a thread, because it runs an event loop of its own."""
    async with _listening(plugin) as one, _listening(gateway) as other:
        servers = ["--plugin", f"{one[0]}:{one[1]}", "--gateway", f"{other[0]}:{other[1]}"]
        arguments = ["parity", *servers, "--amqp", NOWHERE, *more]
        return ExitCode(await asyncio.to_thread(main, arguments))


@asynccontextmanager
async def _listening(server: Answer | Address) -> AsyncIterator[Address]:
    if isinstance(server, tuple):
        yield server
        return
    async with false_server(server) as address:
        yield address


ONLY = ("--only", "connect/receipt-ignored")


async def test_equal_servers_give_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run(plugin_server, equal_gateway, *ONLY) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("equal")] == [["equal", "connect/receipt-ignored"]]
    assert lines[-2].startswith("1 rule: 1 equal, 0 departures, 0 DIFFERENT, 0 skipped (")
    assert lines[-1].startswith("warning: the broker cannot be reached over AMQP (--amqp)")


async def test_a_difference_shows_both_exchanges_and_gives_exit_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await run(plugin_server, surplus_receipt_gateway, *ONLY) == ExitCode.FAILURE
    printed = capsys.readouterr()
    assert "DIFFERENT  connect/receipt-ignored" in printed.out
    assert "the gateway goes otherwise than written" in printed.out
    assert sum(line.lstrip().startswith("> ") for line in printed.out.splitlines()) >= 1
    assert "0 equal, 0 departures, 1 DIFFERENT" in printed.out
    assert printed.err == ""  # no counter if stderr is not a terminal


async def test_without_amqp_some_transcripts_are_skipped_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await run(plugin_server, equal_gateway, "--only", "durable/offline") == ExitCode.FAILURE
    printed = capsys.readouterr().out
    assert "cannot be reached over AMQP" in printed
    assert "skipped    durable/offline" in printed
    assert "(--amqp)" in printed
    assert "warning: nothing was played" in printed


async def test_without_a_release_some_transcripts_are_skipped_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def nameless(command: str, headers: Mapping[str, str]) -> bytes:
        return plugin_server(command, headers).replace(b"server:RabbitMQ/4\n", b"")

    assert await run(nameless, equal_gateway, "--only", "frame/too-lon[g]") == ExitCode.FAILURE
    printed = capsys.readouterr().out
    assert "skipped    frame/too-long " in printed
    assert "depends on the release of RabbitMQ, which neither the plugin nor the broker tells (--amqp)" in printed


@pytest.mark.parametrize(
    ("plugin", "gateway", "words"),
    [
        (refusing, equal_gateway, ("the plugin at", "refuses the login 'guest'", "nope", "--login", "STOMP_PASSCODE")),
        (plugin_server, ("127.0.0.1", 1), ("the gateway at 127.0.0.1:1 cannot be reached", "Is it running")),
        (equal_gateway, plugin_server, ("the wrong way round",)),
        (lambda *_: b"", equal_gateway, ("closes the connection instead of answering CONNECT",)),
        (lambda *_: b"HTTP/1.1 400\r\n\r\n\n\nx\0x", equal_gateway, ("does not answer as a STOMP server does",)),
    ],
)
async def test_an_unusable_server_gives_an_error_that_says_what_to_do(
    plugin: Answer, gateway: Answer | Address, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(plugin, gateway) == ExitCode.FAILURE
    error = capsys.readouterr().err
    assert [word for word in words if word not in error] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gateway", "h:1"), "--plugin is missing"),
        (("--plugin", "h:1"), "--gateway is missing"),
        ((), "--plugin and --gateway are missing"),
        (("--plugin", "h", "--gateway", "h:1"), "--plugin must be HOST:PORT, not 'h'"),
        (("--plugin", "h:0", "--gateway", "h:1"), "--plugin must be HOST:PORT"),
        (("--plugin", "h:1", "--gateway", "h:1", "--setup", "odd"), "there is no such setup; there are plain"),
        (("--plugin", "h:1", "--gateway", "h:1", "--jobs", "0"), "--jobs must be a number from 1"),
        (("--plugin", "h:1", "--gateway", "h:1", "--only", "no-such"), "no conversation has such a name"),
        (("--plugin", "h:1", "--gateway", "h:1", "--amqp", "http://x"), "--amqp must be amqp://"),
        (("--plugin", "h:1", "--gateway", "h:1", "--amqp", "amqp://u:p@h/x"), "names the virtual host 'x'"),
        (("--plugin", "h:1", "--gateway", "h:1", "--passcode-file", "/no/such"), "--passcode-file /no/such"),
    ],
)
def test_a_wrong_command_line_gives_exit_code_2(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["parity", *arguments]) == ExitCode.CONFIGURATION
    assert words in capsys.readouterr().err


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--plugin", f"u:{SECRET}@h:1", "--gateway", "h:1"), "--plugin must be HOST:PORT alone"),
        (("--plugin", "h:1", "--gateway", f"stomp://{SECRET}"), "--gateway must be HOST:PORT alone"),
        (("--plugin", "h:1", "--gateway", "h:1", "--passcode", SECRET), "--passcode shows a passcode to everybody"),
        (("--plugin", "h:1", "--gateway", "h:1", "--amqp", f"amqp://u:{SECRET}@x@h/"), "write %40 for @"),
        (("--plugin", "h:1", "--gateway", "h:1", "--amqp", f"amqp://u:1/{SECRET}@h/"), "%2F for a slash"),
        (("--plugin", "h:1", "--gateway", "h:1", "--amqp", f"amqp://u:{SECRET}#x@h/"), "%23 for #"),
        (("--plugin", "h:1", "--gateway", "h:1", "--amqp", f"amqp://u:1?{SECRET}@h/"), "%3F for ?"),
    ],
)
def test_a_misplaced_passcode_is_refused_and_not_printed(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["parity", *arguments]) == ExitCode.CONFIGURATION
    printed = capsys.readouterr()
    assert words in printed.err
    assert SECRET not in printed.err + printed.out


async def test_of_the_amqp_url_only_host_and_port_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    await run(plugin_server, equal_gateway, *ONLY, "--amqp", f"amqp://u:{SECRET}@127.0.0.1:1/")
    printed = capsys.readouterr()
    assert "broker   127.0.0.1:1  cannot be reached" in printed.out
    assert SECRET not in printed.err + printed.out
    assert ".." not in printed.out


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("amqp://127.0.0.1:1", "amqp://guest:p%2Fw@127.0.0.1:1/a%2Fb"),
        ("amqp://127.0.0.1:1/a%2Fb", "amqp://guest:p%2Fw@127.0.0.1:1/a%2Fb"),
        ("amqp://u:v@127.0.0.1:1", "amqp://u:v@127.0.0.1:1/a%2Fb"),
    ],
)
async def test_user_and_virtual_host_need_not_be_in_the_amqp_url(
    given: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = []

    def connected(url: str) -> NoReturn:
        urls.append(url)
        raise OSError("not there")

    monkeypatch.setattr(AmqpBroker, "connected", connected)
    monkeypatch.setenv("STOMP_PASSCODE", "p/w")
    await run(plugin_server, equal_gateway, *ONLY, "--host", "a/b", "--amqp", given)
    assert urls == [asked]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
async def test_a_passcode_file_may_end_with_any_line_end(end: str, tmp_path: Path) -> None:
    heard: set[str] = set()

    def listening(command: str, headers: Mapping[str, str]) -> bytes:
        heard.add(headers.get("passcode", SECRET))
        return plugin_server(command, headers)

    file = tmp_path / "passcode"
    file.write_bytes(f"{SECRET}{end}".encode())
    await run(listening, equal_gateway, *ONLY, "--passcode-file", str(file))
    assert heard == {SECRET}


async def test_an_invalid_content_length_is_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(command: str, headers: Mapping[str, str]) -> bytes:
        return equal_gateway(command, headers).replace(b"receipt-id", b"content-length:abc\nreceipt-id")

    assert await run(plugin_server, broken, *ONLY) == ExitCode.FAILURE
    assert "the content-length is not a number: b'abc'" in capsys.readouterr().out


async def test_a_server_name_that_is_not_utf8_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    def named(command: str, headers: Mapping[str, str]) -> bytes:
        return plugin_server(command, headers).replace(b"RabbitMQ/4", b"RabbitMQ/\xff")

    assert await run(named, equal_gateway, *ONLY) == ExitCode.OK
    assert "RabbitMQ/\\xff" in capsys.readouterr().out


def test_the_setups_are_described_alike_in_the_help_and_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["parity", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    page = (Path(__file__).parents[2] / "transcripts" / "README.md").read_text("utf-8")
    assert [name for name, text in SETUPS.items() if f"{name} {text}" not in printed] == []
    assert [name for name, text in SETUPS.items() if f"| `{name}` | {text} |" not in page] == []


def test_the_list_names_every_transcript_and_its_setup(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--list"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [each.name for each in load_transcripts()]
    assert {line.split()[1] for line in lines} <= set(SETUPS)


def test_the_help_names_every_setup(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["parity", "--help"])
    printed = capsys.readouterr().out
    assert [setup for setup in SETUPS if f"\n  {setup} " not in printed] == []


def test_only_selects_by_part_or_pattern() -> None:
    assert {each.path.parent.name for each in load_transcripts("connect/*")} == {"connect"}
    assert all("nack" in each.name for each in load_transcripts("nack"))
    assert load_transcripts("nack")


# The report.


def _groups(*bodies: str) -> list[EventGroup]:
    return [EventGroup(EventOrder.EXACT, 0, [RecordedEvent("S<", "MESSAGE", (), body)]) for body in bodies]


def test_exchanges_are_side_by_side_on_a_wide_terminal() -> None:
    wide = list(side_by_side(_groups("a", "b"), _groups("a", "c"), 120))
    assert [line.count("|") for line in wide] == [1] * len(wide)
    assert [line.split() for line in wide if ">" in line] == [[">", "b", "|", ">", "c"]]
    narrow = list(side_by_side(_groups("a", "b"), _groups("a", "c"), 80))
    assert not any("|" in line for line in narrow)
    assert [line.split() for line in narrow if "> " in line] == [[">", "b"], [">", "c"]]


def test_the_end_of_a_shorter_exchange_is_marked() -> None:
    assert "    > (nothing more)" in list(side_by_side(_groups("a"), _groups("a", "b"), 80))


@pytest.mark.parametrize("width", [80, 120])
def test_long_lines_are_shortened_around_their_difference(width: int) -> None:
    same, one, other = "s" * 3000, "x" * 70_000 + "left" + "y" * 300, "x" * 70_000 + "right" + "y" * 300
    lines = list(side_by_side(_groups(same, one), _groups(same, other), width))
    printed = "".join(line.replace(" ", "") for line in lines)
    assert len(printed) < 2500
    assert [part for part in ("left", "right") if part in "".join(_columns(lines))] == ["left", "right"]
    assert [
        count for count in ("3000", "70304", "70305") if f"...({count}characters)" not in "".join(_columns(lines))
    ] == []
    assert sum("> " in line for line in lines) == (1 if width == 120 else 2)


def _columns(lines: list[str]) -> Iterator[str]:
    """Yield both columns without spaces; on a narrow terminal there is one column, and it comes twice."""
    for column in (0, -1):
        yield "".join(line.split("|")[column].replace(" ", "").replace(">", "") for line in lines)


def test_the_summary_counts_outcomes_and_prints_warnings() -> None:
    transcript = load_transcripts()[0]
    output = io.StringIO()
    report = ParityReport(output, None, width=80, departures={}, total=3, verbose=False)
    for verdict in (
        Verdict(transcript, Outcome.EQUAL),
        Verdict(transcript, Outcome.EQUAL, ("neither goes as written in line 7",)),
        Verdict(transcript, Outcome.DEPARTURE),
    ):
        report.add_verdict(verdict)
    report.print_summary(1.0, ["something is missing"])
    *_, figures, warning = output.getvalue().splitlines()
    assert figures == "3 rules: 2 equal (1 not as written), 1 departure, 0 DIFFERENT, 0 skipped (1.0 s)"
    assert warning == "warning: something is missing"


def test_a_departure_is_printed_with_its_row() -> None:
    transcript = next(each for each in load_transcripts() if each.departures)
    row = load_departures()[transcript.departures[0]]
    output = io.StringIO()
    report = ParityReport(output, None, width=80, departures=load_departures(), total=1, verbose=False)
    report.add_verdict(Verdict(transcript, Outcome.DEPARTURE))
    assert row.plugin in output.getvalue()
    assert row.gateway in output.getvalue()


def test_the_progress_counter_is_cleared_at_the_end() -> None:
    output, progress = io.StringIO(), io.StringIO()
    report = ParityReport(output, progress, width=80, departures={}, total=3, verbose=False)
    report.add_finished()
    report.print_summary(1.0)
    assert "1 of 3" in progress.getvalue()
    assert progress.getvalue().endswith("\r\x1b[K")
    assert "of 3" not in output.getvalue()


def test_a_checkout_uses_the_transcripts_of_the_tests() -> None:
    assert load_transcripts()[0].path.parents[2] == Path(__file__).parents[2]

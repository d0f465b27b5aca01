"""`stomp-gateway sessions`, `links` and `top`, asking a stand-in for the admin listener."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from gateway.admin import terminal_api, terminal_commands, terminal_output
from gateway.admin.terminal_output import Column
from gateway.cli import main
from gateway.errors import ExitCode
from tests.support.admin_api import AdminApi, a_link, a_session, serving
from tests.support.deadline import PATIENCE

ROOT = Path(__file__).parents[3]
SECRET = "correct-horse-battery"
EVIL = "\x1b]0;owned\x07\x9b31m\u202egnp.\u2028\x7f"
ALTERNATIVE, NORMAL = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminApi]:
    with serving(AdminApi()) as api:
        monkeypatch.setenv("STOMP_GATEWAY_URL", api.url)
        monkeypatch.setenv("STOMP_GATEWAY_ADMIN_URL", "http://192.0.2.1:1")  # of before: the new one comes first
        yield api


@pytest.fixture
def busy(api: AdminApi) -> AdminApi:
    api.lists["sessions"] = [
        a_session("session-a", login="billing", messages_published=12_345, virtual_host="orders", tls=True),
        a_session("session-b", login="audit", messages_delivered=7, peer="[::1]:4711", holds=["commit", "rate-limit"]),
        a_session("session-c", login=None, virtual_host=None, version=None, state="connecting", transport="websocket"),
    ]  # fmt: skip
    api.lists["links"] = [
        a_link("stomp-gateway publish / billing", channels=3),
        a_link("stomp-gateway consume / audit", purpose="consume", blocked=True, write_buffer_bytes=2048),
    ]
    return api


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(arguments) == ExitCode.OK
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: ExitCode = ExitCode.FAILURE) -> str:
    assert main(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    return shown.err


# ---- lists ----


def test_sessions_are_listed_busiest_first(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    title, *lines = printed(capsys, "sessions")
    assert title.split()[:3] == ["ID", "LOGIN", "VIRTUAL"]
    assert [line.split()[0] for line in lines] == ["session-a", "session-b", "session-c"]
    assert "12.3k" in lines[0]
    assert "commit,rate-limit" in lines[1]
    assert lines[2].split()[1:3] == ["-", "-"]


def test_columns_of_rabbitmqctl_have_its_names(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    names = (
        "session_id,conn_name,auth_login,peer_host,peer_port,host,port,protocol,ssl,implicit_connect,connection_state"
    )
    _, first, second, third = printed(capsys, "sessions", "--columns", names)
    assert first.split() == [
        "session-a", "127.0.0.1:40000", "->", "127.0.0.1:61613", "billing", "127.0.0.1", "40000", "127.0.0.1", "61613",
        "STOMP", "1.2", "true", "false", "connected",
    ]  # fmt: skip
    assert "::1 " in second
    assert "Web STOMP -" in third


def test_filters_and_order_reach_the_gateway(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(printed(capsys, "sessions", "--virtual-host", "orders")) == 2
    assert len(printed(capsys, "sessions", "--hold", "rate-limit")) == 2
    assert len(printed(capsys, "sessions", "--search", "4711")) == 2
    assert printed(capsys, "sessions", "--limit", "1")[1].startswith("session-a ")
    listed = printed(capsys, "sessions", "--sort", "id", "--reverse", "--columns", "id")
    assert listed == ["ID", "session-c", "session-b", "session-a"]
    assert printed(capsys, "sessions", "--sort", "messages_delivered")[1].startswith("session-b ")


def test_more_sessions_than_a_page_are_all_listed(api: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.lists["sessions"] = [a_session(f"session-{number}") for number in range(2100)]
    assert len(printed(capsys, "sessions", "--columns", "id")) == 2101
    assert len(printed(capsys, "sessions", "--columns", "id", "--limit", "1500")) == 1501


def test_a_session_that_moves_to_the_next_page_is_listed_once(
    api: AdminApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = api.lists["sessions"] = [a_session(f"session-{number}") for number in range(1500)]
    original = api.answer

    def answer(method: str, target: str, login: str) -> tuple[int, object]:
        answered = original(method, target, login)
        # It comes to stand first, so that the last one of this page is the first one of the next.
        sessions.insert(0, a_session("session-new", messages_published=1))
        return answered

    monkeypatch.setattr(api, "answer", answer)
    listed = printed(capsys, "sessions", "--columns", "id")
    assert sorted(listed[1:]) == sorted(f"session-{number}" for number in range(1500))


@pytest.mark.parametrize("command", [("sessions",), ("sessions", "--json"), ("links",)])
def test_a_list_that_lacks_something_says_so(
    command: tuple[str, ...], busy: AdminApi, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = printed(capsys, *command)
    busy.missing_workers = [0, 2]
    assert main(command) == ExitCode.OK
    shown = capsys.readouterr()
    assert shown.out.splitlines() == whole
    assert shown.err == "workers 0, 2 do not answer: this list lacks what is there\n"


def test_json_is_what_the_gateway_said(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads("\n".join(printed(capsys, "links", "--json"))) == busy.lists["links"]
    said = json.loads("\n".join(printed(capsys, "sessions", "--json", "--sort", "id")))
    assert said == busy.lists["sessions"]


def test_links_are_listed(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    _, publishes, consumes = printed(capsys, "links", "--columns", "purpose,blocked,channels,write_buffer_bytes,name")
    assert publishes.split(maxsplit=5) == ["publish", "no", "3", "0", "B", "stomp-gateway publish / billing"]
    assert consumes.split(maxsplit=5) == ["consume", "yes", "1", "2", "KiB", "stomp-gateway consume / audit"]


# ---- one session ----


def test_a_session_is_shown_in_full(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    busy.details["session-a"] = {
        "subscriptions_list": [
            {"id": None, "destination": "/queue/in", "ack": "auto", "queue": "in", "delivered": 5, "redelivered": 1,
             "unacknowledged": 2, "delivered_bytes": 4096},
        ],
        "sends": [{"destination": "/topic/out", "kind": "topic", "messages": 9, "bytes": 10}],
        "journal": {"boot": "b00t", "session": 17},
    }  # fmt: skip
    text = "\n".join(printed(capsys, "sessions", "show", "session-a"))
    for part in ("billing", "session 17 of boot b00t", "/queue/in", "4 KiB", "/topic/out"):
        assert part in text


def test_a_session_is_closed_with_a_reason(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "sessions", "close", "session-b", "--reason", "at 18:00 & later") == ["closed: session-b"]
    assert busy.closed == [("session-b", "at 18:00 & later")]
    assert "There is no such session." in refused(capsys, "sessions", "close", "session-b")


def test_a_refusal_to_close_is_told_in_the_gateways_words(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    busy.may_close = False
    assert "Configure users" in refused(capsys, "sessions", "close", "session-a")


# ---- what goes wrong ----


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{taken.getsockname()[1]}"
        error = refused(capsys, "sessions", "--url", url)
    assert f"http://{url}: nothing listens there. Is the gateway running" in error
    assert "--url or STOMP_GATEWAY_URL" in error


def test_something_else_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_speak_stomp, args=(server,))
        thread.start()
        error = refused(capsys, "links", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert "does not speak HTTP. Is it a port for STOMP or AMQP" in error


def _speak_stomp(server: socket.socket) -> None:
    peer, _ = server.accept()
    with peer:
        peer.sendall(b"ERROR\nmessage:Illegal command\n\n\0")


def test_a_page_that_is_not_the_api(api: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "top", "--once", "--url", f"{api.url}/elsewhere")
    assert "There is nothing here." in error


def test_an_answer_does_not_flood_the_terminal(api: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.broken = "no " * 100_000
    error = refused(capsys, "links")
    assert "no no no" in error
    assert len(error) < 1000


def test_an_answer_without_end_is_not_read_to_its_end(
    api: AdminApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_api, "_MAX_ANSWER", 100_000)
    api.broken = "no " * 100_000
    assert "no no" not in refused(capsys, "links")


def test_a_login_is_asked_for_and_sent(
    busy: AdminApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    busy.credentials = ("ops", SECRET)
    assert "it asks for a user. Give --user and --passcode-file" in refused(capsys, "links")
    assert "the passcode is wrong" in refused(capsys, "links", "--user", "ops")
    monkeypatch.setenv("STOMP_GATEWAY_ADMIN_PASSCODE", SECRET)
    assert len(printed(capsys, "links", "--user", "ops")) == 3
    monkeypatch.setenv("STOMP_GATEWAY_ADMIN_PASSCODE", "another")
    file = tmp_path / "passcode"
    file.write_text(SECRET + "\n")
    # Before the action and behind it.
    assert printed(capsys, "sessions", "--user", "ops", "--passcode-file", str(file), "close", "session-a")
    assert printed(capsys, "sessions", "close", "session-b", "--user", "ops", "--passcode-file", str(file))
    monkeypatch.setenv("STOMP_GATEWAY_USER", "ops")
    monkeypatch.setenv("STOMP_GATEWAY_PASSCODE_FILE", str(file))
    assert len(printed(capsys, "links")) == 3
    assert "the passcode is wrong" in refused(capsys, "links", "--user", "another")
    monkeypatch.setenv("STOMP_GATEWAY_PASSCODE_FILE", "/none")
    assert "STOMP_GATEWAY_PASSCODE_FILE /none: This file cannot be read: No such file" in refused(
        capsys, "links", code=ExitCode.CONFIGURATION
    )
    file.write_text(SECRET + "\n\n")
    assert len(printed(capsys, "links", "--passcode-file", str(file))) == 3


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--passcode", SECRET), "can be seen by others"),
        (("--url", f"http://ops:{SECRET}@127.0.0.1"), "no passcode in the URL"),
        (("--url", f"ftp://{SECRET}"), "must be like http://127.0.0.1:15693"),
        (("--url", "http://127.0.0.1:99999"), "must be like http://127.0.0.1:15693"),
        (("--passcode-file", "/none"), "--passcode-file needs --user"),
        (("--user", "ops", "--passcode-file", "/none"), "No such file"),
        (("--url", "https://127.0.0.1", "--ca-file", "/none"), "--ca-file /none: No such file"),
        (("--columns", "id,logim"), "--columns: logim. There are id, login,"),
        (("--columns", ","), "--columns: none given"),
        (("--sort", "colour"), "--sort colour: there are id, login,"),
        (("--limit", "-1"), "give a number of lines"),
    ],
)
def test_wrong_options_end_with_2(arguments: tuple[str, ...], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "sessions", *arguments, code=ExitCode.CONFIGURATION)
    assert part in error
    assert SECRET not in error


def test_a_filter_that_the_gateway_does_not_understand(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    busy.broken = f"There is no such hold {EVIL}"
    error = refused(capsys, "sessions", "--hold", "colour")
    assert "There is no such hold" in error
    assert harmless(error)


# ---- what strangers chose ----


def harmless(text: str) -> bool:
    return all(letter == "\n" or unicodedata.category(letter)[0] != "C" for letter in text) and "\u2028" not in text


def test_nothing_that_a_client_chose_moves_the_terminal(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    busy.lists["sessions"][0] |= {"login": EVIL, "peer": EVIL, "virtual_host": EVIL}
    busy.lists["links"][0] |= {"login": EVIL, "name": EVIL}
    busy.overview["reasons"] = [EVIL]
    busy.overview["ready"] = False
    busy.overview["errors"] = {EVIL: 3}
    send = {"destination": EVIL, "kind": "queue", "messages": 1, "bytes": 1}
    busy.details["session-a"] = {"sends": [send]}
    commands = (
        ("sessions",), ("sessions", "--json"), ("sessions", "show", "session-a"), ("links", "--columns", "name,login"),
        ("links", "--json"), ("top", "--once", "--interval", "0.1"), ("sessions", "show", "session-a", "--json"),
    )  # fmt: skip
    for command in commands:
        text = "\n".join(printed(capsys, *command))
        assert "owned" in text
        assert harmless(text), command


def test_letters_that_the_terminal_does_not_have(busy: AdminApi) -> None:
    busy.lists["sessions"][0] |= {"login": "Jürgen"}
    command = [sys.executable, "-m", "gateway", "sessions", "--columns", "login", "--limit", "1"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines() == ["LOGIN", r"J\xfcrgen"]


def test_different_texts_never_look_the_same() -> None:
    assert terminal_output.clean("a\x1b") == r"a\x1b"
    assert terminal_output.clean(r"a\x1b") == r"a\\x1b"
    assert terminal_output.clean("Jürgen 日本") == "Jürgen 日本"


def test_columns_stay_in_line_with_wide_and_combining_letters() -> None:
    columns = [Column("A", lambda item, _: item["a"]), Column("B", lambda item, _: item["b"], is_number=True)]
    lines = terminal_commands.table(columns, [{"a": "日本", "b": "1"}, {"a": "e\u0301", "b": "22"}])
    assert list(lines) == ["A      B", "日本   1", "e\u0301     22"]
    assert terminal_commands.cut("日本語", 5) == "日本~"


@pytest.mark.parametrize("module", ["rich", "aio_pika"])
def test_other_commands_do_not_load_what_only_a_terminal_or_a_broker_needs(module: str) -> None:
    program = f"import sys, gateway.cli; gateway.cli.main(['schema']); sys.exit('{module}' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.DEVNULL, timeout=60, check=True)


# ---- top ----


def test_top_once_prints_rates_and_the_busiest_first(
    busy: AdminApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = busy.answer

    def answer(method: str, target: str, login: str) -> tuple[int, object]:
        if target.startswith("/api/overview"):
            busy.overview["totals"]["messages_published"] += 1000
            busy.lists["sessions"][1]["messages_delivered"] += 500
        return original(method, target, login)

    monkeypatch.setattr(busy, "answer", answer)
    busy.overview["errors"] = {"no-route": 3}
    lines = printed(capsys, "top", "--once", "--interval", "0.1")
    assert lines[0] == "stomp-gateway 0.1.0 on orders-1   up 1 h   ready"
    came = re.match(r"in +([0-9.,k]+)/s", lines[2])
    assert came is not None
    assert came[1] not in ("0", "-")
    assert "no-route 3" in lines[5]
    assert [line.split()[0] for line in lines[8:]] == ["audit", "billing", "-"]


def test_top_keeps_its_columns_when_a_login_is_long(api: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.lists["sessions"] = [a_session("session-a", login="x" * 500)]
    text = "\n".join(printed(capsys, "top", "--once", "--interval", "0.1"))
    assert "x" * 20 in text
    assert "x" * 31 not in text


@pytest.mark.parametrize("interval", ["10ms", "2d"])
def test_top_looks_neither_without_a_pause_nor_never(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "top", f"--interval={interval}", code=ExitCode.CONFIGURATION)
    assert "--interval of 0.1 to 86400 seconds" in error


def test_top_names_the_virtual_hosts_without_a_broker(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    busy.overview["virtual_hosts_down"] = ["orders", "invoices"]
    assert "NO BROKER FOR orders, invoices" in printed(capsys, "top", "--once", "--interval", "0.1")[0]


def test_top_says_why_a_gateway_is_not_ready(busy: AdminApi, capsys: pytest.CaptureFixture[str]) -> None:
    busy.overview |= {"ready": False, "reasons": ["no broker can be reached"]}
    assert "NOT READY: no broker can be reached" in printed(capsys, "top", "--once", "--interval", "0.1")[0]


def test_top_says_that_sessions_are_missing_and_does_not_take_them_for_new_ones(
    busy: AdminApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, (late, *others) = busy.answer, busy.lists["sessions"]
    busy.lists["sessions"], busy.missing_workers = others, [1]

    def answer(method: str, target: str, login: str) -> tuple[int, object]:
        answered = original(method, target, login)
        if "sessions" in target:
            # From the next look on.
            busy.lists["sessions"], busy.missing_workers = [late, *others], []
        return answered

    monkeypatch.setattr(busy, "answer", answer)
    (row,) = (line for line in printed(capsys, "top", "--once", "--interval", "0.1") if "billing" in line)
    assert row.split()[-3:] == ["-", "-", "session-a"]
    busy.lists["sessions"], busy.missing_workers = others, [1]
    monkeypatch.setattr(busy, "answer", original)
    title = printed(capsys, "top", "--once", "--interval", "0.1")[0]
    assert title.endswith("up 1 h   WORKER 1 DOES NOT ANSWER, so sessions are missing   ready")


class Terminal:
    """`stomp-gateway top` on a terminal of so many columns; with 0 it does not know its size."""

    def __init__(self, columns: int, url: str, kind: str = "xterm") -> None:
        self._end, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24 if columns else 0, columns, 0, 0))
        self.settings = termios.tcgetattr(inner)
        self._inner = inner
        command = [sys.executable, "-m", "gateway", "top", "--interval", "0.1", "--url", url]
        environment = {**os.environ, "TERM": kind}
        self.child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
        )
        self.shown = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self._end)
        os.close(self._inner)

    def until(self, part: bytes) -> None:
        """Read until it is there, in what comes from now on."""
        self.shown = b""
        while part not in self.shown:
            assert select.select([self._end], [], [], PATIENCE)[0], self.shown
            self.shown += os.read(self._end, 1 << 16)

    def press(self, key: bytes) -> None:
        os.write(self._end, key)

    def ended(self) -> int:
        """Read the rest, and return the exit code; the terminal must be as it was."""
        deadline = time.monotonic() + PATIENCE
        while self.child.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self._end], [], [], 0.02)[0]:
                self.shown += os.read(self._end, 1 << 16)
        while select.select([self._end], [], [], 0)[0]:
            self.shown += os.read(self._end, 1 << 16)
        assert NORMAL in self.shown
        assert self.shown.rindex(NORMAL) > self.shown.rfind(b"stomp-gateway 0.1.0")
        assert termios.tcgetattr(self._inner) == self.settings
        return self.child.returncode


@pytest.mark.parametrize(("columns", "fit"), [(60, 60), (0, 80)])
def test_top_ends_with_q(columns: int, fit: int, busy: AdminApi) -> None:
    with Terminal(columns, busy.url) as terminal:
        terminal.until(ALTERNATIVE)
        terminal.until(b"audit")
        pictures = terminal.shown.decode().split("\x1b[H")
        lines = [re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", line) for each in pictures for line in each.split("\r\n")]
        assert max(map(len, lines)) <= fit
        terminal.press(b"q")
        assert terminal.ended() == ExitCode.OK


def test_top_prints_once_on_a_terminal_that_cannot_be_redrawn(busy: AdminApi) -> None:
    with Terminal(100, busy.url, "dumb") as terminal:
        terminal.until(b"audit")
        assert terminal.child.wait(PATIENCE) == ExitCode.OK
        assert b"\x1b" not in terminal.shown


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)]
)
def test_top_gives_the_terminal_back(number: signal.Signals, code: ExitCode, busy: AdminApi) -> None:
    with Terminal(100, busy.url) as terminal:
        terminal.until(b"audit")
        terminal.child.send_signal(number)
        assert terminal.ended() == code


def test_top_goes_on_while_the_gateway_does_not_answer(busy: AdminApi) -> None:
    with Terminal(100, busy.url) as terminal:
        terminal.until(b"audit")
        busy.broken = "Processing error"
        terminal.until(b"NO ANSWER, what follows is old")
        busy.broken = None
        busy.lists["sessions"].append(a_session("session-d", login="latecomer"))
        terminal.until(b"latecomer")
        terminal.press(b"q")
        assert terminal.ended() == ExitCode.OK

"""Log lines: one place, one format, no secrets."""

import errno
import io
import json
import logging
from pathlib import Path

import pytest
import structlog

from gateway.config.model import Logging
from gateway.server.process.logs import configure_logs

SECRET = "correct-horse-battery"


def logged(settings: Logging) -> io.StringIO:
    stream = io.StringIO()
    configure_logs(settings, stream)
    return stream


def test_json_lines_are_objects_with_event_level_and_time() -> None:
    stream = logged(Logging(format="json"))
    structlog.get_logger("gateway").info("session started", peer="127.0.0.1:5")
    line = json.loads(stream.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "session started", "level": "info", "peer": "127.0.0.1:5"}


def test_console_lines_are_for_people() -> None:
    stream = logged(Logging(format="console"))
    structlog.get_logger("gateway").warning("link lost", broker="amqp://rabbit-a:5672")
    assert "link lost" in stream.getvalue()
    assert "broker=amqp://rabbit-a:5672" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_nothing_below_the_level_is_written() -> None:
    stream = logged(Logging(level="warning"))
    structlog.get_logger("gateway").info("quiet")
    logging.getLogger("somebody").info("quiet")
    assert stream.getvalue() == ""


def test_libraries_use_the_same_lines_and_say_little() -> None:
    stream = logged(Logging(format="json", level="debug"))
    logging.getLogger("aiormq.connection").error("a traceback for each lost connection")
    logging.getLogger("asyncio").info("a line about its own workings")
    logging.getLogger("asyncio").warning("closed %s", "by peer")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["closed by peer"]


@pytest.mark.parametrize("settings", [Logging(format="json"), Logging(format="console")])
def test_no_line_holds_a_passcode_from_a_url_or_from_a_variable(settings: Logging) -> None:
    stream = logged(settings)
    passcode = SECRET
    url = f"amqp://guest:{passcode}@rabbit-a:5672/orders"
    log = structlog.get_logger("gateway")
    try:
        raise ConnectionError(url)
    except ConnectionError:
        log.exception("link failed", url=url, tried=[url])
        logging.getLogger("asyncio").exception("cannot connect to %s", url)
    assert stream.getvalue().count("amqp://guest:***@rabbit-a:5672/orders") == 5
    assert SECRET not in stream.getvalue()


@pytest.mark.parametrize("settings", [Logging(format="json"), Logging(format="console")])
def test_no_text_of_a_client_begins_a_line_or_moves_a_terminal(settings: Logging) -> None:
    stream = logged(settings)
    evil = "\x1b]0;owned\x07\x9b31m\u202egnp.\u2028\x7f\nlevel=error"
    structlog.get_logger("gateway").info("login refused", login=evil)
    structlog.get_logger("gateway").info("login refused", login="\x1b[31mred")
    logging.getLogger("aiohttp.web").error("bad request %s", evil)
    try:
        raise ValueError("\x1b[31mred")
    except ValueError:
        structlog.get_logger("gateway").exception("internal error")
    text = stream.getvalue()
    assert "Traceback" in text
    assert all(char.isprintable() or char == "\n" for char in text)
    assert sum("owned" in line and "level=error" in line for line in text.split("\n")) == 2


def test_a_library_may_call_anything_an_exception() -> None:
    stream = logged(Logging(format="json"))
    logging.getLogger("aiohttp.web").error("see http://example.org", extra={"exception": ValueError("why")})
    assert "ValueError('why')" in stream.getvalue()


def test_setting_up_twice_does_not_double_the_lines() -> None:
    logged(Logging())
    stream = logged(Logging(format="json"))
    structlog.get_logger("gateway").info("once")
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("settings", [Logging(format="json"), Logging(format="console")])
def test_another_level_holds_for_loggers_that_were_used_before(settings: Logging) -> None:
    log = structlog.get_logger("gateway")
    stream = logged(settings.model_copy(update={"level": "debug"}))
    log.debug("first")
    assert "first" in stream.getvalue()
    stream = logged(settings.model_copy(update={"level": "warning"}))
    log.info("second")
    log.warning("third")
    assert "second" not in stream.getvalue()
    assert "third" in stream.getvalue()


class FullDisk(io.StringIO):
    """Takes nothing."""

    def write(self, text: str, /) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_line_that_cannot_be_written_stops_nothing() -> None:
    configure_logs(Logging(), FullDisk())
    structlog.get_logger("gateway").info("session started")


def test_a_line_is_written_at_once(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("w") as stream:
        configure_logs(Logging(), stream)
        structlog.get_logger("gateway").info("session started")
        assert "session started" in file.read_text()

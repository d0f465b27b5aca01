"""A log line without colours, which the gateway puts together itself, is the one that structlog makes."""

import io

import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.model import Logging
from gateway.server.process.logs import configure_logs

# What is not printable is escaped before, see tests/unit/server/process/test_logs.py.
texts = st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from(" ='\"\\"), max_size=40).filter(
    lambda text: "://" not in text
)
names = st.sampled_from(("session", "peer", "login", "reason", "logger", "logger_name", "left_out", "größe", "a b"))
quoted = st.sampled_from(" ='\"").map(lambda char: f"a{char}b")
values = (
    texts | quoted | st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=9) | st.lists(texts)
)


@given(st.sampled_from(("info", "warning", "error")), texts, st.dictionaries(names, values))
def test_a_plain_line_is_that_of_structlog(level: str, event: str, facts: dict[str, object]) -> None:
    stream = io.StringIO()
    configure_logs(Logging(format="console"), stream)
    getattr(structlog.get_logger("gateway"), level)(event, **facts)
    line = stream.getvalue()
    console = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    timestamp = line.partition(" ")[0]
    assert line == f"{console(None, level, {**facts, 'event': event, 'level': level, 'timestamp': timestamp})}\n"

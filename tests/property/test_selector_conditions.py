"""Selectors mean what SQL means: SQLite evaluates the same expressions over the same values.

SQLite has types where a selector has texts that may be numbers. So each name here holds numbers, texts or truths alone,
and a condition compares what is alike.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import SelectorError
from gateway.message_selectors.selector import read_selector

NUMBERS = ("n1", "n2", "n3")
TEXTS = ("t1", "t2")
TRUTHS = ("b1", "b2")

Row = dict[str, str | int | float | bool | None]


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("PRAGMA case_sensitive_like = ON")
        yield connection
    connection.close()


_TEXT = st.text("abA%_\n'", max_size=4)
_NUMBER = st.none() | st.integers(-20, 20) | st.sampled_from([0.5, -2.25, 1e3])
ROWS: st.SearchStrategy[Row] = st.fixed_dictionaries(
    {name: _NUMBER for name in NUMBERS}
    | {name: st.none() | _TEXT for name in TEXTS}
    | {name: st.none() | st.booleans() for name in TRUTHS}
)

SUMS = st.recursive(
    st.sampled_from([*NUMBERS, "0", "2", "17", "1.5", ".5", "2.", "1e2", "25E-1"]),
    lambda part: (
        st.tuples(part, st.sampled_from(["+", "-", "*"]), part).map(" ".join)
        | st.tuples(part, part).map(lambda pair: f"({pair[0]} + 0.0) / ({pair[1]})")
        | part.map(lambda inner: f"(- {inner})")
        | part.map(lambda inner: f"({inner})")
    ),
    max_leaves=4,
)
LITERALS = _TEXT.map(lambda text: "'" + text.replace("'", "''") + "'")
# With an escape only before what is special: SQLite takes one away from in front of anything.
PATTERNS = st.lists(st.sampled_from(["a", "b", "A", "%", "_", "!%", "!_", "!!", "''"]), max_size=6).map(
    lambda pieces: "'" + "".join(pieces) + "' ESCAPE '!'"
)
_WORD = st.sampled_from(["", "NOT "])
_NAMED = st.sampled_from(TEXTS)

COMPARISONS = st.one_of(
    st.tuples(SUMS, st.sampled_from([" = ", " <> ", " < ", " <= ", " > ", " >= "]), SUMS).map("".join),
    st.tuples(SUMS, st.just(" "), _WORD, st.just("BETWEEN "), SUMS, st.just(" AND "), SUMS).map("".join),
    st.tuples(_NAMED, st.sampled_from([" = ", " <> "]), LITERALS | _NAMED).map("".join),
    st.tuples(_NAMED, st.just(" "), _WORD, st.lists(LITERALS, min_size=1, max_size=3).map(", ".join)).map(
        lambda parts: "{}{}{}IN ({})".format(*parts)
    ),
    st.tuples(_NAMED, st.just(" "), _WORD, st.just("LIKE "), PATTERNS).map("".join),
    st.tuples(st.sampled_from(NUMBERS + TEXTS + TRUTHS), st.just(" IS "), _WORD, st.just("NULL")).map("".join),
    st.sampled_from([*TRUTHS, "TRUE", "FALSE", "b1 = TRUE", "b2 <> FALSE"]),
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda part: (
        st.tuples(part, st.sampled_from(["AND", "OR"]), part).map(" ".join)
        | part.map(lambda inner: f"NOT {inner}")
        | part.map(lambda inner: f"({inner})")
    ),
    max_leaves=5,
)


_WORDS = """= <> < <= > >= + - * / % ( ) , AND OR NOT BETWEEN IN LIKE ESCAPE IS NULL TRUE false a b "c-d" 'x' '%' 5
0x1 017 .5 1e3 5L hyphenated_props:""".split()


@given(
    st.lists(st.sampled_from(_WORDS), max_size=25).map(lambda words: " ".join(words).encode())
    | CONDITIONS.map(str.encode)
    | st.text(max_size=40).map(str.encode)
    | st.binary(max_size=20),
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c-d", b"n1", b"t1"]), st.binary(max_size=30)), max_size=5),
)
@settings(max_examples=50)
def test_no_text_and_no_header_is_more_than_an_error(text: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    with suppress(SelectorError):
        selector = read_selector(text)
        assert selector is None or isinstance(selector.matches(headers), bool)


def as_header(value: str | float | bool) -> bytes:
    return (value if isinstance(value, str) else str(value)).encode()


@given(CONDITIONS, ROWS)
def test_a_selector_selects_what_sqlite_selects(database: sqlite3.Connection, condition: str, row: Row) -> None:
    columns = ", ".join(f":{name} AS {name}" for name in row)
    query = f"SELECT ({condition}), NOT ({condition}) FROM (SELECT {columns})"  # noqa: S608 - of our own making
    (expected,) = database.execute(query, row)
    headers = [(name.encode(), as_header(value)) for name, value in row.items() if value is not None]
    found = [read_selector(text.encode()) for text in (condition, f"NOT ({condition})")]
    assert [each is not None and each.matches(headers) for each in found] == [bool(value) for value in expected]

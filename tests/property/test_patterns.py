"""Patterns fit what the same pattern of regular expressions fits, and what their stars stood for puts them together."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.patterns import Pattern

# Few letters, so that texts fit often, and in several ways.
LETTERS = st.sampled_from([b"a", b"b", b"/"])
TEXTS = st.lists(LETTERS, max_size=12).map(b"".join)
PATTERNS = st.lists(st.one_of(LETTERS, st.just(b"*")), max_size=8).map(b"".join)


def expected(pattern: bytes, text: bytes) -> tuple[bytes, ...] | None:
    found = re.fullmatch(b"(.*?)".join(re.escape(part) for part in pattern.split(b"*")), text, re.DOTALL)
    return None if found is None else found.groups()


@given(pattern=PATTERNS, text=TEXTS)
@example(pattern=b"ab*ba", text=b"aba")
@example(pattern=b"a*b*a", text=b"aba")
@example(pattern=b"a*ab*b", text=b"ab")
def test_a_pattern_fits_what_the_expression_fits(pattern: bytes, text: bytes) -> None:
    assert Pattern(pattern).match(text) == expected(pattern, text)


@given(pattern=PATTERNS, values=st.lists(TEXTS, min_size=8, max_size=8).map(tuple))
def test_a_filled_pattern_fits_itself(pattern: bytes, values: tuple[bytes, ...]) -> None:
    made = Pattern(pattern)
    text = made.filled(values)
    stood_for = made.match(text)
    assert stood_for is not None
    assert made.filled(stood_for) == text

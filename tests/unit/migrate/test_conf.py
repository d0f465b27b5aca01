"""The reader of rabbitmq.conf."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.migrate.conf import read_conf, settled, variables


def values(text: str) -> dict[str, str]:
    conf = read_conf(text, "rabbitmq.conf")
    assert not conf.mistakes
    lines, mistakes = settled(conf.lines)
    assert not mistakes
    return {line.key: line.value for line in lines}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a.b = 1", "1"),
        ("a.b=1", "1"),
        ("\ta.b\t=  1 \t\r", "1"),
        ("a.b = two  words", "two  words"),
        ("a.b = 1 # comment", "1"),
        ("a.b = one#two", "one"),
        ("a.b = 'one#two'", "one#two"),
        ("a.b = 'one # two' # comment", "one # two"),
        ("a.b = ''", ""),
        ("a.b = it's", "it's"),
        ("a.b = 'x' y", "'x' y"),
        ("a.b = 'open", "'open"),
        ('a.b = "quoted"', '"quoted"'),
        ("a.b = x = y", "x = y"),
        ("a.b = ::1:61613", "::1:61613"),
        ("a.b = café", "café"),
    ],
)
def test_a_value_is_what_the_broker_takes_for_it(line: str, value: str) -> None:
    assert values(line) == {"a.b": value}


def test_the_last_line_of_a_key_counts_and_dots_can_be_escaped() -> None:
    conf = read_conf("a.b = 1\n\n  # a comment\na\\.x.y = 7\na.b = 2", "rabbitmq.conf")
    lines, _ = settled(conf.lines)
    assert [(line.key, line.value, line.line) for line in lines] == [("a\\.x.y", "7", 4), ("a.b", "2", 5)]


def test_a_value_may_refer_to_another_key_or_to_a_variable() -> None:
    found = values("user = $(name)-$(SUFFIX)\nname = app")
    assert found["user"] == "app-$(SUFFIX)"
    assert variables(found["user"]) == ["SUFFIX"]


def test_references_in_circles_are_mistakes() -> None:
    conf = read_conf("a = $(b)\nb = $(a)\nc = $(no such)", "rabbitmq.conf")
    _, mistakes = settled(conf.lines)
    assert [(line.key, sentence[:20]) for line, sentence in mistakes] == [
        ("a", "It refers to a key t"),
        ("b", "It refers to a key t"),
        ("c", "It refers to somethi"),
    ]


def test_references_cannot_make_a_value_as_long_as_they_like() -> None:
    conf = read_conf(f"a = {'x' * 1000}\nb = {'$(a)' * 100}\nc = {'$(a)' * 10}", "rabbitmq.conf")
    lines, mistakes = settled(conf.lines)
    assert [(line.key, len(line.value)) for line in lines] == [("a", 1000), ("b", 0), ("c", 10000)]
    assert [(line.key, sentence) for line, sentence in mistakes] == [
        ("b", "With the values of the keys that it refers to, it is too long.")
    ]


@pytest.mark.parametrize("line", ["a.b", "a b = 1", "= 1", "a..b = 1", "a. = 1", "[{a, b}].", "a.b =", "a.b = # none"])
def test_what_is_no_setting_is_a_mistake_in_its_line(line: str) -> None:
    conf = read_conf(f"x = 1\n{line}\ny = 2", "rabbitmq.conf")
    assert [number for number, _ in conf.mistakes] == [2]
    assert [found.key for found in conf.lines] == ["x", "y"]


def test_other_files_are_named() -> None:
    conf = read_conf("include conf.d/*.conf # more", "rabbitmq.conf")
    assert conf.includes == ((1, "conf.d/*.conf"),)


@given(st.text(max_size=80))
def test_any_text_is_settings_and_mistakes(text: str) -> None:
    conf = read_conf(text, "rabbitmq.conf")
    settled(conf.lines)
    assert all(1 <= line.line <= text.count("\n") + 1 for line in conf.lines)

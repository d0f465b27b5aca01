"""The reader of rabbitmq.conf."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.migrate.output import MigrationReport
from gateway.migrate.rabbitmq_conf import ConfFile, ConfLine, ConfReader, effective_lines, variables


def read(text: str) -> tuple[list[ConfLine], MigrationReport]:
    report = MigrationReport()
    return effective_lines(read_lines(text, report), report), report


def read_lines(text: str, report: MigrationReport) -> list[ConfLine]:
    file = ConfFile(Path("/no such folder/rabbitmq.conf"), "rabbitmq.conf", text)
    return list(ConfReader(report, ["rabbitmq.conf"]).lines(file))


def values(text: str) -> dict[str, str]:
    lines, report = read(text)
    assert not report.mistakes
    return {line.origin.key: line.value for line in lines}


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
    lines, _ = read("a.b = 1\n\n  # a comment\na\\.x.y = 7\na.b = 2")
    assert [(line.origin.key, line.value, line.origin.line) for line in lines] == [("a\\.x.y", "7", 4), ("a.b", "2", 5)]


def test_a_value_may_refer_to_another_key_or_to_a_variable() -> None:
    found = values("user = $(name)-$(SUFFIX)\nname = app")
    assert found["user"] == "app-$(SUFFIX)"
    assert variables(found["user"]) == ["SUFFIX"]


def test_references_in_circles_are_mistakes() -> None:
    _, report = read("a = $(b)\nb = $(a)\nc = $(no such)")
    assert [mistake.split(" that")[0] for mistake in report.mistakes] == [
        "rabbitmq.conf:1 a: It refers to a key",
        "rabbitmq.conf:2 b: It refers to a key",
        "rabbitmq.conf:3 c: It refers to something",
    ]


def test_references_cannot_make_a_value_as_long_as_they_like() -> None:
    lines, report = read(f"a = {'x' * 1000}\nb = {'$(a)' * 100}\nc = {'$(a)' * 10}")
    assert [(line.origin.key, len(line.value)) for line in lines] == [("a", 1000), ("b", 0), ("c", 10000)]
    assert report.mistakes == ["rabbitmq.conf:2 b: With the values of the keys that it refers to, it is too long."]


@pytest.mark.parametrize("line", ["a.b", "a b = 1", "= 1", "a..b = 1", "a. = 1", "[{a, b}].", "a.b =", "a.b = # none"])
def test_what_is_no_setting_is_a_mistake_in_its_line(line: str) -> None:
    lines, report = read(f"x = 1\n{line}\ny = 2")
    assert [mistake.partition(": ")[0] for mistake in report.mistakes] == ["rabbitmq.conf:2"]
    assert [found.origin.key for found in lines] == ["x", "y"]


@given(st.text(max_size=80))
def test_any_text_is_settings_and_mistakes(text: str) -> None:
    lines, _ = read(text)
    assert all(1 <= line.origin.line <= text.count("\n") + 1 for line in lines)

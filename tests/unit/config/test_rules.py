"""What operators lay down for clients: rules and arguments that could never count, or that no broker takes."""

from __future__ import annotations

import pytest

from gateway.config.loader import parse
from gateway.config.rules import DestinationRule, QueueArguments
from gateway.config.virtual_host import VirtualHost
from gateway.errors import ConfigError, Mistake
from gateway.patterns import Pattern


def mistakes(text: str) -> list[Mistake]:
    with pytest.raises(ConfigError) as caught:
        parse(text, environment={})
    return list(caught.value.mistakes)


def rules(*lines: str) -> str:
    return "\n".join(["defaults:", "  destination_rules:", *(f"    - {{{line}}}" for line in lines)])


def arguments(table: str, destination: str = "/queue/*") -> str:
    return f"defaults:\n  queue_arguments:\n    - destination: {destination}\n      arguments: {{{table}}}"


def settings(text: str, host: str | None = None) -> VirtualHost:
    found = parse(text, environment={}).virtual_host(host)
    assert found is not None
    return found


def test_everything_reaches_the_session() -> None:
    found = settings("""
defaults:
  prefetch: {default: 20, max: 100}
  on_queue_conflict: use_existing
  queue_arguments:
    - destination: /queue/orders.*
      arguments: {x-queue-type: quorum, x-max-length: 10, x-single-active-consumer: true}
  destination_rules:
    - {action: rewrite, destination: "/queue/{login}.*", to: /queue/*, on: send, mandatory: true}
    - {action: deny, destination: /topic/*, on: subscribe, logins: [svc-*]}
    - {action: allow, destination: /topic/*}
""")
    assert (found.prefetch.default, found.prefetch.max, found.takes_existing_queues) == (20, 100, True)
    (entry,) = found.queue_arguments
    wanted: dict[str, str | int] = {"x-queue-type": "quorum", "x-max-length": 10, "x-single-active-consumer": True}
    assert entry == QueueArguments(destination=Pattern(b"/queue/orders.*"), arguments=wanted)
    assert entry.arguments["x-single-active-consumer"] is True
    assert found.destination_rules == (
        DestinationRule(
            action="rewrite",
            destination=Pattern(b"/queue/{login}.*"),
            to=Pattern(b"/queue/*"),
            on="send",
            mandatory=True,
        ),
        DestinationRule(action="deny", destination=Pattern(b"/topic/*"), on="subscribe", logins=(Pattern(b"svc-*"),)),
        DestinationRule(action="allow", destination=Pattern(b"/topic/*")),
    )


def test_a_virtual_host_has_its_own_rules_and_the_others_prefetch() -> None:
    text = """
defaults:
  prefetch: {max: 100}
  destination_rules: [{action: deny, destination: /*}]
virtual_hosts:
  /: {prefetch: {default: 5}}
  open: {destination_rules: []}
"""
    assert settings(text).prefetch.default == 5
    assert settings(text).prefetch.max == settings(text, "open").prefetch.max == 100
    assert len(settings(text).destination_rules) == 1
    assert settings(text, "open").destination_rules == ()


@pytest.mark.parametrize(
    "pattern",
    [
        "/*",
        "/queue/*",
        "/q*",
        "/exchange/*/a",
        "/exchange/e",
        "/exchange/e/{login}.k",
        "/reply-queue/amq.gen-*",
        "/*/x",
    ],
)
def test_patterns_that_something_can_fit(pattern: str) -> None:
    assert settings(rules(f'action: deny, destination: "{pattern}"')).destination_rules


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("queue/a", "A destination begins with /"),
        ("/queues/a", "they begin with /queue/"),
        ("/temp-queue/a", "they begin with /queue/"),
        ("/queue", "they begin with /queue/"),
        ("/queue/", "the form is /queue/<name>"),
        ("/queue/a/*", "the form is /queue/<name>"),
        ("/topic/a/b", "the form is /topic/<name>"),
        ("/exchange/e/k/l", "the form is /exchange/<exchange>/<key>"),
        ("/queue/{user}.*", "Only {login} may stand in braces."),
    ],
)
def test_patterns_that_nothing_can_fit(pattern: str, sentence: str) -> None:
    (found,) = mistakes(rules(f'action: deny, destination: "{pattern}"'))
    assert found.path == "defaults.destination_rules[0].destination"
    assert sentence in found.sentence


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("action: rewrite, destination: /queue/*", "action: rewrite needs to."),
        ("action: deny, destination: /queue/*, to: /queue/x", "to goes with action: rewrite only."),
        ("action: rewrite, destination: /queue/a, to: /queue/*", "to has more * than destination."),
        ("action: deny, destination: /queue/*, mandatory: true", "mandatory is about messages that are sent"),
    ],
)
def test_rules_that_contradict_themselves(line: str, sentence: str) -> None:
    (found,) = mistakes(rules(line))
    assert sentence in found.sentence


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("action: allow, destination: /*", "action: deny, destination: /queue/x"),
        ("action: deny, destination: /queue/a*", "action: allow, destination: /queue/ab*, on: send"),
        ("action: allow, destination: /queue/*", "action: deny, destination: /amq/queue/x"),
        ("action: allow, destination: /topic/*", "action: deny, destination: /exchange/amq.topic/x"),
        ('action: deny, destination: "/queue/*"', 'action: allow, destination: "/queue/{login}.*"'),
        ("action: deny, destination: /*, logins: [svc-*]", "action: allow, destination: /*, logins: [svc-1, svc-2]"),
        ("action: deny, destination: /*", "action: allow, destination: /*, logins: [root]"),
    ],
)
def test_a_rule_behind_one_that_fits_everything_it_fits(first: str, second: str) -> None:
    (found,) = mistakes(rules(first, second))
    assert (found.path, found.line) == ("defaults.destination_rules[1]", 4)
    assert found.sentence == (
        "This never counts: defaults.destination_rules[0] comes first and fits everything it fits."
    )
    assert found.suggestion == "Move it before that one, or delete it."


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("action: deny, destination: /queue/x", "action: allow, destination: /*"),
        ("action: deny, destination: /*, on: send", "action: allow, destination: /*"),
        ("action: deny, destination: /*, logins: [a]", "action: allow, destination: /*"),
        ("action: deny, destination: /*, logins: [a]", "action: allow, destination: /*, logins: [a, b]"),
        ("action: deny, destination: /amq/queue/*", "action: allow, destination: /queue/*"),
        ('action: allow, destination: "/queue/{login}.*"', "action: deny, destination: /queue/*"),
    ],
)
def test_rules_that_both_count(first: str, second: str) -> None:
    assert len(settings(rules(first, second)).destination_rules) == 2


def test_arguments_behind_an_entry_that_fits_everything() -> None:
    text = """
virtual_hosts:
  /:
    queue_arguments:
      - {destination: /queue/*, arguments: {x-expires: 1}}
      - {destination: /queue/a, arguments: {x-expires: 2}}
"""
    (found,) = mistakes(text)
    assert (found.path, found.line) == ("virtual_hosts./.queue_arguments[1]", 6)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("", "must not be empty"),
        ("max-length: 1", "begin with x-"),
        ("x-max-length: 1h", "x-max-length is a whole number"),
        ("x-expires: -1", "x-expires is a whole number"),
        ("x-expires: true", "x-expires is a whole number"),
        ("x-something: 1.5", "A number, a text, true or false belongs here."),
        ("x-something: [1]", "A number, a text, true or false belongs here."),
        ("x-something: 9223372036854775808", "too large for AMQP"),
        ("x-queue-type: quorun", "x-queue-type is one of classic, quorum, stream."),
        ("x-queue-type: 1", "x-queue-type is a text."),
        ("x-max-age: 7 days", "x-max-age is a number and one of the letters"),
    ],
)
def test_arguments_that_no_broker_takes(table: str, sentence: str) -> None:
    (found,) = mistakes(arguments(table))
    assert found.path.startswith("defaults.queue_arguments[0].arguments")
    assert sentence in found.sentence


@pytest.mark.parametrize(
    ("destination", "sentence"),
    [
        ("/amq/queue/*", "they begin with /queue/, /topic/, /exchange/, /temp-queue/."),
        ("/reply-queue/*", "they begin with /queue/, /topic/, /exchange/, /temp-queue/."),
        ('"/queue/{login}.*"', "There is no {login} here"),
    ],
)
def test_arguments_for_queues_that_nobody_declares(destination: str, sentence: str) -> None:
    (found,) = mistakes(arguments("x-expires: 1", destination))
    assert found.path == "defaults.queue_arguments[0].destination"
    assert sentence in found.sentence


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("defaults: {prefetch: {default: 10, max: 5}}", "defaults.prefetch.default"),
        (
            "defaults: {prefetch: {default: 10}}\nvirtual_hosts: {/: {prefetch: {max: 5}}}",
            "virtual_hosts./.prefetch.max",
        ),
    ],
)
def test_a_prefetch_that_nobody_may_have(text: str, path: str) -> None:
    (found,) = mistakes(text)
    assert found.path == path
    assert found.sentence == "default is more than max here."

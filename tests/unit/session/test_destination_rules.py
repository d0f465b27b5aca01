"""Destination rules: who may send and subscribe where, and which other destination is meant."""

from __future__ import annotations

from typing import Final, Literal

import pytest

from gateway.config.rules import DestinationRule, QueueArguments
from gateway.config.virtual_host import Prefetch, VirtualHost
from gateway.errors import CloseReason, StompError
from gateway.patterns import Pattern
from gateway.session import ops
from gateway.session.context import State
from gateway.session.destination_rules import DestinationRules, spelled_login
from gateway.session.destinations import canonical_texts, parse
from tests.support.playbook import Playbook

Action = Literal["allow", "deny", "rewrite"]
Frames = Literal["send", "subscribe", "both"]


def rule(
    action: Action,
    pattern: str,
    to: str | None = None,
    *,
    on: Frames = "both",
    logins: str = "",
    mandatory: bool = False,
) -> DestinationRule:
    return DestinationRule(
        action=action,
        destination=Pattern(pattern.encode()),
        to=None if to is None else Pattern(to.encode()),
        on=on,
        logins=tuple(Pattern(login.encode()) for login in logins.split()),
        mandatory=mandatory,
    )


ALLOW: Final = "allow"
DENY: Final = "deny"
REWRITE: Final = "rewrite"


def rules_for(login: str, *rules: DestinationRule, topic_exchange: bytes = b"amq.topic") -> DestinationRules:
    settings = VirtualHost(name="/", destination_rules=rules, default_topic_exchange=topic_exchange)
    return DestinationRules(settings, login.encode())


def sent_to(rules: DestinationRules, destination: str) -> str:
    """Where a SEND goes: exchange and routing key, or the message of the ERROR."""
    try:
        exchange, key = rules.for_send(destination.encode()).destination.route(b"amq.topic")
    except StompError as error:
        return error.message
    return f"{exchange.decode()} {key.decode()}"


def is_allowed(rules: DestinationRules, destination: str) -> bool:
    return sent_to(rules, destination) != "access_refused"


# Which rule decides.


def test_the_first_rule_that_fits_decides() -> None:
    rules = rules_for("bob", rule(ALLOW, "/queue/public.*"), rule(DENY, "/queue/*"))
    assert is_allowed(rules, "/queue/public.news")
    assert not is_allowed(rules, "/queue/private")
    assert is_allowed(rules, "/topic/anything"), "no rule fits"


def test_send_and_subscribe_have_rules_of_their_own() -> None:
    rules = rules_for("bob", rule(DENY, "/queue/a", on="send"), rule(DENY, "/queue/b", on="subscribe"))
    assert not is_allowed(rules, "/queue/a")
    assert is_allowed(rules, "/queue/b")
    assert rules.for_subscribe(b"/queue/a").rule is None
    with pytest.raises(StompError):
        rules.for_subscribe(b"/queue/b")


@pytest.mark.parametrize(("login", "allowed"), [("svc-1", True), ("admin", True), ("svc", False), ("xsvc-1", False)])
def test_rules_of_some_logins(login: str, allowed: bool) -> None:
    rules = rules_for(login, rule(ALLOW, "/*", logins="svc-* admin"), rule(DENY, "/*"))
    assert is_allowed(rules, "/queue/q") == allowed


def test_the_rule_that_decided_can_be_asked_for_what_else_it_wants() -> None:
    rules = rules_for("bob", rule(ALLOW, "/queue/*", mandatory=True))
    decided = rules.for_send(b"/queue/q").rule
    assert decided is not None
    assert decided.mandatory


def test_temporary_queues_are_not_ruled() -> None:
    assert rules_for("bob", rule(DENY, "/*")).for_send(b"/temp-queue/a").rule is None


# Spellings: none goes round a rule.


@pytest.mark.parametrize(
    "destination", ["/queue/secret", "secret", "/amq/queue/secret", "/reply-queue/secret"], ids=str
)
def test_a_queue_is_denied_however_it_is_spelt(destination: str) -> None:
    rules = rules_for("bob", rule(DENY, "/queue/secret"))
    assert not is_allowed(rules, destination)
    assert is_allowed(rules, destination + "s")


@pytest.mark.parametrize("destination", ["/topic/a.b", "/exchange/amq.topic/a.b", "/exchange/news/a.b"])
def test_a_topic_is_denied_however_it_is_spelt(destination: str) -> None:
    rules = rules_for("bob", rule(DENY, "/topic/a.*"), topic_exchange=b"news")
    assert not is_allowed(rules, destination)
    assert is_allowed(rules, destination.replace("a.b", "b.a"))


@pytest.mark.parametrize("destination", ["/exchange/news/a", "/exchange/amq.topic/a"])
def test_an_exchange_is_denied_under_the_name_that_it_really_has(destination: str) -> None:
    assert not is_allowed(rules_for("bob", rule(DENY, "/exchange/news*"), topic_exchange=b"news"), destination)


@pytest.mark.parametrize("end", ["", "/"])
def test_an_exchange_without_a_key_has_an_empty_one(end: str) -> None:
    """Whoever sends so reaches all queues of a fanout exchange, and those that are bound to `#`."""
    rules = rules_for("bob", rule(DENY, "/exchange/news/*"), rule(DENY, "/exchange/logs"), rule(DENY, "/topic/*"))
    for exchange in ("news", "logs", "amq.topic"):
        assert not is_allowed(rules, f"/exchange/{exchange}{end}")
    assert is_allowed(rules, f"/exchange/other{end}")


def test_what_is_said_of_reply_queues_alone_does_not_hold_for_queues() -> None:
    rules = rules_for("bob", rule(DENY, "/reply-queue/*"), rule(DENY, "/amq/queue/*"))
    assert is_allowed(rules, "/queue/q")
    assert not is_allowed(rules, "/reply-queue/q")


def test_a_slash_within_a_name_is_written_in_one_way() -> None:
    rules = rules_for("bob", rule(DENY, "/queue/a%2Fb"))
    assert not is_allowed(rules, "/reply-queue/a/b")
    assert not is_allowed(rules, "/queue/a%2Fb")


@pytest.mark.parametrize(
    "text", ["/exchange/e", "/exchange/e/", "/exchange/e/k", "/queue/a%2Fb", "/topic/t", "/temp-queue/x"]
)
def test_the_first_spelling_means_what_the_text_means(text: str) -> None:
    destination = parse(text.encode())
    assert parse(canonical_texts(destination, b"amq.topic")[0]) == destination


# Rewriting.


@pytest.mark.parametrize(
    ("pattern", "to", "destination", "expected"),
    [
        ("/queue/*", "/queue/tenant.*", "/queue/a", " tenant.a"),
        ("/queue/*", "/queue/tenant.*", "a", " tenant.a"),
        ("/queue/*", "/queue/tenant.*", "/amq/queue/a", " tenant.a"),
        ("/queue/*", "/queue/{login}.*", "/queue/a", " bob.a"),
        ("/queue/old", "/queue/new", "/queue/old", " new"),
        ("/topic/*.*", "/exchange/*/*", "/topic/a.b.c", "a b.c"),
        ("/exchange/*/*", "/exchange/{login}-*/*", "/exchange/e/k", "bob-e k"),
        ("/queue/*", "/topic/*", "/queue/a%2Fb", "amq.topic a/b"),
        ("/queue/{login}.*", "/queue/*", "/queue/bob.x", " x"),
        ("/queue/{login}.*", "/queue/*", "/queue/ann.x", " ann.x"),
        ("/*", "/queue/*", "/topic/a", "Invalid destination"),
        ("/queue/*", "/*", "/queue/q", "Invalid destination"),
    ],
)
def test_another_destination_is_meant(pattern: str, to: str, destination: str, expected: str) -> None:
    assert sent_to(rules_for("bob", rule(REWRITE, pattern, to)), destination) == expected


def test_what_a_rule_cannot_turn_into_a_destination_says_so() -> None:
    rules = rules_for("bob", rule(REWRITE, "/exchange/*", "/temp-queue/*"))
    with pytest.raises(StompError) as caught:
        rules.for_send(b"/exchange/e")
    assert caught.value.body == (
        b"A destination rule of the gateway rewrites '/exchange/e' to '/temp-queue/e', which is not a valid "
        b"destination.\n"
    )
    assert caught.value.close is None


# Logins that try to reach beyond their own.


@pytest.mark.parametrize(
    ("login", "canonical"),
    [
        ("bob", "bob"),
        ("Bob_1-x@example", "Bob_1-x@example"),
        ("a/b", "a%2Fb"),
        ("*", "%2A"),
        ("#", "%23"),
        ("a.b", "a%2Eb"),
        ("%2F", "%252F"),
        ("{login}", "%7Blogin%7D"),
        ("é\n", "%C3%A9%0A"),
    ],
)
def test_a_login_within_a_destination(login: str, canonical: str) -> None:
    assert spelled_login(login.encode()) == canonical.encode()


@pytest.mark.parametrize("login", ["*", "#", "/", "a/../b", "bob.x", "%", "{login}", "bob%2E", ""])
def test_no_login_reaches_what_is_anothers(login: str) -> None:
    rules = rules_for(login, rule(ALLOW, "/queue/{login}.*"), rule(DENY, "/*"))
    for destination in ("/queue/bob.x", "/queue/bob.x.y", "/queue/*.x", "/queue/#.x", "/queue/q", "/amq/queue/bob.x"):
        assert not is_allowed(rules, destination)


@pytest.mark.parametrize("login", ["*", "#", "a/b", "a.b", "é", "%2F"])
def test_whatever_a_login_is_rewriting_stays_within_one_word(login: str) -> None:
    rules = rules_for(login, rule(REWRITE, "/topic/*", "/topic/{login}.*"))
    exchange, key = rules.for_subscribe(b"/topic/x").destination.route(b"amq.topic")
    assert exchange == b"amq.topic"
    first, *rest = key.split(b".")
    assert rest == [b"x"]
    assert first not in (b"*", b"#", b"a")


# In a session.


def playing(*rules: DestinationRule) -> Playbook:
    play = Playbook(VirtualHost(name="/", destination_rules=rules))
    play.connect()
    return play


REFUSED = "access_refused: ACCESS_REFUSED - a destination rule of the gateway denies"


def test_a_denied_send_is_an_error_with_its_receipt_and_closes() -> None:
    play = playing(rule(DENY, "/queue/*"))
    play.client("SEND", "destination:/queue/q", "receipt:r", body="x")
    assert play.said() == [f"ERROR for r {REFUSED} SEND to '/queue/q' for user 'guest'"]
    assert play.state() is State.CLOSED
    assert play.session.close_reason is CloseReason.DESTINATION_DENIED
    play.finish()


def test_a_denied_subscribe_is_an_error_with_its_receipt_and_closes() -> None:
    play = playing(rule(DENY, "/topic/*", on="subscribe"))
    play.client("SUBSCRIBE", "id:1", "destination:/topic/t", "receipt:r")
    assert play.said() == [f"ERROR for r {REFUSED} SUBSCRIBE to '/topic/t' for user 'guest'"]
    assert play.state() is State.CLOSED
    play.finish()


def test_a_send_in_a_transaction_is_denied_at_once() -> None:
    play = playing(rule(DENY, "/topic/*"))
    play.client("BEGIN", "transaction:t")
    play.client("SEND", "destination:/topic/t", "transaction:t", body="x")
    assert play.said() == [f"ERROR {REFUSED} SEND to '/topic/t' for user 'guest'"]
    play.finish()


def test_messages_go_where_the_rule_wants() -> None:
    play = playing(rule(REWRITE, "/queue/*", "/queue/{login}.*"))
    play.client("SEND", "destination:/queue/q", body="one")
    play.prepare()
    assert play.published() == ["- guest.q one"]
    assert [queue.name for queue in play.declared] == ["guest.q"]
    play.finish()


def test_a_subscription_by_destination_keeps_the_clients_own_name() -> None:
    play = Playbook(VirtualHost(name="/", destination_rules=(rule(REWRITE, "/queue/*", "/queue/t.*"),)))
    play.connect("1.0")
    play.client("SUBSCRIBE", "destination:/queue/q")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.queue_name == "t.q"
    play.subscribed(operation)
    play.client("UNSUBSCRIBE", "destination:/queue/q", "receipt:r")
    operation = play.asked()
    assert isinstance(operation, ops.Unsubscribe)
    assert operation.delete_queue is None
    play.broker(ops.Unsubscribed())
    assert play.said() == ["RECEIPT r"]
    play.finish()


def test_the_queue_of_a_durable_subscription_follows_from_what_is_meant() -> None:
    play, plain = playing(rule(REWRITE, "/topic/*", "/topic/t.*")), playing()
    names = []
    for each, topic in ((play, "a"), (plain, "t.a")):
        each.client("SUBSCRIBE", "id:d", f"destination:/topic/{topic}", "durable:true", "auto-delete:false")
        operation = each.asked()
        assert isinstance(operation, ops.Subscribe)
        assert operation.binding == ("amq.topic", "t.a")
        each.subscribed(operation)
        each.client("UNSUBSCRIBE", "id:d", "durable:true")
        ending = each.asked()
        assert isinstance(ending, ops.Unsubscribe)
        assert ending.delete_queue == operation.queue_name
        names.append(operation.queue_name)
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("denied", "queue", "allowed"),
    [
        (rule(DENY, "/queue/secret", on="subscribe"), "secret", False),
        (rule(REWRITE, "/queue/*", "/queue/{login}.*"), "secret", False),
        (rule(DENY, "/queue/secret"), "mine", True),
        (rule(DENY, "/queue/secret", on="send"), "secret", True),
    ],
)
def test_a_client_cannot_name_a_queue_that_it_may_not_subscribe_to(
    denied: DestinationRule, queue: str, allowed: bool
) -> None:
    play = playing(denied)
    play.client("SUBSCRIBE", "id:1", "destination:/topic/t", f"x-queue-name:{queue}", "durable:true")
    if allowed:
        assert isinstance(play.asked(), ops.Subscribe)
    else:
        assert play.said() == [f"ERROR {REFUSED} SUBSCRIBE to '/queue/{queue}' for user 'guest'"]
    play.finish()


def test_a_client_cannot_delete_a_queue_that_it_may_not_subscribe_to() -> None:
    play = playing(rule(DENY, "/queue/secret"))
    play.subscribe("1", "/topic/t")
    play.client("UNSUBSCRIBE", "id:1", "durable:true", "x-queue-name:secret")
    assert play.said() == [f"ERROR {REFUSED} SUBSCRIBE to '/queue/secret' for user 'guest'"]
    play.finish()


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["x-dead-letter-exchange:", "x-dead-letter-routing-key:secret"], "/queue/secret"),
        (["x-dead-letter-exchange: ", "x-dead-letter-routing-key: secret "], "/queue/secret"),
        (["x-dead-letter-exchange:amq.topic", "x-dead-letter-routing-key:a"], "/exchange/amq.topic/a"),
        (["x-dead-letter-exchange:amq.topic", "x-dead-letter-routing-key:b"], None),
        (["x-dead-letter-exchange:e"], "/exchange/e"),
        (["x-dead-letter-exchange:", "x-dead-letter-routing-key:mine"], None),
        (["x-dead-letter-routing-key:secret"], None),
    ],
)
@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE"])
def test_a_queue_cannot_hand_on_to_where_its_client_may_not_send(
    command: str, lines: list[str], shown: str | None
) -> None:
    play = playing(
        rule(DENY, "/queue/secret", on="send"), rule(REWRITE, "/topic/a", "/topic/t.a"), rule(DENY, "/exchange/e*")
    )
    play.client(command, "id:1", "destination:/queue/mine", *lines)
    if shown is None:
        assert play.asked() is not None
    else:
        assert play.said() == [f"ERROR {REFUSED} SEND to '{shown}' for user 'guest'"]
    play.finish()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("x-dead-letter-routing-key:secret", "/queue/secret"),
        ("x-dead-letter-exchange:e", "/exchange/e/dead"),
        ("x-dead-letter-routing-key:mine", None),
        ("x-message-ttl:1", None),
    ],
)
def test_what_the_operator_says_of_dead_letters_is_not_the_clients_to_bend(line: str, shown: str | None) -> None:
    defaults = QueueArguments(
        destination=Pattern(b"/queue/*"),
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    )
    denied = (rule(DENY, "/queue/secret"), rule(DENY, "/exchange/*"), rule(DENY, "/queue/dead", on="send"))
    play = Playbook(VirtualHost(name="/", destination_rules=denied, queue_arguments=(defaults,)))
    play.connect()
    play.client("SUBSCRIBE", "id:1", "destination:/queue/q", line)
    if shown is None:
        assert isinstance(play.asked(), ops.Subscribe)
    else:
        assert play.said() == [f"ERROR {REFUSED} SEND to '{shown}' for user 'guest'"]
    play.finish()


def test_a_reply_to_is_no_destination_of_the_frame() -> None:
    play = playing(rule(DENY, "/reply-queue/*"), rule(REWRITE, "/topic/*", "/topic/t.*"))
    play.client("SEND", "destination:/topic/x", "reply-to:/reply-queue/q", body="m")
    play.prepare()
    assert play.published() == ["amq.topic t.x m"]
    play.finish()


# Prefetch.


@pytest.mark.parametrize(
    ("default", "most", "asked", "prefetch"),
    [
        (0, 0, None, 0),
        (0, 0, "7", 7),
        (20, 0, None, 20),
        (20, 0, "0", 0),
        (20, 0, "7", 7),
        (0, 50, None, 50),
        (0, 50, "0", 50),
        (0, 50, "51", 50),
        (0, 50, "50", 50),
        (20, 50, None, 20),
        (20, 50, "70000", 50),
        (0, 0, "70000", 65535),
    ],
)
def test_the_prefetch_of_a_subscription(default: int, most: int, asked: str | None, prefetch: int) -> None:
    play = Playbook(VirtualHost(name="/", prefetch=Prefetch(default=default or None, max=most or None)))
    play.connect()
    lines = [] if asked is None else [f"prefetch-count:{asked}"]
    play.client("SUBSCRIBE", "id:1", "destination:/queue/q", "ack:client", *lines)
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.prefetch == prefetch
    assert operation.needs_pausable_link == (prefetch == 0)


def test_the_window_of_an_automatic_subscription_is_its_own() -> None:
    play = Playbook(VirtualHost(name="/", prefetch=Prefetch(default=3, max=5), auto_ack_window=100))
    play.connect()
    play.client("SUBSCRIBE", "id:1", "destination:/queue/q", "prefetch-count:9")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.prefetch == 100


# Destinations with slashes.


def with_slashes(*rules: DestinationRule) -> DestinationRules:
    return DestinationRules(VirtualHost(name="/", destination_rules=rules, topic_slashes="dots"), b"guest")


def test_a_rewrite_comes_before_the_destination_is_judged() -> None:
    prices = rules_for("guest", rule(REWRITE, "/topic/prices/*", "/topic/p.*"))
    assert sent_to(prices, "/topic/prices/eur") == "amq.topic p.eur"
    assert sent_to(prices, "/topic/others/eur") == "Invalid destination"
    # What the rule makes of it has to be valid.
    assert sent_to(prices, "/topic/prices/eur/usd") == "Invalid destination"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("/topic/a/b/c", "a.b.c"),
        ("/topic/a.b", "a.b"),
        ("/topic/a", "a"),
        ("/topic/a/*/c", "a.*.c"),
        ("/topic/a/**", "a.#"),
        ("/topic/a%2Fb/c", "a/b.c"),
    ],
)
def test_slashes_of_a_topic_are_dots(text: str, key: str) -> None:
    assert sent_to(with_slashes(), text) == f"amq.topic {key}"
    assert with_slashes().for_subscribe(text.encode()).destination.binding_key == key.encode()


def test_no_rule_is_evaded_with_slashes() -> None:
    assert sent_to(with_slashes(rule(DENY, "/topic/a.b")), "/topic/a/b") == "access_refused"


@pytest.mark.parametrize("text", ["/queue/a/b", "/exchange/a/b/c", "/topic/"])
def test_only_topics_have_slashes(text: str) -> None:
    assert sent_to(with_slashes(), text) == "Invalid destination"

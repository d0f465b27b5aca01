"""CONNECT: versions, credentials, virtual hosts, and what is trimmed when."""

from typing import Any

import pytest
from pydantic import SecretStr

from gateway.config.broker_user import User
from gateway.config.virtual_host import VirtualHost
from gateway.errors import StompError
from gateway.pieces import joined
from gateway.session import error_frames, ops
from gateway.session.connect import ClientFacts, negotiate_version, read_connect
from gateway.stomp.headers import trim_values
from tests.support.playbook import Playbook

SETTINGS = VirtualHost(name="/", default_user=User(login="guest", passcode=SecretStr("secret")))


def resolve(host: str | None) -> VirtualHost | None:
    return SETTINGS if host in (None, "/", "ä") else None


@pytest.mark.parametrize(
    ("offered", "version"),
    [
        (None, b"1.0"), (b"1.0", b"1.0"), (b"1.1", b"1.1"), (b"1.2", b"1.2"), (b"1.0,1.1,1.2", b"1.2"),
        (b"1.2,1.1", b"1.2"), (b"1.1,1.0", b"1.1"), (b"1.2,9.9", b"1.2"), (b"1.1, 1.2", b"1.1"), (b"1.0,1.0", b"1.0"),
    ],
)  # fmt: skip
def test_the_highest_common_version_is_chosen(offered: bytes | None, version: bytes) -> None:
    assert negotiate_version({} if offered is None else {b"accept-version": offered}) == version


@pytest.mark.parametrize("offered", [b"", b"2.0", b" 1.2", b"1.2 ", b"1", b"1.2.3", b"1.0;1.1", b"v1.2"])
def test_no_common_version(offered: bytes) -> None:
    with pytest.raises(StompError, match="Version mismatch") as found:
        negotiate_version({b"accept-version": offered})
    assert found.value.body == b"Supported versions are 1.0,1.1,1.2\n"
    assert found.value.close is None


@pytest.mark.parametrize(
    ("headers", "login", "passcode"),
    [
        ({}, b"guest", b"secret"),
        ({b"login": b"a"}, b"a", b"secret"),
        ({b"passcode": b"p"}, b"guest", b"p"),
        ({b"login": b"a", b"passcode": b"p"}, b"a", b"p"),
        ({b"login": b"", b"passcode": b""}, b"", b""),
        ({b"Login": b"a"}, b"guest", b"secret"),
    ],
)
def test_the_default_user_stands_in_for_absent_headers(
    headers: dict[bytes, bytes], login: bytes, passcode: bytes
) -> None:
    from_file = b"passcode" not in headers
    assert read_connect(headers, resolve).login == ops.Login(SETTINGS, login, passcode, is_from_file=from_file)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b"Missing login or passcode header(s)"),
        ({b"passcode": b"p"}, b"Missing login or passcode header(s)"),
        ({b"login": b"a"}, b"Access refused for user 'a'\n"),
    ],
)
def test_without_a_default_user_both_are_needed(headers: dict[bytes, bytes], body: bytes) -> None:
    nobody = VirtualHost(name="/", default_user=None)
    with pytest.raises(StompError, match="Bad CONNECT") as found:
        read_connect(headers, lambda _: nobody)
    assert found.value.body == body


@pytest.mark.parametrize(
    "host",
    [b"nowhere", b"", b" /", b"\xff", b"a\nb", b"x" * 300],
    ids=["name", "empty", "space", "byte", "line", "long"],
)
def test_a_virtual_host_that_is_not_there_is_named_to_the_byte(host: bytes) -> None:
    with pytest.raises(StompError, match="Bad CONNECT") as found:
        read_connect({b"accept-version": b"1.2", b"host": host}, resolve)
    assert found.value.body.partition(b"\nThe gateway has")[0] == b"Virtual host '%b' access denied" % host
    assert found.value.close is None


@pytest.mark.parametrize(
    ("host", "is_hinted"),
    [(b"stomp.example.org", True), (b"x" * 255, True), (b"x" * 256, False), (b"", False), (b"\xff", False)],
)
def test_who_names_an_unknown_virtual_host_is_told_of_aliases_if_it_could_be_one(host: bytes, is_hinted: bool) -> None:
    with pytest.raises(StompError, match="Bad CONNECT") as found:
        read_connect({b"host": host}, resolve)
    assert (b"add it to 'aliases'" in found.value.body) is is_hinted


@pytest.mark.parametrize("host", [None, b"/", "ä".encode()])
def test_a_virtual_host_that_is_there(host: bytes | None) -> None:
    headers = {} if host is None else {b"host": host}
    assert read_connect(headers, resolve).login.settings is SETTINGS


def test_only_1_0_trims_and_only_leading_spaces_of_values() -> None:
    padded = {b"host": b" /", b"login": b"  a ", b"passcode": b" \tp", b"heart-beat": b" 1,1", b" name": b" value"}
    connect = read_connect(padded, resolve)
    assert (connect.login.login, connect.login.passcode, connect.heart_beat) == (b"a ", b"\tp", b"1,1")
    assert trim_values(padded)[b" name"] == b"value"
    for version in (b"1.1", b"1.2"):
        with pytest.raises(StompError):
            read_connect(padded | {b"accept-version": version}, resolve)
        untrimmed = read_connect(padded | {b"accept-version": version, b"host": b"/"}, resolve)
        assert (untrimmed.login.login, untrimmed.heart_beat) == (b"  a ", b" 1,1")


@pytest.mark.parametrize(("login", "passcode"), [(b"guest\0", b"guest"), (b"guest", b"gu\0est"), (b"\0", b"")])
def test_a_nul_in_a_login_is_refused_without_asking_the_broker(login: bytes, passcode: bytes) -> None:
    with pytest.raises(StompError, match="Bad CONNECT") as found:
        read_connect({b"login": login, b"passcode": passcode}, resolve)
    assert found.value.body == b"Access refused for user '%b'\n" % login


def test_the_version_is_read_before_anything_else() -> None:
    with pytest.raises(StompError, match="Version mismatch"):
        read_connect({b"accept-version": b"9", b"host": b"nowhere"}, resolve)


# CONNECTED, and the session after it.


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_connected_says_who_what_and_which(version: str) -> None:
    play = Playbook()
    play.client("CONNECT", f"accept-version:{version}", "heart-beat:1500,2500")
    assert play.asked() is not None
    play.broker(ops.LoggedIn())
    assert joined(play.session.output) == (
        b"CONNECTED\nserver:RabbitMQ/unknown stomp-gateway/0\nsession:session-of-the-playbook\nheart-beat:2000,1000\n"
        b"version:%b\n\n\0\n" % version.encode()
    )


@pytest.mark.parametrize(
    ("settings", "version", "server"),
    [
        ({}, (3, 10, 8), b"server:RabbitMQ/3.10.8 stomp-gateway/0\n"),
        ({}, (4, 3), b"server:RabbitMQ/4.3 stomp-gateway/0\n"),
        # It did not tell its version, or its link was lost at that moment.
        ({}, (), b"server:RabbitMQ/unknown stomp-gateway/0\n"),
        ({"server_header": b"ActiveMQ/5.18 (ours)"}, (3, 10, 8), b"server:ActiveMQ/5.18 (ours)\n"),
        ({"server_header": b"ActiveMQ/5.18", "hide_server_info": True}, (3, 10, 8), b""),
    ],
)
def test_the_server_header_names_the_broker_whose_dialect_is_spoken_and_then_the_gateway(
    settings: dict[str, Any], version: tuple[int, ...], server: bytes
) -> None:
    play = Playbook(VirtualHost(name="/", **settings))
    play.client("CONNECT", "accept-version:1.2")
    assert play.asked() is not None
    play.broker(ops.LoggedIn(version))
    assert joined(play.session.output).startswith(b"CONNECTED\n%bsession:" % server)


def test_who_has_logged_in_may_send_larger_frames() -> None:
    play = Playbook(VirtualHost(name="/", max_frame_size=64))
    play.connect()
    play.client("SEND", "destination:/topic/t", body="x" * 64)
    (error,) = play.said()
    assert error.startswith("ERROR Malformed frame: the frame is larger than 64 octets")


def test_a_session_of_1_0_trims_every_header_and_every_receipt() -> None:
    play = Playbook()
    play.connect("1.0")
    play.client("BEGIN", "transaction: t", "receipt:  r1 ")
    play.client("COMMIT", "transaction:t", "receipt: r2")
    play.client("COMMIT", "transaction: nope", "receipt: r3")
    assert play.said() == [
        "RECEIPT r1 ",
        "RECEIPT r2",
        'ERROR for r3 Bad transaction: Invalid transaction identifier: "nope"',
    ]


def test_a_session_of_1_0_trims_what_travels_with_a_message() -> None:
    play = Playbook()
    play.connect("1.0")
    play.client("SEND", "destination: /topic/t", "color:  red", "receipt: r1", "content-length: 5", body="hello")
    play.prepare()
    data = b"".join(play.session.publisher.output.take())
    for name, value in ((b"color", b"red"), (b"receipt", b"r1"), (b"content-length", b"5")):
        assert name + b"S" + len(value).to_bytes(4, "big") + value in data


def test_a_session_of_1_2_trims_nothing() -> None:
    play = Playbook()
    play.connect("1.2")
    play.client("BEGIN", "transaction: t", "receipt: r1")
    play.client("COMMIT", "transaction:t", "receipt: r2")
    assert play.said() == ["RECEIPT  r1", 'ERROR for  r2 Bad transaction: Invalid transaction identifier: "t"']


def test_an_error_for_connect_names_its_receipt_whatever_is_wrong() -> None:
    for headers, event in (
        (("accept-version:9",), None),
        (("host:nowhere",), None),
        (("heart-beat:soon",), ops.LoggedIn()),
        ((), ops.LoginFailed(403, "ACCESS_REFUSED - Login was refused")),
    ):
        play = Playbook()
        play.client("CONNECT", *headers, "receipt:r1")
        if event is not None:
            assert play.asked() is not None
            play.broker(event)
        (error,) = play.said()
        assert error.startswith("ERROR for r1 "), (headers, error)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (ops.LoginFailed(541, "INTERNAL_ERROR - no"), "ERROR Bad CONNECT: INTERNAL_ERROR - no"),
        (
            ops.LoginNotTried(error_frames.broker_unreachable()),
            "ERROR Upstream unavailable: The message broker cannot be reached; try again later.",
        ),
        (
            ops.LoginNotTried(error_frames.too_many_sessions("The user a", 5)),
            "ERROR Session limit reached: "
            "The user a has 5 sessions, as many as are allowed; close one, or try again later.",
        ),
        (
            ops.LoginNotTried(error_frames.too_many_failed_logins(30)),
            "ERROR Too many failed logins: Too many logins from this address have failed; try again in 30 seconds.",
        ),
    ],
)
def test_a_client_that_is_not_let_in_is_told_why(event: ops.Event, error: str) -> None:
    play = Playbook()
    play.client("CONNECT", "login:a", "passcode:b")
    assert isinstance(play.asked(), ops.Login)
    play.broker(event)
    assert play.said() == [error]


@pytest.mark.parametrize(
    ("version", "exclusive"), [((), False), ((4, 2, 9), False), ((4, 3), True), ((4, 3, 0), True), ((5,), True)]
)
def test_a_topic_gets_an_exclusive_queue_from_a_broker_that_refuses_others(
    version: tuple[int, ...], exclusive: bool
) -> None:
    play = Playbook()
    play.client("CONNECT", "login:a", "passcode:b")
    play.asked()
    play.broker(ops.LoggedIn(version))
    play.client("SUBSCRIBE", "id:1", "destination:/topic/t")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.queue is not None
    assert operation.queue.exclusive is exclusive


def test_a_name_that_certificate_users_lacks_is_told_to_the_operator() -> None:
    with pytest.raises(StompError, match="Bad CONNECT") as found:
        read_connect({b"host": b"/"}, resolve, "alice")
    refused = found.value.refused_login
    assert refused is not None
    assert (refused.virtual_host, refused.login) == ("/", None)
    assert "add that name, or everyone, to certificate_users" in refused.hint


def test_a_certificate_without_a_user_is_refused_by_its_name() -> None:
    play = Playbook()
    play.session.set_client(ClientFacts(certificate_name="alice"))
    play.client("CONNECT", "accept-version:1.2")
    assert play.said() == ["ERROR Bad CONNECT: Access refused for user 'alice'"]

"""How the file descriptors of a process are divided, for tiny limits and for large ones."""

from __future__ import annotations

import resource

import pytest
import structlog

from gateway.config.loader import parse
from gateway.server.descriptors import Descriptors, admin_connections, raise_limit, unreachable_limits
from gateway.server.log_limits import LogRateLimiter


@pytest.fixture
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """What the system allows the process, which has 15 open."""
    most: int = request.param
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    monkeypatch.setattr("os.listdir", lambda _: list(map(str, range(16))))
    return most


def begun(links: str = "shared") -> Descriptors:
    descriptors = Descriptors(LogRateLimiter(lambda: 0.0, 1))
    descriptors.begin(parse(f"defaults: {{links: {links}}}", environment={}))
    return descriptors


@pytest.mark.parametrize(
    ("limit", "clients", "dedicated", "admin"),
    [
        (24, 2, 1, 1),
        (64, 29, 9, 4),
        (128, 73, 24, 8),
        (1024, 801, 267, 64),
        (65536, 64417, 21472, 64),
        (resource.RLIM_INFINITY, 1047457, 349152, 64),
    ],
    indirect=["limit"],
)
def test_most_are_for_clients_and_a_thousand_at_most_for_links_that_may_come(
    limit: int, clients: int, dedicated: int, admin: int
) -> None:
    assert begun().most_clients == clients
    assert begun("dedicated").most_clients == dedicated
    assert admin_connections() == admin
    assert begun().limit in {limit, 1 << 20}


@pytest.mark.parametrize("lists", [True, False])
def test_a_limit_that_is_raised_before_the_first_client_counts(lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process makes its gateway first, and then raises the soft limit as far as the hard one."""
    limits = [(256, 4096)]

    def list_open(_: str) -> list[str]:
        if lists:
            return ["0"] * 16
        raise OSError

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, raised: limits.append(raised))
    monkeypatch.setattr("os.listdir", list_open)
    descriptors = Descriptors(LogRateLimiter(lambda: 0.0, 1))
    raise_limit()
    descriptors.begin(parse("", environment={}))
    # Beside what is open: 16 for files, 64 for the admin listener, and 512 for links.
    assert (descriptors.limit, descriptors.most_clients) == (4096, 4096 - (15 if lists else 32) - 16 - 64 - 512)


@pytest.mark.parametrize("limit", [128], indirect=True)
def test_clients_leave_room_for_links_and_links_for_everything_else(limit: int) -> None:
    descriptors = begun()
    for _ in range(73):
        assert descriptors.client_came("127.0.0.1:61613")
        descriptors.client_logged_in(dedicated=False)
    with structlog.testing.capture_logs() as lines:
        assert not descriptors.client_came("127.0.0.1:61613")
        assert not descriptors.client_came("127.0.0.1:61613")
    (line,) = lines
    assert (line["event"], line["address"]) == ("too few file descriptors", "127.0.0.1:61613")
    assert (line["limit"], line["clients"], line["links"]) == (limit, 73, 0)
    links = 0
    while descriptors.link_begins():
        links += 1
    # 15 are open, 16 are for files, 8 for the admin listener.
    assert 73 + links == limit - 15 - 16 - 8
    descriptors.client_gone(dedicated=False)
    assert not descriptors.client_came("127.0.0.1:61613")
    assert descriptors.link_begins()
    for _ in range(links):
        descriptors.link_gone()
    descriptors.link_gone()
    assert descriptors.client_came("127.0.0.1:61613")


@pytest.mark.parametrize("limit", [128], indirect=True)
def test_a_client_counts_twice_until_it_has_logged_in(limit: int) -> None:
    """Its login may need a link."""
    descriptors = begun()
    came = 0
    while descriptors.client_came("127.0.0.1:61613"):
        came += 1
    assert came == 37
    descriptors.client_logged_in(dedicated=False)
    assert not descriptors.client_came("127.0.0.1:61613")
    descriptors.client_logged_in(dedicated=False)
    assert descriptors.client_came("127.0.0.1:61613")
    assert not descriptors.client_came("127.0.0.1:61613")


@pytest.mark.parametrize("limit", [128], indirect=True)
def test_only_clients_with_links_of_their_own_count_three_times(limit: int) -> None:
    """One virtual host with `links: dedicated` makes no room dearer for the clients of the others."""
    descriptors = begun("dedicated")
    came = 0
    while descriptors.client_came("127.0.0.1:61613"):
        descriptors.client_logged_in(dedicated=came % 2 == 0)
        came += 1
    # 73 are left of the limit. These have 35, 18 of them have two links each, and the next one may need three.
    assert (came, limit) == (35, 128)
    descriptors.client_gone(dedicated=True)
    assert descriptors.client_came("127.0.0.1:61613")


@pytest.mark.parametrize("limit", [128], indirect=True)
def test_links_that_others_share_do_not_take_the_place_of_links_of_ones_own(limit: int) -> None:
    descriptors = begun("dedicated")
    for _ in range(30):
        assert descriptors.link_begins()
    came = 0
    while descriptors.client_came("127.0.0.1:61613"):
        descriptors.client_logged_in(dedicated=True)
        came += 1
    assert all(descriptors.link_begins(is_own=True) for _ in range(2 * came))
    assert (came, limit) == (14, 128)


@pytest.mark.parametrize("limit", [20], indirect=True)
def test_the_first_client_is_let_in_whatever_the_limit_is(limit: int) -> None:
    assert begun().client_came("127.0.0.1:61613")
    assert begun().limit == limit


@pytest.mark.parametrize("limit", [1024], indirect=True)
def test_a_number_of_connections_that_cannot_be_reached_is_warned_of(limit: int) -> None:
    listeners = "listeners: [{tcp: '127.0.0.1:1', max_connections: 801}, {tcp: '127.0.0.1:2', max_connections: 802}]"
    (warning,) = unreachable_limits(parse(listeners, environment={}), begun())
    assert warning.startswith("listener 127.0.0.1:2: max_connections 802 is out of reach: 1024 file descriptors are")
    assert not list(unreachable_limits(parse(f"workers: 2\n{listeners}", environment={}), begun()))
    assert limit == 1024

"""Which addresses a listener lets in, by its lists of networks and lock-outs."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from gateway.config.loader import parse
from gateway.config.model import FailedLoginLimits
from gateway.server.listen.accepted_connection import Peer
from gateway.server.listen.address_checks import AddressChecks, AddressRefusedError, LockOuts

ALLOWED = "allowed_networks: [10.0.0.0/8, 192.0.2.7, '2001:db8::/32']"
DENIED = "denied_networks: [10.66.0.0/16, '2001:db8:bad::/48']"
PROXIES = "proxy_protocol: true, trusted_proxies: [127.0.0.1, 10.0.0.0/8]"

# The settings, an address, and why a connection and a client of it is refused; None: it is not.
NOT_ALLOWED = "the address is not in allowed_networks"
IS_DENIED = "the address is in denied_networks"
NO_PROXY = "the address is not in trusted_proxies"
CASES: list[tuple[str, str, str | None, str | None]] = [
    ("", "10.1.1.1", None, None),
    ("", "", None, None),
    (ALLOWED, "10.1.1.1", None, None),
    (ALLOWED, "::ffff:10.1.1.1", None, None),
    (ALLOWED, "192.0.2.7", None, None),
    (ALLOWED, "2001:db8::1%eth0", None, None),
    (ALLOWED, "192.0.2.8", NOT_ALLOWED, NOT_ALLOWED),
    (ALLOWED, "::ffff:11.0.0.1", NOT_ALLOWED, NOT_ALLOWED),
    (ALLOWED, "2001:db9::1", NOT_ALLOWED, NOT_ALLOWED),
    # The number of 10.1.1.1 as an IPv6 address.
    (ALLOWED, "::a01:101", NOT_ALLOWED, NOT_ALLOWED),
    (ALLOWED, "", None, None),
    (ALLOWED, "unix:uid=1000", None, None),
    (DENIED, "10.66.1.1", IS_DENIED, IS_DENIED),
    (DENIED, "::ffff:10.66.1.1", IS_DENIED, IS_DENIED),
    (DENIED, "2001:db8:bad::1", IS_DENIED, IS_DENIED),
    (DENIED, "10.67.1.1", None, None),
    (f"{ALLOWED}, {DENIED}", "10.66.1.1", IS_DENIED, IS_DENIED),
    (f"{ALLOWED}, {DENIED}", "10.67.1.1", None, None),
    (f"{ALLOWED}, denied_networks: ['::ffff:10.66.0.0/112']", "10.66.1.1", IS_DENIED, IS_DENIED),
    (f"{ALLOWED}, {PROXIES}", "127.0.0.1", None, NOT_ALLOWED),
    (f"{ALLOWED}, {PROXIES}", "192.0.2.7", NO_PROXY, None),
    (f"{ALLOWED}, {DENIED}, {PROXIES}", "10.66.1.1", IS_DENIED, IS_DENIED),
    (f"{ALLOWED}, proxy_protocol: true", "192.0.2.9", None, NOT_ALLOWED),
]


@pytest.mark.parametrize(("settings", "host", "connection", "client"), CASES)
def test_denied_wins_and_proxies_have_a_list_of_their_own(
    settings: str, host: str, connection: str | None, client: str | None
) -> None:
    checks = _checks(settings, LockOuts(FailedLoginLimits(), lambda: 0.0))
    for check, reason in ((checks.check_accepted, connection), (checks.check_client, client)):
        if reason is None:
            check(Peer(host, 1))
        else:
            with pytest.raises(AddressRefusedError, match=f"^{reason}$") as refused:
                check(Peer(host, 1))
            assert refused.value.limit == "network"


@pytest.mark.parametrize(("settings", "is_refused"), [("", False), (DENIED, False), (ALLOWED, True)])
def test_whom_a_proxy_without_an_address_does_not_name_is_in_no_allowed_network(
    settings: str, is_refused: bool
) -> None:
    checks = _checks(f"{settings or 'tls: null'}, proxy_protocol: true", LockOuts(FailedLoginLimits(), lambda: 0.0))
    checks.check_accepted(Peer("unix:uid=1000", 0))
    with pytest.raises(AddressRefusedError, match="names no client") if is_refused else nullcontext():
        checks.check_client(Peer("unix:uid=1000", 0, is_proxy=True))


def _checks(settings: str, lock_outs: LockOuts) -> AddressChecks:
    text = f"listeners: [{{tcp: '0.0.0.0:1'{', ' if settings else ''}{settings}}}]"
    return AddressChecks(parse(text, environment={}).listeners[0], lock_outs)


def test_who_is_locked_out_is_refused_and_a_proxy_is_not() -> None:
    lock_outs = LockOuts(FailedLoginLimits(lock_out_after=1), lambda: 0.0)
    lock_outs.login_failed("192.0.2.1")
    peer, proxy = Peer("192.0.2.1", 1), Peer("192.0.2.1", 1, is_proxy=True)
    direct, proxied = _checks("", lock_outs), _checks("proxy_protocol: true", lock_outs)
    for check in (direct.check_accepted, direct.check_client, proxied.check_client):
        with pytest.raises(AddressRefusedError, match="too many logins from this address have failed") as refused:
            check(peer)
        assert refused.value.limit == "locked-out"
    # Before the header, and where the header names no client.
    proxied.check_accepted(peer)
    proxied.check_client(proxy)

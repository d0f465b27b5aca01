"""The section `admin`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.loader import parse
from gateway.errors import ConfigError
from tests.support.certificates import Authority, Identity


def test_an_address_alone_will_do() -> None:
    admin = parse("admin: 10.0.0.1:8080", environment={}).admin
    assert str(admin.address) == "10.0.0.1:8080"
    assert admin.users == ()


@pytest.mark.parametrize(
    ("text", "address", "is_given"),
    [
        ("", "127.0.0.1:15693", False),
        ("admin:", "127.0.0.1:15693", False),
        ("admin: {}", "127.0.0.1:15693", False),
        ("admin: {users: []}", "127.0.0.1:15693", True),
        ("admin: {address: '127.0.0.1:15693'}", "127.0.0.1:15693", True),
        ("admin: {address: null}", "None", True),
    ],
)
def test_it_is_on_unless_the_address_is_null(text: str, address: str, is_given: bool) -> None:
    admin = parse(text, environment={}).admin
    assert str(admin.address) == address
    # Only what was asked for must be had.
    assert bool(admin.model_fields_set) is is_given


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("admin: 15693", "admin"),
        ("admin: {adress: 1}", "admin.adress"),
        ("admin: {users: [{login: a}]}", "admin.users[0]: A passcode is missing. Add passcode_hash"),
        ("admin: {users: [{login: a, passcode: b, passcode_hash: c}]}", "There are two passcodes here"),
        (
            "admin: {users: [{login: a, passcode_hash: '$apr1$x$y'}]}",
            "users[0].passcode_hash: This is no hash of bcrypt",
        ),
        (f"admin: {{users: [{{login: a, passcode_hash: $2y$16${'a' * 53}}}]}}", "The cost of this hash is above 15"),
        (
            "admin: {users: [{login: a, passcode: b, role: admin}]}",
            "users[0].role: This is one of full, read_only, metrics",
        ),
        ("admin: 127.0.0.1:61613\nlisteners: [{tcp: '127.0.0.1:61613'}]", "admin: This address is already taken"),
        ("admin: {address: '0.0.0.0:99'}\nlisteners: [{websocket: '10.0.0.1:99'}]", "admin.address: This address is"),
    ],
)
def test_mistakes_are_found(text: str, mistake: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text, environment={})
    assert mistake in str(raised.value)


def test_its_tls_checks_certificates_only_with_an_authority(tmp_path: Path) -> None:
    server = Identity(*Authority.make(tmp_path, "authority").sign(tmp_path, "server"))
    text = f"admin: {{tls: {{cert_file: {server.certificate}, key_file: {server.key}, verify: required}}}}"
    with pytest.raises(ConfigError, match=r"admin\.tls\.verify: To check clients' certificates, ca_file is needed"):
        parse(text, environment={})
    with pytest.raises(ConfigError, match="certificate_login"):
        parse(text.replace("verify: required", "certificate_login: {}"), environment={})

"""The names of this machine that mean the default virtual host."""

import socket
from pathlib import Path

import pytest

from gateway.server.client_address import local_names

LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@pytest.mark.parametrize(
    ("machine", "hosts", "own"),
    [
        ("mill", "127.0.1.1 mill.example.org mill\n", {"mill", "mill.example.org"}),
        # Several networks; a comment; other machines, also those whose names begin alike.
        (
            "mill",
            "::1 localhost ip6-localhost\n10.0.0.1\tmill mill.lan # mill.no\n10.1.0.1 mill.wan\n#10.0.0.2 mill.not\n"
            "10.0.0.3 mill2.lan windmill.lan mill2\n\n10.0.0.4\n",
            {"mill", "mill.lan", "mill.wan"},
        ),
        # The machine itself knows its domain.
        ("mill.example.org", "", {"mill", "mill.example.org"}),
        ("mill", None, {"mill"}),
        ("", "127.0.0.1 .example.org\n", set()),
        ("localhost", "127.0.0.1 localhost localhost.localdomain\n", {"localhost.localdomain"}),
    ],
)
def test_the_machine_has_its_own_names_and_those_of_its_hosts_file(
    machine: str, hosts: str | None, own: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: machine)
    file = tmp_path / "hosts"
    if hosts is not None:
        file.write_text(hosts)
    assert local_names(file) == LOOPBACK | own


def test_no_name_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        raise AssertionError("a name server was asked")

    for name in ("getfqdn", "gethostbyaddr", "getaddrinfo", "gethostbyname", "gethostbyname_ex", "getnameinfo"):
        monkeypatch.setattr(socket, name, ask)
    assert local_names() >= {*LOOPBACK, socket.gethostname()}

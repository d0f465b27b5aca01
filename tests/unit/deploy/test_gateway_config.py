"""The configuration that `make run` writes, read by the gateway itself."""

from pathlib import Path

import pytest

from deploy.local.address import Address
from deploy.local.errors import LocalError
from deploy.local.gateway_config import write_configuration
from gateway.config.loader import load


@pytest.mark.parametrize("host", ["/", "localhost", "127.0.0.1", None])
def test_the_names_that_clients_dial_mean_the_one_virtual_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str | None
) -> None:
    address = Address.parse("amqps://al$ice:se$$cret@[::1]:5673/$orders")
    for name, value in write_configuration(tmp_path / "run" / "gateway.yaml", address, 61999).items():
        monkeypatch.setenv(name, value)
    config = load(tmp_path / "run" / "gateway.yaml")
    virtual_host = config.virtual_host(host)

    assert [str(listener.tcp) for listener in config.listeners] == ["127.0.0.1:61999"]
    assert virtual_host is not None
    assert virtual_host.amqp_vhost == "$orders"
    assert virtual_host.default_user is not None
    assert virtual_host.default_user.login == "al$ice"
    assert virtual_host.default_user.passcode.get_secret_value() == "se$$cret"


def test_the_journal_lies_beside_the_configuration(tmp_path: Path) -> None:
    write_configuration(tmp_path / "run" / "gateway.yaml", Address.parse("amqp://rabbit"), 61613)
    virtual_host = load(tmp_path / "run" / "gateway.yaml").virtual_host(None)

    assert virtual_host is not None
    assert virtual_host.journal.directory == tmp_path / "run" / "journal"


def test_other_hosts_are_refused(tmp_path: Path) -> None:
    write_configuration(tmp_path / "gateway.yaml", Address.parse("amqp://rabbit"), 61613)

    assert load(tmp_path / "gateway.yaml").virtual_host("stomp.example.org") is None


def test_a_passcode_stays_out_of_the_file(tmp_path: Path) -> None:
    write_configuration(tmp_path / "gateway.yaml", Address.parse("amqp://alice:secret@rabbit"), 61613)

    assert "secret" not in (tmp_path / "gateway.yaml").read_text()


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(LocalError, match=r"Cannot write .*gateway\.yaml"):
        write_configuration(tmp_path / "run" / "gateway.yaml", Address.parse("amqp://rabbit"), 61613)

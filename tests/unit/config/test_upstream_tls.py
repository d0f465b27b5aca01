"""Files of TLS toward brokers: a wrong one is a mistake with its place, before any broker is tried."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.cli import main
from gateway.config.loader import parse
from gateway.config.model import GatewayConfig
from gateway.errors import ConfigError, ExitCode
from tests.support.certificates import Authority, encrypted


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the files `own` and `other`, each `.pem` and `.key`, and some that are good for nothing."""
    made = tmp_path_factory.mktemp("files")
    authority = Authority.make(made, "authority")
    authority.identify(made, "own")
    authority.identify(made, "other")
    encrypted(made / "own.key", made / "encrypted.key", b"secret")
    (made / "remarked.key").write_text(f"# was ENCRYPTED once\n{(made / 'own.key').read_text()}")
    (made / "empty").touch()
    (made / "text").write_text("-----BEGIN CERTIFICATE-----\nno base64\n-----END CERTIFICATE-----\n")
    return made


GOOD = {"ca_file": "authority.pem", "cert_file": "own.pem", "key_file": "own.key"}
NO_CERTIFICATE = "This file holds no certificate (PEM)."
FOREIGN = "This private key does not belong to the certificate in cert_file."


def read(directory: Path, tls: dict[str, str], of_virtual_host: dict[str, str] | None = None) -> GatewayConfig:
    document = {
        "upstream": {"urls": ["amqps://a"], "tls": tls},
        "virtual_hosts": {"/": {"upstream": {"tls": of_virtual_host or {}}}},
    }
    return parse(yaml.safe_dump(document), directory=directory, environment={})


def mistakes(
    directory: Path, tls: dict[str, str], of_virtual_host: dict[str, str] | None = None
) -> dict[str, tuple[str, str | None]]:
    with pytest.raises(ConfigError) as caught:
        read(directory, tls, of_virtual_host)
    return {mistake.path: (mistake.sentence, mistake.suggestion) for mistake in caught.value.mistakes}


def test_good_files_are_taken(directory: Path) -> None:
    tls = read(directory, GOOD).upstream.tls
    assert (tls.ca_file, tls.cert_file, tls.key_file) == tuple(directory / name for name in GOOD.values())


def test_a_remark_makes_no_key_encrypted(directory: Path) -> None:
    config = read(directory, {"cert_file": "own.pem", "key_file": "own.key"}, {"key_file": "remarked.key"})
    virtual_host = config.virtual_host("/")
    assert virtual_host is not None
    assert virtual_host.upstream.tls.key_file == directory / "remarked.key"


@pytest.mark.parametrize(
    ("key", "file", "sentence"),
    [
        ("ca_file", "empty", NO_CERTIFICATE),
        ("ca_file", "text", NO_CERTIFICATE),
        ("ca_file", "own.key", NO_CERTIFICATE),
        ("cert_file", "empty", NO_CERTIFICATE),
        ("cert_file", "own.key", NO_CERTIFICATE),
        ("key_file", "other.key", FOREIGN),
        ("key_file", "encrypted.key", "This private key is encrypted."),
        ("key_file", "own.pem", "This file holds no private key (PEM)."),
        ("key_file", "empty", "This file holds no private key (PEM)."),
    ],
)
def test_a_file_that_cannot_be_used_is_found(directory: Path, key: str, file: str, sentence: str) -> None:
    found = mistakes(directory, GOOD | {key: file})
    assert list(found) == [f"upstream.tls.{key}"]
    assert found[f"upstream.tls.{key}"][0] == sentence


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"cert_file": "other.pem"}, FOREIGN),
        ({"key_file": "other.key"}, FOREIGN),
        ({"key_file": "encrypted.key"}, "This private key is encrypted."),
    ],
)
def test_a_key_of_one_place_belongs_to_the_certificate_of_the_other(
    directory: Path, own: dict[str, str], sentence: str
) -> None:
    found = mistakes(directory, GOOD, own)
    assert {path: sentence for path, (sentence, _) in found.items()} == {
        f"virtual_hosts./.upstream.tls.{next(iter(own))}": sentence
    }


@pytest.mark.parametrize("own", [{"cert_file": "other.pem", "key_file": "other.key"}, {"key_file": "own.key"}, {}])
def test_a_virtual_host_may_have_a_pair_or_a_half_of_its_own(directory: Path, own: dict[str, str]) -> None:
    virtual_host = read(directory, GOOD, own).virtual_host("/")
    assert virtual_host is not None
    tls = virtual_host.upstream.tls
    assert (tls.cert_file, tls.key_file) == tuple(directory / (GOOD | own)[key] for key in ("cert_file", "key_file"))


@pytest.mark.parametrize("command", [["check"], ["serve"]])
def test_the_command_ends_with_the_code_for_configurations(
    directory: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = directory / "gateway.yaml"
    file.write_text("upstream:\n  urls: ['amqps://127.0.0.1:1']\n  tls: {ca_file: empty}\n")
    assert main([*command, "--config", str(file)]) == ExitCode.CONFIGURATION
    captured = capsys.readouterr()
    assert f"line 3, upstream.tls.ca_file: {NO_CERTIFICATE}" in captured.err
    assert "Does this port speak TLS?" not in captured.out + captured.err

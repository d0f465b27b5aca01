"""Files and settings of TLS listeners: a wrong one is a mistake with its place, before anything depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.cli import main
from gateway.config.loader import parse
from gateway.config.tls_settings import ListenerTls
from gateway.errors import ConfigError, ExitCode
from tests.support.certificates import Authority, encrypted


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the files `own` and `other`, each `.pem` and `.key`, and some that are good for nothing."""
    made = tmp_path_factory.mktemp("files")
    authority = Authority.make(made, "authority")
    authority.identify(made, "own")
    authority.identify(made, "other")
    authority.revoke(made, "revoked")
    encrypted(made / "own.key", made / "encrypted.key", b"secret")
    (made / "empty").touch()
    (made / "text").write_text("-----BEGIN CERTIFICATE-----\nno base64\n-----END CERTIFICATE-----\n")
    (made / "binary").write_bytes(b"\xff\0" * 100)
    return made


GOOD = {"cert_file": "own.pem", "key_file": "own.key"}


def read(directory: Path, **tls: object) -> ListenerTls:
    document = {"listeners": [{"tcp": "127.0.0.1:0", "tls": GOOD | tls}]}
    config = parse(yaml.safe_dump(document), directory=directory, environment={})
    assert config.listeners[0].tls is not None
    return config.listeners[0].tls


def mistakes(directory: Path, **tls: object) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        read(directory, **tls)
    return {mistake.path.removeprefix("listeners[0].tls."): str(mistake) for mistake in caught.value.mistakes}


def test_two_files_are_enough(directory: Path) -> None:
    tls = read(directory)
    assert (tls.cert_file, tls.key_file) == (directory / "own.pem", directory / "own.key")
    assert (tls.ca_file, tls.verify, tls.min_version, tls.certificate_login) == (None, "none", "1.2", None)
    assert (tls.crl_file, tls.max_version, tls.ciphers) == (None, "1.3", "ECDHE+AESGCM:ECDHE+CHACHA20")


@pytest.mark.parametrize("version", ["1.2", "1.3", 1.3])
def test_a_version_may_be_written_without_quotes(directory: Path, version: object) -> None:
    assert read(directory, min_version=version).min_version == str(version)


def test_the_distinguished_name_is_the_login_unless_said_otherwise(directory: Path) -> None:
    login = read(directory, verify="optional", ca_file="authority.pem", certificate_login={}).certificate_login
    assert login is not None
    assert (login.name, login.san_type, login.san_index) == ("distinguished_name", "dns", 0)


@pytest.mark.parametrize("file", ["empty", "text", "binary", "own.key"])
@pytest.mark.parametrize("key", ["cert_file", "ca_file"])
def test_a_file_without_a_certificate_is_found(directory: Path, key: str, file: str) -> None:
    found = mistakes(directory, **{key: file, "verify": "required", "ca_file": "authority.pem"} | {key: file})
    assert list(found) == [key]
    assert "This file holds no certificate (PEM)." in found[key]


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("other.key", "This private key does not belong to the certificate in cert_file."),
        ("encrypted.key", "This private key is encrypted. The gateway cannot ask for a passphrase"),
        ("empty", "This file holds no private key (PEM)."),
        ("own.pem", "This file holds no private key (PEM)."),
        ("binary", "This file holds no private key (PEM)."),
        ("nowhere.key", "This file cannot be read: No such file or directory."),
    ],
)
def test_a_key_that_cannot_be_used_is_found(directory: Path, file: str, sentence: str) -> None:
    found = mistakes(directory, key_file=file)
    assert list(found) == ["key_file"]
    assert sentence in found["key_file"]


def test_a_certificate_and_its_key_may_share_a_file(directory: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes((directory / "own.pem").read_bytes() + (directory / "own.key").read_bytes())
    assert read(directory, cert_file=str(both), key_file=str(both)).key_file == both


def test_checking_clients_needs_an_authority(directory: Path) -> None:
    found = mistakes(directory, verify="required")
    assert "ca_file is needed" in found["verify"]


def test_a_certificate_login_needs_certificates(directory: Path) -> None:
    found = mistakes(directory, certificate_login={"name": "common_name"})
    assert "No client is asked for a certificate here. Set verify" in found["certificate_login"]


def test_every_mistake_of_a_listener_is_found_at_once(directory: Path) -> None:
    found = mistakes(directory, cert_file="empty", key_file="nowhere", ca_file="text", min_version="1.1", verify="yes")
    assert set(found) == {"cert_file", "key_file", "ca_file", "min_version", "verify"}


@pytest.mark.parametrize("command", [["check"], ["check", "--offline"], ["serve"]])
def test_the_command_ends_with_the_code_for_configurations(
    directory: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = directory / "gateway.yaml"
    file.write_text("listeners:\n- tcp: 127.0.0.1:0\n  tls: {cert_file: own.pem, key_file: other.key}\n")
    assert main([*command, "--config", str(file)]) == ExitCode.CONFIGURATION
    assert "line 3, listeners[0].tls.key_file: This private key does not belong" in capsys.readouterr().err


def test_versions_must_leave_one(directory: Path) -> None:
    assert read(directory, min_version=1.2, max_version=1.2).max_version == "1.2"
    assert "no version is left" in mistakes(directory, min_version="1.3", max_version="1.2")["listeners[0].tls"]


@pytest.mark.parametrize(
    ("ciphers", "sentence"),
    [
        ("NOTHING", "OpenSSL knows none of these ciphers."),
        ("TLS_AES_128_GCM_SHA256", "Ciphers of TLS 1.3 cannot be chosen"),
        ("ECDHE+AESGCM:aNULL:@SECLEVEL=0", "do not encrypt, or do not say who the gateway is"),
        ("eNULL:@SECLEVEL=0", "do not encrypt, or do not say who the gateway is"),
    ],
)
def test_ciphers_that_protect_nobody_are_refused(directory: Path, ciphers: str, sentence: str) -> None:
    assert sentence in mistakes(directory, ciphers=ciphers)["ciphers"]


def test_ciphers_that_do_not_go_with_the_certificate_are_refused(directory: Path) -> None:
    found = mistakes(directory, ciphers="ECDHE+AESGCM:@SECLEVEL=5")["ciphers"]
    assert "OpenSSL refuses the certificate with these ciphers" in found


def test_a_list_of_revoked_certificates_must_be_one(directory: Path) -> None:
    verified = {"verify": "required", "ca_file": "authority.pem"}
    assert read(directory, crl_file="revoked.crl", **verified).crl_file == directory / "revoked.crl"
    for file in ("empty", "own.pem", "binary"):
        assert "no list of revoked certificates" in mistakes(directory, crl_file=file, **verified)["crl_file"]
    assert "no client is asked for one" in mistakes(directory, crl_file="revoked.crl")["listeners[0].tls"]

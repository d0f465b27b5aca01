"""TLS contexts that follow their files, one look at a time."""

from __future__ import annotations

import gc
import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.config.listener_settings import ServerTls
from gateway.config.virtual_host import UpstreamTls
from gateway.server.tls_contexts import TlsContext, TlsContexts
from tests.support.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path, "authority")


@pytest.fixture
def settings(authority: Authority, tmp_path: Path) -> ServerTls:
    certificate, key = authority.sign(tmp_path, "server")
    return ServerTls.model_construct(cert_file=certificate, key_file=key)


def test_nothing_is_renegotiated_or_compressed(settings: ServerTls) -> None:
    for option in (ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_COMPRESSION):
        assert TlsContext(settings).context.options & option


def test_nothing_is_read_again_while_nothing_changes(settings: ServerTls) -> None:
    context = TlsContext(settings)
    before = context.context

    assert not context.look()
    assert context.context is before


def test_files_that_stay_unusable_are_logged_once_and_used_when_they_fit(
    settings: ServerTls, authority: Authority, tmp_path: Path
) -> None:
    context = TlsContext(settings)
    before = context.context
    certificate, key = authority.sign(tmp_path, "renewed")
    with capture_logs() as lines:
        shutil.copy(certificate, settings.cert_file)
        for _ in range(3):
            assert not context.look()
        assert (context.context, context.is_stale) == (before, True)
        settings.key_file.unlink()
        for _ in range(3):
            assert not context.look()
        shutil.copy(key, settings.key_file)
        assert context.look()
    assert context.context is not before
    assert not context.is_stale
    assert [line["event"] for line in lines] == ["certificate unusable"] * 2 + ["certificate changed"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"valid": False}, "the certificate has expired: "),
        ({"begins_in_days": 2}, "the certificate is not valid before "),
    ],
)
def test_a_renewed_certificate_that_is_not_valid_now_is_not_used(
    settings: ServerTls, authority: Authority, tmp_path: Path, wrong: dict[str, Any], reason: str
) -> None:
    context = TlsContext(settings)
    before, expires_at = context.context, context.expires_at
    with capture_logs() as lines:
        for source in (authority.identify(tmp_path, "wrong", **wrong), authority.identify(tmp_path, "right")):
            for new, old in zip((source.certificate, source.key), (settings.cert_file, settings.key_file), strict=True):
                shutil.copy(new, old)
            is_right = source.certificate.stem == "right"
            assert context.look() == is_right
            assert context.is_stale != is_right
            assert (context.context is before) != is_right
            assert is_right or context.expires_at == expires_at
    assert [line["event"] for line in lines] == ["certificate unusable", "certificate changed"]
    assert lines[0]["reason"].startswith(reason)


def test_an_expired_certificate_that_is_in_use_keeps_no_other_file_away(authority: Authority, tmp_path: Path) -> None:
    identity = authority.identify(tmp_path, "server", valid=False)
    authorities = tmp_path / "authorities.pem"
    shutil.copy(authority.certificate, authorities)
    settings = ServerTls.model_construct(cert_file=identity.certificate, key_file=identity.key, ca_file=authorities)
    context = TlsContext(settings)
    authorities.write_bytes(authorities.read_bytes() * 2)
    assert context.look()


def test_unusable_files_are_tried_again_even_if_they_look_the_same(
    settings: ServerTls, authority: Authority, tmp_path: Path
) -> None:
    """Two writes within one tick of the file system's clock."""
    context = TlsContext(settings)
    certificate, key = authority.sign(tmp_path, "renewed")
    shutil.copy(certificate, settings.cert_file)
    os.truncate(settings.key_file, key.stat().st_size)
    settings.key_file.write_bytes(b"-" * key.stat().st_size)
    os.utime(settings.key_file, (1, 1))
    assert not context.look()
    settings.key_file.write_bytes(key.read_bytes())
    os.utime(settings.key_file, (1, 1))

    assert context.look()


def test_trusted_certificates_are_followed_too(authority: Authority, tmp_path: Path) -> None:
    other = Authority.make(tmp_path, "other")
    context = TlsContext(UpstreamTls.model_construct(ca_file=authority.certificate))
    [trusted] = context.context.get_ca_certs()
    shutil.copy(other.certificate, authority.certificate)

    assert context.look()
    assert context.context.get_ca_certs() != [trusted]


async def test_equal_settings_share_a_context_as_long_as_somebody_uses_it(settings: ServerTls) -> None:
    contexts = TlsContexts()
    used = contexts.of(settings)

    assert contexts.of(settings.model_copy()) is used
    assert list(contexts) == [used]
    del used
    gc.collect()
    assert list(contexts) == []
    assert await contexts.look() == []

"""TLS contexts that follow their files, one look at a time."""

from __future__ import annotations

import gc
import os
import shutil
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from gateway.config.tls_settings import ServerTls
from gateway.config.virtual_host import UpstreamTls
from gateway.server import tls_contexts
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


def test_who_reads_in_the_log_that_a_file_is_unusable_finds_the_metrics_changed(
    settings: ServerTls, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look happens in a thread, so the metrics may be asked for at that moment."""
    context, seen = TlsContext(settings), []
    log = SimpleNamespace(error=lambda *_, **__: seen.append((context.is_stale, context.refused)))
    monkeypatch.setattr(tls_contexts, "log", log)
    shutil.copy(authority.sign(tmp_path, "renewed")[0], settings.cert_file)
    assert not context.look()
    assert seen == [(True, 1)]


@pytest.mark.parametrize(
    ("days", "reason"), [((-3, -1), "the new certificate has expired"), ((1, 3), "the new certificate is not valid")]
)
def test_a_renewed_certificate_that_is_not_valid_now_is_refused_and_the_old_one_kept(
    settings: ServerTls, authority: Authority, tmp_path: Path, days: tuple[int, int], reason: str
) -> None:
    context = TlsContext(settings)
    before, expires_at = context.context, context.expires_at
    certificate, key = authority.sign(tmp_path, "wrong", days=days)
    shutil.copy(certificate, settings.cert_file)
    shutil.copy(key, settings.key_file)
    with capture_logs() as lines:
        assert [context.look() for _ in range(2)] == [False, False]
    assert [(line["log_level"], line["reason"].startswith(reason)) for line in lines] == [("error", True)]
    assert (context.context, context.expires_at, context.is_stale, context.refused) == (before, expires_at, True, 1)
    certificate, key = authority.sign(tmp_path, "right")
    shutil.copy(certificate, settings.cert_file)
    shutil.copy(key, settings.key_file)
    assert context.look()
    assert not context.is_stale


def test_other_authorities_are_used_also_with_an_own_certificate_that_has_expired(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.sign(tmp_path, "server", days=(-3, -1))
    tls = UpstreamTls.model_construct(cert_file=certificate, key_file=key, ca_file=authority.certificate)
    context = TlsContext(tls)
    shutil.copy(Authority.make(tmp_path, "other").certificate, authority.certificate)

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

"""TLS toward servers: what is trusted does not depend on the release of Python."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.client_tls import client_context
from gateway.errors import PipelineError
from gateway.pipeline.stomp_sender import StompSender, StompServer
from tests.support.certificates import LOCALHOST, Authority
from tests.support.deadline import PATIENCE


def test_every_python_takes_certificates_without_a_key_identifier() -> None:
    """Private authorities sign such certificates; from Python 3.13 on the default refuses them."""
    for verify in (True, False):
        assert not client_context(None, verify=verify).verify_flags & ssl.VERIFY_X509_STRICT


def test_names_and_certificates_are_checked_unless_that_is_switched_off() -> None:
    checking, trusting = client_context(None, verify=True), client_context(None, verify=False)
    assert (checking.check_hostname, checking.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert (trusting.check_hostname, trusting.verify_mode) == (False, ssl.CERT_NONE)


def test_messages_are_sent_again_to_a_server_with_such_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ssl.create_default_context

    def as_of_python_3_13(cafile: str | None = None) -> ssl.SSLContext:
        context = usual(cafile=cafile)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    authority = Authority.make(tmp_path, "authority")
    identity = authority.identify(tmp_path, "server", None, LOCALHOST, names_key=False)
    monkeypatch.setattr(ssl, "create_default_context", as_of_python_3_13)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE)

        def refuse() -> None:
            plain, _ = listening.accept()
            plain.settimeout(PATIENCE)
            with suppress(OSError), context.wrap_socket(plain, server_side=True) as client:
                client.recv(4096)
                client.sendall(b"ERROR\nmessage:not today\n\n\0")

        server = threading.Thread(target=refuse, daemon=True)
        server.start()
        with pytest.raises(PipelineError, match="not today"):
            StompSender(StompServer.read(f"stomps://localhost:{listening.getsockname()[1]}/"))
        server.join(PATIENCE)
        assert not server.is_alive()

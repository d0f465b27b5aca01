"""TLS toward servers: what is trusted does not depend on the release of Python."""

from __future__ import annotations

import ssl

from gateway.client_tls import client_context


def test_every_python_takes_certificates_without_a_key_identifier() -> None:
    """Private authorities sign such certificates; from Python 3.13 on the default refuses them."""
    for verify in (True, False):
        assert not client_context(None, verify=verify).verify_flags & ssl.VERIFY_X509_STRICT


def test_names_and_certificates_are_checked_unless_that_is_switched_off() -> None:
    checking, trusting = client_context(None, verify=True), client_context(None, verify=False)
    assert (checking.check_hostname, checking.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert (trusting.check_hostname, trusting.verify_mode) == (False, ssl.CERT_NONE)

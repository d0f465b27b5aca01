"""The broker of the gateway: the one whose files are being read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic_core import PydanticCustomError

from gateway.config import BrokerUrl
from gateway.errors import UsageError
from gateway.migrate.keys import RABBIT
from gateway.migrate.settings import Given
from gateway.migrate.sheet import Sheet
from gateway.migrate.terms import Atom, Tuple
from gateway.migrate.tls import verifies
from gateway.migrate.values import Reading
from gateway.migrate.where import EVERY_IPV4, EVERY_IPV6, spots_of

_LOOPBACK: Final = "127.0.0.1"
_AMQP: Final = 5672
_HERE: Final = "The gateway is taken to run on the broker's machine. If it does not: --upstream amqp://BROKER:5672."


def write_upstream(sheet: Sheet, reading: Reading, urls: Sequence[str]) -> None:
    """The group `upstream`.

    Args:
        sheet: grows.
        reading: the broker's own listeners.
        urls: what the user says instead.
    """
    found, comment = _given(urls) if urls else _derived(reading)
    sheet.add(0, "upstream")
    sheet.add(1, "urls", [str(url) for url in found], comment)
    _remark_closed_doors(reading)
    if not any(url.tls for url in found):
        return
    authority = reading.tls_part("cacertfile")
    if authority is not None:
        sheet.add(1, "tls")
        sheet.add(2, "ca_file", reading.text(authority, ""), str(authority.origin))
    reading.remarks.note("upstream", "The certificate of the broker must name the host in the URL; if not: --upstream.")
    strict = reading.tls_part("fail_if_no_peer_cert")
    if verifies(reading.settings.parts(RABBIT, "ssl_options"), reading) and reading.switch(strict, default=False):
        text = "The broker asks for a certificate: add cert_file and key_file of one to upstream.tls."
        reading.remarks.needed(strict, text)


def _remark_closed_doors(reading: Reading) -> None:
    """What lets the plugin in, which is part of the broker, and not an AMQP client like the gateway."""
    proxy, mechanisms = reading.get(RABBIT, "proxy_protocol"), reading.get(RABBIT, "auth_mechanisms")
    if reading.switch(proxy, default=False):
        text = "The broker takes no AMQP connection without a PROXY header, and the gateway sends none. "
        reading.remarks.needed(proxy, text + "In upstream.urls name the proxy that does.")
    offered = mechanisms.value if mechanisms is not None and isinstance(mechanisms.value, tuple) else ()
    if mechanisms is not None and Atom("PLAIN") not in [entry.value for entry in offered]:
        text = "The gateway logs in by PLAIN only, which is not among these. Add it; the plugin did without."
        reading.remarks.needed(mechanisms, text)


def _given(urls: Sequence[str]) -> tuple[list[BrokerUrl], str]:
    try:
        return [BrokerUrl.read(url) for url in urls], "--upstream"
    except PydanticCustomError as error:
        advice = (error.context or {}).get("suggestion", "")
        raise UsageError(f"--upstream: {error.message()} {advice}".rstrip()) from None


def _derived(reading: Reading) -> tuple[list[BrokerUrl], str]:
    plain, encrypted = reading.get(RABBIT, "tcp_listeners"), reading.get(RABBIT, "ssl_listeners")
    for scheme, given in (("amqp", plain), ("amqps", encrypted)):
        for entry in given.value if given is not None and isinstance(given.value, tuple) else ():
            for spot in [] if _is_unix(entry) else spots_of(entry, reading.remarks)[:1]:
                reading.remarks.note("upstream", _HERE)
                return [BrokerUrl(scheme, _seen(spot.address.host), spot.address.port)], str(entry.origin)
    if plain is not None:
        reading.remarks.needed(plain, "The broker has no AMQP listener on TCP, and the gateway needs one. Open one.")
    else:
        reading.remarks.note("upstream", _HERE)
    return [BrokerUrl("amqp", _LOOPBACK, _AMQP)], "RabbitMQ's default"


def _is_unix(entry: Given) -> bool:
    """Whether it is a socket in the file system, which the gateway does not dial."""
    host = entry.value.items[0] if isinstance(entry.value, Tuple) and entry.value.items else None
    return isinstance(host, str) and host.startswith(("unix:", "local:"))


def _seen(host: str) -> str:
    """The address as a client on the same machine dials it."""
    return {EVERY_IPV4: _LOOPBACK, EVERY_IPV6: "::1"}.get(host, host)

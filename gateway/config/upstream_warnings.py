"""Warnings about brokers' URLs that no broker will answer at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.config.mistakes import Finding, Trail, path_text
from gateway.config.model import GatewayConfig
from gateway.config.scalars import BrokerUrl, SocketAddress
from gateway.config.virtual_host import Upstream

_PLAIN_PORT: Final = 5672
_TLS_PORT: Final = 5671
_OTHER_PORTS: Final = {
    1883: "MQTT", 4369: "Erlang's port mapper", 5552: "RabbitMQ's streams", 8883: "MQTT with TLS",
    15671: "RabbitMQ's management pages", 15672: "RabbitMQ's management pages", 15674: "STOMP over WebSocket",
    15692: "RabbitMQ's metrics", 25672: "RabbitMQ's cluster", 61613: "STOMP", 61614: "STOMP with TLS",
}  # fmt: skip

_LOOPBACK_NAMES: Final = {"localhost": ("127.0.0.1", "::1")}


def upstream_warnings(config: GatewayConfig) -> Iterator[Finding]:
    """Warnings about every upstream of a configuration."""
    places: list[tuple[Trail, Upstream]] = [(("upstream",), config.upstream)]
    for name, entry in config.virtual_hosts.items():
        if entry.upstream is not None:
            places.append((("virtual_hosts", name, "upstream"), entry.upstream))
    own: list[tuple[Trail, SocketAddress]] = [
        (("listeners", position), listener.address)
        for position, listener in enumerate(config.listeners)
        if isinstance(listener.address, SocketAddress)
    ]
    for trail, upstream in places:
        if "urls" in upstream.model_fields_set:
            for position, url in enumerate(upstream.urls):
                yield from _url((*trail, "urls", position), url, own)
                if url in upstream.urls[:position]:
                    sentence = "This broker is in the list already, so this one never counts."
                    yield Finding((*trail, "urls", position), sentence, "Delete it.")


def _url(trail: Trail, url: BrokerUrl, own: list[tuple[Trail, SocketAddress]]) -> Iterator[Finding]:
    for place, address in own:
        if address.port == url.port and _is_same_host(url.host, address):
            sentence = f"This is the gateway's own address {path_text(place)}, not a broker's."
            yield Finding(trail, sentence, "A broker listens on port 5672, with TLS on 5671.")
            return
    if url.port in _OTHER_PORTS:
        sentence = f"This port is usually for {_OTHER_PORTS[url.port]}, not for AMQP."
        yield Finding(trail, sentence, "A broker listens on port 5672, with TLS on 5671.")
    elif url.port == (_PLAIN_PORT if url.tls else _TLS_PORT):
        wanted = "without TLS" if url.tls else "for TLS"
        advice = f"Write {'amqp' if url.tls else 'amqps'}://, or another port."
        yield Finding(trail, f"Port {url.port} is usually {wanted}, and {url.scheme} is not.", advice)


def _is_same_host(host: str, address: SocketAddress) -> bool:
    """Whether a broker's host is one that the gateway listens on, as far as that is known without a name server."""
    wanted = _LOOPBACK_NAMES.get(host, (host,))
    if address.host == "0.0.0.0":  # noqa: S104
        return any(each.startswith("127.") for each in wanted)
    if address.host == "::":
        return "::1" in wanted
    return not {*wanted}.isdisjoint(_LOOPBACK_NAMES.get(address.host, (address.host,)))

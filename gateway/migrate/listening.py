"""The listeners of both plugins as those of a gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.config import SocketAddress
from gateway.config.listener_settings import is_origin
from gateway.errors import UsageError
from gateway.migrate.keys import RABBIT, STOMP, WEB
from gateway.migrate.settings import Given
from gateway.migrate.sheet import Sheet
from gateway.migrate.terms import Atom
from gateway.migrate.tls import usable, write_tls
from gateway.migrate.values import DEFAULT, Reading, because
from gateway.migrate.where import Spot, collides, fits, moved, spots_of, web_spots

_PORT: Final = 61613
_WEB_PORT: Final = 15674
_LOGIN_TIMEOUT: Final = 10_000
_WEB_IDLE_TIMEOUT: Final = 60_000
_BACKLOG: Final = 128
_BACKLOG_OF_RANCH: Final = 1024

# An origin that no page can have (RFC 2606).
_NOBODY: Final = "https://nobody.invalid"


@dataclass
class Listeners:
    """Collects listeners, and keeps those out that could not be listened on beside an earlier one."""

    reading: Reading
    offset: int
    sheet: Sheet
    taken: list[SocketAddress] = field(default_factory=list)
    certificate_login: bool = False
    """Whether clients can log in by certificate somewhere."""

    def add(self, spots: Iterable[Spot], key: str, about: str | Given, write: Callable[[Spot], None]) -> None:
        """Listen at some places.

        Args:
            spots: where.
            key: `tcp` or `websocket`.
            about: what remarks speak of.
            write: adds the other keys of the listener.
        """
        for spot in spots:
            place = moved(spot, self.offset)
            if not fits(place):
                raise UsageError(f"--port-offset {self.offset} makes port {place.address.port} of {spot.address.port}")
            other = next((taken for taken in self.taken if collides(taken, place.address)), None)
            if other is not None:
                self.reading.remarks.note(about, f"{place.address} is left out: {other} is the same port.")
                continue
            self.taken.append(place.address)
            self.sheet.add(1, f"- {key}", str(place.address), place.comment)
            write(place)

    # The STOMP plugin.

    def stomp(self) -> None:
        """Those of `rabbitmq_stomp`."""
        self._plain()
        self._encrypted()

    def _plain(self) -> None:
        given = self.reading.get(STOMP, "tcp_listeners")
        if given is None:
            origin = f"{DEFAULT}: every address"
            addresses = [SocketAddress("0.0.0.0", _PORT), SocketAddress("::", _PORT)]  # noqa: S104 - as the plugin
            self.add([Spot(address, origin) for address in addresses], "tcp", "the plugin's default", self._common)
            return
        for entry in _entries(given):
            self.add(spots_of(entry, self.reading.remarks), "tcp", entry, self._common)

    def _encrypted(self) -> None:
        given = self.reading.get(STOMP, "ssl_listeners")
        parts = self.reading.settings.parts(RABBIT, "ssl_options")

        def write(spot: Spot) -> None:
            self._common(spot)
            self.certificate_login |= write_tls(self.sheet, parts, self.reading)

        for entry in _entries(given):
            spots = spots_of(entry, self.reading.remarks)
            if spots and usable(parts, entry, self.reading):
                self.add(spots, "tcp", entry, write)

    def _common(self, _spot: Spot) -> None:
        """What holds on every listener of `rabbitmq_stomp`."""
        options, backlog = self.reading.get(STOMP, "tcp_listen_options"), self._option("backlog")
        if backlog is not None or options is None:
            self.sheet.add(2, "backlog", self.reading.number(backlog, _BACKLOG, 1), because(backlog))
        else:
            comment = f"{options.origin} has none, and then it is this"
            self.sheet.add(2, "backlog", _BACKLOG_OF_RANCH, comment)
        for key in ("proxy_protocol", "implicit_connect"):
            given = self.reading.get(STOMP, key)
            self.sheet.add(2, key, self.reading.switch(given, default=False), because(given))
        self._limits()

    def _limits(self) -> None:
        """What holds before the login, on listeners of both plugins."""
        timeout = self.reading.get(STOMP, "login_timeout")
        self._duration("login_timeout", timeout, _LOGIN_TIMEOUT)
        for key in ("max_headers", "max_header_length"):
            if given := self.reading.get(STOMP, key):
                self.sheet.add(2, key, self.reading.number(given, None, 1), because(given))

    def _duration(self, key: str, given: Given | None, default: int) -> None:
        milliseconds = self.reading.number(given, default)
        if not milliseconds:
            self.reading.remarks.lost(given, "With 0 nobody could stay connected; the default is taken instead.")
            given, milliseconds = None, default
        text = f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"
        self.sheet.add(2, key, text, because(given))

    def _option(self, name: str) -> Given | None:
        return self.reading.settings.part(STOMP, "tcp_listen_options", name)

    # Web-STOMP.

    def web(self) -> None:
        """Those of `rabbitmq_web_stomp`."""
        parts = self._web_parts("ssl_config")
        plain = self.reading.get(WEB, "tcp_config")
        if plain is None or plain.value:
            self._web_plain(plain)
        if parts:
            self._web_encrypted(parts)

    def _web_plain(self, given: Given | None) -> None:
        parts, fallback = self._web_parts("tcp_config"), self.reading.get(WEB, "port")
        if fallback is not None and (given is None or "port" in parts):
            text = f"This had no effect: the port is {'that of tcp_config' if given else _WEB_PORT} all the same."
            self.reading.remarks.note(fallback, text)
            fallback = None
        port = self.reading.number(parts.get("port") or fallback, _WEB_PORT)
        spots = web_spots(parts, port, fallback, self.reading.remarks, f"{DEFAULT}: every IPv4 address")
        self.add(spots, "websocket", given or DEFAULT, lambda _spot: self._web_common(parts))

    def _web_encrypted(self, parts: Mapping[str, Given]) -> None:
        given = self.reading.get(WEB, "ssl_config")
        port = parts.get("port")
        if given is None:
            return
        if port is None:
            self.reading.remarks.lost(given, "This listener is left out: it has no port.")
            return
        tls = {name: part for name, part in parts.items() if name not in ("ip", "port", "backlog")}

        def write(_spot: Spot) -> None:
            self._web_common(parts)
            self.certificate_login |= write_tls(self.sheet, tls, self.reading)

        if usable(tls, given, self.reading):
            spots = web_spots(parts, self.reading.number(port, 0), None, self.reading.remarks, "")
            self.add(spots, "websocket", given, write)

    def _web_parts(self, key: str) -> Mapping[str, Given]:
        return self.reading.settings.parts(WEB, key)

    def _web_common(self, parts: Mapping[str, Given]) -> None:
        backlog = parts.get("backlog")
        self.sheet.add(2, "backlog", self.reading.number(backlog, _BACKLOG_OF_RANCH, 1), because(backlog))
        path, frame = self.reading.get(WEB, "ws_path"), self.reading.get(WEB, "ws_frame")
        self.sheet.add(2, "path", self._path(path), because(path))
        self.sheet.add(2, "frame", self.reading.word(frame, ("text", "binary"), "text"), because(frame))
        for key in ("proxy_protocol", "use_http_auth"):
            given = self.reading.get(WEB, key)
            self.sheet.add(2, key, self.reading.switch(given, default=False), because(given))
        compress = self.reading.settings.part(WEB, "cowboy_ws_opts", "compress")
        on = self.reading.switch(compress, default=True)
        self.sheet.add(2, "compression", on, because(compress) + ("; false saves memory" if on else ""))
        idle = self.reading.settings.part(WEB, "cowboy_ws_opts", "idle_timeout")
        if idle is not None and idle.value == Atom("infinity"):
            self.sheet.add(2, "idle_timeout", 0, because(idle))
        else:
            self._duration("idle_timeout", idle, _WEB_IDLE_TIMEOUT)
        self._limits()
        self._web_if_given()

    def _path(self, given: Given | None) -> str:
        path = self.reading.text(given, "/ws")
        if not path.startswith("/") or set(path) & set("?# "):
            self.reading.remarks.mistake(given or "ws_path", "A path begins with / and has no ?, # or space.")
        return path

    def _origins(self, given: Given) -> None:
        """Without those that no browser can have, which never let anybody in; but an empty list would let all in."""
        texts = [text for entry in _entries(given) if (text := self.reading.text(entry, ""))]
        useless = ", ".join(text for text in texts if not is_origin(text))
        if useless:
            self.reading.remarks.needed(
                given,
                f"No browser has such an origin, so with the plugin it let nobody in: {useless}. Left out; if it is "
                "needed, add it to allowed_origins in small letters and without a slash or a path behind it.",
            )
        origins = [text for text in texts if is_origin(text)]
        self.sheet.add(2, "allowed_origins", origins or [_NOBODY] * bool(texts), because(given))

    def _web_if_given(self) -> None:
        if origins := self.reading.get(WEB, "allow_origins"):
            self._origins(origins)
        if policy := self.reading.get(WEB, "strict_transport_security"):
            self.sheet.add(2, "strict_transport_security", self.reading.text(policy, "") or None, because(policy))
        if most := self.reading.get(WEB, "max_connections"):
            self.sheet.add(2, "max_connections", self.reading.limit(most), because(most))
        if size := self.reading.get(STOMP, "max_frame_size_unauthenticated"):
            self.sheet.add(2, "max_frame_size_unauthenticated", self.reading.number(size, 1, 1), because(size))


def _entries(given: Given | None) -> tuple[Given, ...]:
    return given.value if given is not None and isinstance(given.value, tuple) else ()

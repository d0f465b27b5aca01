"""Writes the listeners of both plugins as the group `listeners` of the gateway."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic_core import PydanticCustomError

from gateway.config.addresses import MAX_PORT, SocketAddress
from gateway.config.listener_settings import is_origin
from gateway.errors import UsageError
from gateway.migrate.broker_settings import BrokerSettings, Setting, entries, shown
from gateway.migrate.conf_schema import RABBIT, STOMP, WEB_STOMP
from gateway.migrate.erlang_terms import Atom, Term, Tuple
from gateway.migrate.output import PLUGIN_DEFAULT, MigrationReport, YamlWriter
from gateway.migrate.tls_section import can_listen, write_tls

EVERY_IPV4: Final = "0.0.0.0"  # noqa: S104 - what the plugin does
EVERY_IPV6: Final = "::"
_EVERY_ADDRESS: Final = (EVERY_IPV4, EVERY_IPV6)

# Defaults of the plugins; times in milliseconds.
_PORT: Final = 61613
_WEB_PORT: Final = 15674
_LOGIN_TIMEOUT: Final = 10_000
_WEB_IDLE_TIMEOUT: Final = 60_000
_BACKLOG: Final = 128
_BACKLOG_OF_RANCH: Final = 1024

_FALLBACK: Final = SocketAddress("127.0.0.1", 61613)
_NO_ORIGIN: Final = "https://nobody.invalid"
"""An origin that no page can have (RFC 2606)."""


@dataclass(frozen=True)
class Endpoint:
    """An address to listen on, and the comment after it."""

    address: SocketAddress
    comment: str

    def moved(self, offset: int) -> "Endpoint":
        """The endpoint with another port, which may be out of range. Port 0 stays 0."""
        if not offset or not self.address.port:
            return self
        sign = "+" if offset > 0 else "-"
        address = SocketAddress(self.address.host, self.address.port + offset)
        return Endpoint(address, f"{self.comment}, port {sign} {abs(offset)}")


@dataclass
class ListenersSection:
    """Writes the listeners, except those whose address an earlier one has taken."""

    writer: YamlWriter
    settings: BrokerSettings
    port_offset: int
    taken: list[SocketAddress] = field(default_factory=list)
    """The addresses of the listeners so far."""
    has_certificate_login: bool = False
    """Whether a listener lets clients log in by certificate."""

    def write(self, *, with_web_stomp: bool) -> None:
        """Write all listeners. Raises UsageError if the offset makes a port that does not exist."""
        self.writer.add(0, "listeners")
        self._stomp()
        if with_web_stomp:
            tcp, tls = self.settings.get(WEB_STOMP, "tcp_config"), self.settings.get(WEB_STOMP, "ssl_config")
            if tcp is None or tcp.value:
                self._web_stomp(tcp)
            if tls is not None and tls.value:
                self._web_stomp_tls(tls)
        if not self.taken:
            text = "No listener is left, and the gateway cannot be without one: it has one for this machine only."
            self.settings.report.dropped("listeners", text)
            self._add([Endpoint(_FALLBACK, "the gateway's default")], "tcp", "listeners", lambda: None)

    def _add(
        self,
        endpoints: Iterable[Endpoint],
        key: str,
        about: str | Setting,
        write_options: Callable[[], None],
        tls: Mapping[str, Setting] | None = None,
    ) -> None:
        for endpoint in endpoints:
            moved = endpoint.moved(self.port_offset)
            port = moved.address.port
            if not 0 <= port <= MAX_PORT:
                raise UsageError(f"--port-offset {self.port_offset} makes port {port} of {endpoint.address.port}")
            other = next((taken for taken in self.taken if taken.collides_with(moved.address)), None)
            if other is not None:
                self.settings.report.note(about, f"{moved.address} is left out: {other} is the same port.")
                continue
            self.taken.append(moved.address)
            self.writer.add(1, f"- {key}", str(moved.address), moved.comment)
            write_options()
            if tls is not None:
                self.has_certificate_login |= write_tls(self.writer, tls, self.settings)

    # The STOMP plugin.

    def _stomp(self) -> None:
        tcp = self.settings.get(STOMP, "tcp_listeners")
        if tcp is None:
            comment = f"{PLUGIN_DEFAULT}: every address"
            endpoints = [Endpoint(SocketAddress(host, _PORT), comment) for host in _EVERY_ADDRESS]
            self._add(endpoints, "tcp", PLUGIN_DEFAULT, self._stomp_options)
        for entry in entries(tcp):
            self._add(endpoints_of(entry, self.settings.report), "tcp", entry, self._stomp_options)
        tls = self.settings.properties(RABBIT, "ssl_options")
        for entry in entries(self.settings.get(STOMP, "ssl_listeners")):
            endpoints = endpoints_of(entry, self.settings.report)
            if endpoints and can_listen(tls, entry, self.settings):
                self._add(endpoints, "tcp", entry, self._stomp_options, tls)

    def _stomp_options(self) -> None:
        options = self.settings.get(STOMP, "tcp_listen_options")
        backlog = self.settings.properties(STOMP, "tcp_listen_options").get("backlog")
        if options is not None and backlog is None:
            self.writer.add(2, "backlog", _BACKLOG_OF_RANCH, f"{options} has none, and then it is this")
        else:
            self.writer.add(2, "backlog", self.settings.number(backlog, _BACKLOG, 1), backlog)
        self._switches(STOMP, "proxy_protocol", "implicit_connect")
        self._limits_before_login()

    # Options of both plugins.

    def _switches(self, app: str, *keys: str) -> None:
        for key in keys:
            setting = self.settings.get(app, key)
            self.writer.add(2, key, self.settings.switch(setting, default=False), setting)

    def _limits_before_login(self) -> None:
        self._duration("login_timeout", self.settings.get(STOMP, "login_timeout"), _LOGIN_TIMEOUT)
        for key in ("max_headers", "max_header_length"):
            if setting := self.settings.get(STOMP, key):
                self.writer.add(2, key, self.settings.number(setting, None, 1), setting)

    def _duration(self, key: str, setting: Setting | None, default: int) -> None:
        milliseconds = self.settings.number(setting, default)
        if not milliseconds:
            self.settings.report.dropped(setting, "With 0 nobody could stay connected; the default is taken instead.")
            setting, milliseconds = None, default
        text = f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"
        self.writer.add(2, key, text, setting)

    # The Web-STOMP plugin.

    def _web_stomp(self, setting: Setting | None) -> None:
        properties, port = self.settings.properties(WEB_STOMP, "tcp_config"), self.settings.get(WEB_STOMP, "port")
        if port is not None and (setting is None or "port" in properties):
            text = f"This had no effect: the port is {'that of tcp_config' if setting else _WEB_PORT} all the same."
            self.settings.report.note(port, text)
            port = None
        number = self.settings.number(properties.get("port") or port, _WEB_PORT)
        endpoints = _web_endpoints(properties, number, port, self.settings.report)
        self._add(endpoints, "websocket", setting or PLUGIN_DEFAULT, lambda: self._web_stomp_options(properties))

    def _web_stomp_tls(self, setting: Setting) -> None:
        properties = self.settings.properties(WEB_STOMP, "ssl_config")
        port = properties.get("port")
        if port is None:
            self.settings.report.dropped(setting, "This listener is left out: it has no port.")
            return
        tls = {name: option for name, option in properties.items() if name not in ("ip", "port", "backlog")}
        if can_listen(tls, setting, self.settings):
            endpoints = _web_endpoints(properties, self.settings.number(port, 0), None, self.settings.report)
            self._add(endpoints, "websocket", setting, lambda: self._web_stomp_options(properties), tls)

    def _web_stomp_options(self, properties: Mapping[str, Setting]) -> None:
        writer, settings = self.writer, self.settings
        backlog = properties.get("backlog")
        path, frame = settings.get(WEB_STOMP, "ws_path"), settings.get(WEB_STOMP, "ws_frame")
        writer.add(2, "backlog", settings.number(backlog, _BACKLOG_OF_RANCH, 1), backlog)
        writer.add(2, "path", self._path(path), path)
        writer.add(2, "frame", settings.word(frame, ("text", "binary"), "text"), frame)
        self._switches(WEB_STOMP, "proxy_protocol", "use_http_auth")
        websocket = settings.properties(WEB_STOMP, "cowboy_ws_opts")
        compress, idle = websocket.get("compress"), websocket.get("idle_timeout")
        is_compressed = settings.switch(compress, default=True)
        hint = "; false saves memory" if is_compressed else ""
        writer.add(2, "compression", is_compressed, f"{compress or PLUGIN_DEFAULT}{hint}")
        if idle is not None and idle.value == Atom("infinity"):
            writer.add(2, "idle_timeout", 0, idle)
        else:
            self._duration("idle_timeout", idle, _WEB_IDLE_TIMEOUT)
        self._limits_before_login()
        if origins := settings.get(WEB_STOMP, "allow_origins"):
            self._origins(origins)
        if policy := settings.get(WEB_STOMP, "strict_transport_security"):
            writer.add(2, "strict_transport_security", settings.text(policy, "") or None, policy)
        if most := settings.get(WEB_STOMP, "max_connections"):
            writer.add(2, "max_connections", settings.limit(most), most)
        if size := settings.get(STOMP, "max_frame_size_unauthenticated"):
            writer.add(2, "max_frame_size_unauthenticated", settings.number(size, 1, 1), size)

    def _path(self, setting: Setting | None) -> str:
        path = self.settings.text(setting, "/ws")
        if not path.startswith("/") or set(path) & set("?# "):
            self.settings.report.mistake(setting or "ws_path", "A path begins with / and has no ?, # or space.")
        return path

    def _origins(self, setting: Setting) -> None:
        """Leave out origins that no browser sends. The list must not become empty: that would allow every origin."""
        texts = [text for entry in entries(setting) if (text := self.settings.text(entry, ""))]
        useless = ", ".join(shown(text) for text in texts if not is_origin(text))
        if useless:
            text = f"No browser has such an origin, so with the plugin it let nobody in: {useless}. Left out; if it is "
            text += "needed, add it to allowed_origins in small letters and without a slash or a path after it."
            self.settings.report.action(setting, text)
        origins = [text for text in texts if is_origin(text)]
        self.writer.add(2, "allowed_origins", origins or [_NO_ORIGIN] * bool(texts), setting)


def endpoints_of(entry: Setting, report: MigrationReport) -> list[Endpoint]:
    """The endpoints of an entry of `tcp_listeners` or `ssl_listeners`. A bare port listens on every address."""
    match entry.value:
        case int(port):
            return _endpoints(_EVERY_ADDRESS, port, entry, report)
        case Tuple((host, int(port), *rest)) if len(rest) <= 1 and (name := _host_text(host)):
            family = rest[0].name if rest and isinstance(rest[0], Atom) else None
            return _endpoints(_hosts(name, family, entry, report), port, entry, report)
    report.mistake(entry, 'A port or {"ip", Port} belongs here.')
    return []


def _web_endpoints(
    properties: Mapping[str, Setting], port: int, port_setting: Setting | None, report: MigrationReport
) -> list[Endpoint]:
    """The endpoints of Web-STOMP, which without an ip listens on every IPv4 address."""
    ip = properties.get("ip")
    hosts: tuple[str, ...] = (EVERY_IPV4,)
    if ip is not None:
        name = _host_text(ip.value) if isinstance(ip.value, (str, bytes, Tuple)) else ""
        if not name:
            report.mistake(ip, "An IP address belongs here.")
            return []
        hosts = _EVERY_ADDRESS if name == EVERY_IPV6 else (name,)
    setting = properties.get("port") or ip or port_setting
    if setting is None:
        return [Endpoint(SocketAddress(EVERY_IPV4, port), f"{PLUGIN_DEFAULT}: every IPv4 address")]
    return _endpoints(hosts, port, setting, report)


def _endpoints(hosts: Iterable[str], port: int, setting: Setting, report: MigrationReport) -> list[Endpoint]:
    """Endpoints on the addresses that the gateway can listen on. Each other address is reported as a mistake."""
    found = []
    for host in hosts:
        try:
            address = SocketAddress.read(str(SocketAddress(host, port)))
        except PydanticCustomError as error:
            report.mistake(setting, error.message())
        else:
            found.append(Endpoint(address, str(setting)))
    return found


def _hosts(name: str, family: str | None, entry: Setting, report: MigrationReport) -> tuple[str, ...]:
    if name in ("auto", EVERY_IPV6) and family is None:
        return _EVERY_ADDRESS
    if name == "auto":
        return (EVERY_IPV4,) if family == "inet" else (EVERY_IPV6,)
    is_ip = ":" in name or name.replace(".", "").isdigit()
    if family in ("inet", "inet6") and not is_ip:
        report.note(entry, "The gateway listens on every address of a name, IPv4 and IPv6.")
    return (name,)


def _host_text(host: Term) -> str:
    """A name or an IP address, which can be a tuple of numbers in Erlang, as text. Empty for anything else."""
    text = host.decode("utf-8", "replace") if isinstance(host, bytes) else host
    if isinstance(text, str):
        return "".join(text.strip("[]").split())
    if isinstance(text, Atom):
        return "auto" if text.name == "auto" else ""
    items = text.items if isinstance(text, Tuple) else ()
    numbers = [item for item in items if isinstance(item, int)]
    if len(numbers) == len(items) == 4:  # noqa: PLR2004 - an IPv4 address
        return ".".join(map(str, numbers))
    if len(numbers) == len(items) == 8:  # noqa: PLR2004 - an IPv6 address
        return ":".join(f"{number:x}" for number in numbers) if any(numbers) else EVERY_IPV6
    return ""

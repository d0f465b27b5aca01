"""Translates RabbitMQ's settings into the text of a configuration that behaves as the plugins do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic_core import PydanticCustomError

from gateway import __version__
from gateway.config.addresses import BrokerUrl
from gateway.config.listener_settings import DEFAULT_ADMIN_ADDRESS
from gateway.config.scalars import text_of
from gateway.errors import UsageError
from gateway.migrate.broker_settings import BrokerSettings, Setting, entries
from gateway.migrate.conf_schema import RABBIT, STOMP, WEB_STOMP, property_names
from gateway.migrate.defaults_section import DefaultsSection
from gateway.migrate.erlang_terms import Atom, Tuple
from gateway.migrate.listeners_section import EVERY_IPV4, EVERY_IPV6, ListenersSection, endpoints_of
from gateway.migrate.output import MigrateError, MigrationReport, YamlWriter
from gateway.migrate.source_files import Sources
from gateway.migrate.tls_section import verifies_peers

_PROMETHEUS: Final = "rabbitmq_prometheus"
_LOOPBACK: Final = "127.0.0.1"
_AMQP_PORT: Final = 5672
_SAME_MACHINE: Final = (
    "The gateway is taken to run on the broker's machine. If it does not: --upstream amqp://BROKER:5672."
)

# Remarks about settings that the gateway does not have. Those of TLS are in tls_section.
_ACCEPTORS: Final = dict.fromkeys(
    ("num_tcp_acceptors", "num_ssl_acceptors", "num_acceptors", "num_conns_sups"),
    "Nothing to do: in the gateway one event loop accepts for all.",
)
_DROPPED_KEYS: Final = {
    STOMP: {
        **_ACCEPTORS,
        "max_body_length": "The gateway limits headers and body together: max_frame_size.",
        "max_heap_size_unauthenticated": "Nothing to do: what a client can take up before its login is bounded.",
    },
    WEB_STOMP: {**_ACCEPTORS, "use_file_handle_cache": "Nothing to do: this is about Erlang's files."},
}
_DROPPED_SOCKET_OPTIONS: Final = {
    **dict.fromkeys(property_names(STOMP, "tcp_listen_options"), "Nothing to do: this is about Erlang's sockets."),
    **dict.fromkeys(("recbuf", "sndbuf"), "Nothing to do: the operating system sizes socket buffers."),
    **dict.fromkeys(
        ("linger", "linger.on", "linger.timeout"),
        "Nothing to do: the gateway closes after everything was sent, or cuts.",
    ),
    **dict.fromkeys(
        ("send_timeout", "send_timeout_close"), "slow_consumer_timeout (60s) closes a client that does not read."
    ),
    "nodelay": "Nothing to do: the gateway never delays small packets.",
    "keepalive": "Nothing to do: the gateway asks silent clients after tcp_keepalive (60s) anyway.",
    "tos": "The gateway marks no packets. If the network needs it, mark them by port in the firewall.",
}
_DROPPED_HTTP_OPTIONS: Final = dict.fromkeys(
    property_names(WEB_STOMP, "cowboy_opts"),
    "Nothing to do: this is about the HTTP request, where the gateway has limits of its own.",
)
_DROPPED_WEBSOCKET_OPTIONS: Final = {
    "max_frame_size": "The gateway limits STOMP frames, not WebSocket messages: see max_frame_size."
}
# Property lists: the names that are translated, the remarks about others, and the owner in remarks about unknown names.
_PROPERTY_LISTS: Final = (
    (STOMP, "tcp_listen_options", ("backlog", "nodelay"), _DROPPED_SOCKET_OPTIONS, "sockets have"),
    (WEB_STOMP, "tcp_config", ("backlog", "nodelay", "ip", "port"), _DROPPED_SOCKET_OPTIONS, "sockets have"),
    (WEB_STOMP, "cowboy_opts", (), _DROPPED_HTTP_OPTIONS, "HTTP server has"),
    (WEB_STOMP, "cowboy_ws_opts", ("compress", "idle_timeout"), _DROPPED_WEBSOCKET_OPTIONS, "WebSocket server has"),
)


@dataclass(frozen=True)
class Translation:
    """A configuration."""

    writer: YamlWriter
    has_passcode: bool
    """Whether it has a passcode from the files."""
    file_names: Sequence[str]
    """The files that it was made from."""

    def text(self, report: MigrationReport) -> str:
        """The whole file, with the remarks of the report at its end."""
        top, end = YamlWriter(), YamlWriter()
        files = ", ".join(self.file_names) or "nothing but defaults"
        top.comment(f"Made by stomp-gateway migrate ({__version__}) of {files}.")
        top.comment("After each line: where it came from. What could not be carried over is at the end.")
        top.comment()
        for heading, lines in report.sections(100):
            for line in ("", f"{heading}:", *lines):
                end.comment(line)
        return top.text() + self.writer.text() + end.text()


def translate(sources: Sources, upstream: Sequence[str], port_offset: int, passcode_variable: str) -> Translation:
    """Make a configuration that behaves as the plugins do with these files, and add remarks to the settings' report.

    Without URLs, the broker's own listener is the upstream. Without a variable, the passcode itself is written.
    Raises MigrateError if the settings have mistakes, and UsageError for a wrong URL or offset.
    """
    settings, report, writer = sources.settings, sources.settings.report, YamlWriter()
    with_web_stomp = _web_stomp_runs(sources, report)
    listeners = ListenersSection(writer, settings, port_offset)
    listeners.write(with_web_stomp=with_web_stomp)
    _write_upstream(writer, settings, upstream)
    defaults = DefaultsSection(writer, settings, passcode_variable)
    defaults.write(with_certificate_users=listeners.has_certificate_login)
    _write_admin(writer, sources, report)
    _report_dropped(settings, (STOMP, WEB_STOMP) if with_web_stomp else (STOMP,))
    report.note("virtual_hosts", '"*" passes every host on to RabbitMQ, as the plugin does.')
    if settings.foreign:
        count = "1 setting" if settings.foreign == 1 else f"{settings.foreign} settings"
        report.note("", f"Left where it belongs: {count} of other parts of RabbitMQ.")
    if report.mistakes:
        raise MigrateError(report.mistakes)
    return Translation(writer, defaults.has_passcode, sources.names)


def _web_stomp_runs(sources: Sources, report: MigrationReport) -> bool:
    plugins, is_configured = sources.plugins, bool(sources.settings.apps.get(WEB_STOMP))
    if plugins is None:
        why = "too, because it is configured." if is_configured else "not, because it is not configured."
        report.note("", f"Without --enabled-plugins, {STOMP} is taken to be enabled, and {WEB_STOMP} {why}")
        return is_configured
    if not plugins & {STOMP, WEB_STOMP}:
        text = f"Neither {STOMP} nor {WEB_STOMP} is among them: there is nothing to migrate."
        report.mistake("enabled plugins", text)
    if WEB_STOMP in plugins and STOMP not in plugins:
        report.note("", f"{WEB_STOMP} brings {STOMP} along, which listens too.")
    if is_configured and WEB_STOMP not in plugins:
        report.note("", f"{WEB_STOMP} is configured and not enabled: its settings are left out.")
    return WEB_STOMP in plugins


def _write_admin(writer: YamlWriter, sources: Sources, report: MigrationReport) -> None:
    """Write the address of the gateway's own metrics where RabbitMQ has metrics, too, so that nobody mixes them up."""
    if sources.plugins and _PROMETHEUS in sources.plugins:
        writer.add(0, "admin", str(DEFAULT_ADMIN_ADDRESS), f"{_PROMETHEUS} is enabled, which has 15692")
        text = (
            f"The gateway's metrics are at http://{DEFAULT_ADMIN_ADDRESS}/metrics, for this machine only. RabbitMQ's "
        )
        report.note("admin", f"{text}stay where they are: scrape both.")


# The group `upstream`: the broker whose files these are.


def _write_upstream(writer: YamlWriter, settings: BrokerSettings, urls: Sequence[str]) -> None:
    found, source = (_given_urls(urls), "--upstream") if urls else _own_url(settings)
    writer.add(0, "upstream")
    writer.add(1, "urls", [str(url) for url in found], source)
    _report_unreachable(settings)
    if not any(url.tls for url in found):
        return
    tls = settings.properties(RABBIT, "ssl_options")
    authority, strict = tls.get("cacertfile"), tls.get("fail_if_no_peer_cert")
    if authority is not None:
        writer.add(1, "tls")
        writer.add(2, "ca_file", settings.text(authority, ""), authority)
    text = "The certificate of the broker must name the host in the URL; if not: --upstream."
    settings.report.note("upstream", text)
    if verifies_peers(tls, settings) and settings.switch(strict, default=False):
        text = "The broker asks for a certificate: add cert_file and key_file of one to upstream.tls."
        settings.report.action(strict, text)


def _given_urls(urls: Sequence[str]) -> list[BrokerUrl]:
    try:
        return [BrokerUrl.read(url) for url in urls]
    except PydanticCustomError as error:
        raise UsageError(f"--upstream: {text_of(error)}") from None


def _own_url(settings: BrokerSettings) -> tuple[list[BrokerUrl], Setting | str]:
    """The URL of the broker's first AMQP listener, as a client on the same machine sees it."""
    tcp = settings.get(RABBIT, "tcp_listeners")
    for scheme, setting in (("amqp", tcp), ("amqps", settings.get(RABBIT, "ssl_listeners"))):
        for entry in entries(setting):
            endpoints = [] if _is_unix_socket(entry) else endpoints_of(entry, settings.report)
            if endpoints:
                settings.report.note("upstream", _SAME_MACHINE)
                host, port = endpoints[0].address.host, endpoints[0].address.port
                return [BrokerUrl(scheme, {EVERY_IPV4: _LOOPBACK, EVERY_IPV6: "::1"}.get(host, host), port)], entry
    if tcp is not None:
        settings.report.action(tcp, "The broker has no AMQP listener on TCP, and the gateway needs one. Open one.")
    else:
        settings.report.note("upstream", _SAME_MACHINE)
    return [BrokerUrl("amqp", _LOOPBACK, _AMQP_PORT)], "RabbitMQ's default"


def _is_unix_socket(entry: Setting) -> bool:
    match entry.value:
        case Tuple((str(host), *_)):
            return host.startswith(("unix:", "local:"))
    return False


def _report_unreachable(settings: BrokerSettings) -> None:
    """Report settings that keep AMQP clients like the gateway out, but not the plugin, which is part of the broker."""
    proxy, mechanisms = settings.get(RABBIT, "proxy_protocol"), settings.get(RABBIT, "auth_mechanisms")
    if settings.switch(proxy, default=False):
        text = "The broker takes no AMQP connection without a PROXY header, and the gateway sends none. "
        settings.report.action(proxy, text + "In upstream.urls name the proxy that does.")
    if mechanisms is not None and Atom("PLAIN") not in [entry.value for entry in entries(mechanisms)]:
        text = "The gateway logs in by PLAIN only, which is not among these. Add it; the plugin did without."
        settings.report.action(mechanisms, text)


# Settings that are not carried over.


def _report_dropped(settings: BrokerSettings, apps: Sequence[str]) -> None:
    report = settings.report
    for app in apps:
        for key, text in _DROPPED_KEYS[app].items():
            if setting := settings.get(app, key):
                report.dropped(setting, text)
    line_feed = settings.get(STOMP, "trailing_lf")
    if not settings.switch(line_feed, default=True):
        report.dropped(line_feed, "The gateway writes a line feed after every frame. Clients that mind it break.")
    for app, key, translated, texts, owner in _PROPERTY_LISTS:
        for name, setting in settings.properties(app, key).items() if app in apps else ():
            is_delayed = name == "nodelay" and setting.value == Atom("false")
            if name not in translated or is_delayed:
                report.dropped(setting, texts.get(name, f"The gateway's {owner} nothing like this."))
    http_auth = settings.get(WEB_STOMP, "use_http_auth")
    if WEB_STOMP in apps and settings.switch(http_auth, default=False):
        text = "Without HTTP credentials CONNECT's count. With the plugin such a browser became the default user."
        report.note(http_auth, text)

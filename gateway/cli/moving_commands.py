"""The command lines of `stomp-gateway migrate`, `parity` and `tap`, for the move from another STOMP server."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.commands import (
    NULL,
    Commands,
    TerminatedError,
    add_command,
    as_in_configuration,
    duration_or_null,
    passcode_from,
    run_coroutine,
    size_or_null,
    until_terminated,
)
from gateway.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import ssl

    from gateway.config.addresses import SocketAddress

_MIGRATE = """\
Convert RabbitMQ's configuration files to one for the gateway, so that it behaves like RabbitMQ's STOMP and Web-STOMP
plugins. Each line says where it comes from. The end of the file, and standard error, list the settings that cannot be
converted, with the reason and what to do. The command does not connect to RabbitMQ, and does not change its files.

examples:
  stomp-gateway migrate /etc/rabbitmq/rabbitmq.conf -o gateway.yaml
  stomp-gateway migrate rabbitmq.conf advanced.config --enabled-plugins enabled_plugins -o gateway.yaml
  stomp-gateway migrate rabbitmq.config                        the classic format (Erlang terms); print the result
  stomp-gateway migrate rabbitmq.conf --port-offset 1000 -o beside.yaml
                                                               for port 62613, next to the plugin on this machine
  stomp-gateway migrate rabbitmq.conf --upstream amqp://rabbit-a:5672 --upstream amqp://rabbit-b:5672

  Give the files in any order. As in the broker, advanced.config overrides rabbitmq.conf key by key. Of several files in
  the same format (conf.d/*.conf), later ones override earlier ones. Files that rabbitmq.conf includes are read, too. A
  container's environment is one more file: docker exec BROKER env > broker.env. docs/migration.md explains the whole
  migration.

exit codes:
  0    it wrote the file, and `stomp-gateway check --offline` passes
  1    it wrote the file, but something has to be done first: it lists what, such as a certificate or variable that is
       missing, or a cipher that the gateway cannot offer
  2    it wrote nothing: the command line or a file is wrong; every mistake is listed
"""
_PARITY = """\
Play the same conversations with RabbitMQ's STOMP plugin and with a gateway in front of the same broker, at the same
time, and compare every answer. There is one line per rule: equal, departure (the gateway differs on purpose), DIFFERENT
(with both conversations) or skipped. The command uses only queues of its own, and removes them afterwards.

examples:
  stomp-gateway parity --plugin mq.example.org:61613 --gateway localhost:61614
  STOMP_PASSCODE=... stomp-gateway parity ... --login tester --host orders
  stomp-gateway parity ... --only 'acknowledge/*' --verbose
  stomp-gateway parity --list

  The user needs permission to configure, write and read everything in the virtual host. docs/stomp-behaviour.md
  explains the departures.

setups (default: plain):
{setups}

exit codes:
  0    no rule is DIFFERENT
  1    a rule is DIFFERENT, a server cannot be reached, or no conversation was played
  2    the command line is wrong
  130  interrupted (Ctrl-C)
  143  ended by SIGTERM; like Ctrl-C, only after the command has cleaned up in the broker

environment:
  STOMP_PASSCODE    the passcode of --login, without --passcode-file (default: guest)
"""
_TAP = """\
Run a proxy between STOMP clients and any STOMP server. It passes all bytes on unchanged, and writes a traffic journal:
it shows your traffic, its latencies and the features in use before you move to the gateway. Clients connect to
--listen, and for each of them the proxy connects to --upstream. It runs until SIGTERM or Ctrl-C, and then closes all
connections.

examples:
  stomp-gateway tap --listen 0.0.0.0:61614 --upstream mq.example.org:61613 --journal /var/lib/tap
  stomp-gateway tap ... --level message --users hashed --peers prefix
  stomp-gateway tap ... --retain null --retain-bytes 20GiB     to run until every client has connected once
  stomp-gateway tap ... --upstream activemq:61613 --impl other
  stomp-gateway tap --listen 0.0.0.0:61615 --cert-file tap.pem --key-file tap.key \\
                    --upstream mq.example.org:61614 --upstream-tls --ca-file ca.pem --journal DIR
  stomp-gateway journal tail --follow DIR
  stomp-gateway journal tail -n 100000 DIR --event use
                                          the features in use; a name with / is a rule of `stomp-gateway parity` in
                                          which the gateway differs from RabbitMQ's plugin on purpose

  Passcodes and bodies are never written. The tap passes on bytes that it cannot read, such as STOMP over WebSocket; the
  log has `stream not readable`, and the line `tap stopped` says how often. The tap has its own TLS connection to the
  server, so the server does not see certificates of clients.

exit codes:
  0    stopped by a signal
  1    failed while running
  2    the command line is wrong
  3    it cannot listen on --listen
"""


def add_migrate(commands: Commands) -> None:
    """Add `migrate` to the commands of `stomp-gateway`."""
    migrate = add_command(
        commands, "migrate", _migrate, "convert RabbitMQ's configuration of its STOMP plugin", _MIGRATE
    )
    migrate.add_argument(
        "files", type=Path, nargs="+", metavar="FILE",
        help="rabbitmq.conf, advanced.config, rabbitmq.config, or the broker's environment",
    )  # fmt: skip
    migrate.add_argument(
        "--enabled-plugins", type=Path, metavar="FILE",
        help="the broker's enabled_plugins, which says which of the two plugins run",
    )  # fmt: skip
    migrate.add_argument(
        "-o", "--output", type=_output, metavar="FILE", help="the file to write (default: standard output)"
    )
    migrate.add_argument("--force", action="store_true", help="replace an existing output file")
    migrate.add_argument("--lenient", action="store_true", help="leave out unknown keys of the plugins")
    choice = migrate.add_argument_group("what to write")
    choice.add_argument(
        "--upstream", action="append", default=[], metavar="URL",
        help="the broker's URL for the gateway; repeatable (default: the listeners in the files, on 127.0.0.1)",
    )  # fmt: skip
    choice.add_argument(
        "--port-offset", type=int, default=0, metavar="N", help="add N to every port, to run next to the plugin"
    )
    choice.add_argument(
        "--passcode-variable", default="", metavar="NAME",
        help="write ${NAME} instead of the default user's passcode (default: write the passcode, with file mode 0600)",
    )  # fmt: skip


def _output(text: str) -> Path | None:
    return None if text == "-" else Path(text)


def _migrate(options: argparse.Namespace) -> ExitCode:
    from gateway.migrate.migration import migrate  # noqa: PLC0415 - only this command needs it

    return migrate(options)


def add_parity(commands: Commands) -> None:
    """Add `parity` to the commands of `stomp-gateway`."""
    line = "compare the gateway with RabbitMQ's STOMP plugin"
    parity = add_command(commands, "parity", _parity, line, _PARITY, complete=_with_setups)
    servers = parity.add_argument_group("servers")
    servers.add_argument("--plugin", metavar="HOST:PORT", help="a port of RabbitMQ's STOMP plugin without TLS")
    servers.add_argument("--gateway", metavar="HOST:PORT", help="a port of the gateway without TLS")
    servers.add_argument(
        "--amqp", metavar="URL",
        help="the broker of both, to prepare and check queues and to clean up "
        "(default: amqp://HOST-OF-PLUGIN:5672); a URL without user and virtual host has those of the clients",
    )  # fmt: skip
    user = parity.add_argument_group("user")
    user.add_argument("--login", default="guest", metavar="NAME", help="login of the clients (default: guest)")
    user.add_argument("--passcode", help=argparse.SUPPRESS)  # refused without repeating it
    user.add_argument("--passcode-file", metavar="FILE", help="file with its passcode (default: $STOMP_PASSCODE)")
    user.add_argument("--host", default="/", metavar="VHOST", help="RabbitMQ's name of the virtual host (default: /)")
    choice = parity.add_argument_group("conversations")
    choice.add_argument("--setup", action="append", metavar="NAME", help="the setup of both servers; repeatable")
    choice.add_argument("--only", metavar="PATTERN", help="only those whose name matches, such as connect/* or nack")
    choice.add_argument("--jobs", type=int, default=8, metavar="N", help="play N at the same time (default: 8)")
    choice.add_argument("--list", action="store_true", help="list the conversations and connect to nothing")
    choice.add_argument("--verbose", action="store_true", help="show every rule in full, with its conversation")


def _with_setups(epilog: str) -> str:
    from gateway.parity.transcript import SETUPS  # noqa: PLC0415 - it loads slowly

    setups = (
        textwrap.fill(text, 100, initial_indent=f"  {name:<18}", subsequent_indent=" " * 20)
        for name, text in SETUPS.items()
    )
    return epilog.format(setups="\n".join(setups))


def _parity(options: argparse.Namespace) -> ExitCode:
    from gateway.parity.command import compare, list_transcripts  # noqa: PLC0415

    if options.passcode is not None:
        raise UsageError("--passcode shows a passcode to everybody on this machine: use $STOMP_PASSCODE or a file")
    if options.list:
        list_transcripts(options.only)
        return ExitCode.OK
    passcode = passcode_from(options.passcode_file, "STOMP_PASSCODE", "guest")
    try:
        return ExitCode.OK if run_coroutine(until_terminated(compare(options, passcode))) else ExitCode.FAILURE
    except TerminatedError:
        return ExitCode.TERMINATED


def add_tap(commands: Commands) -> None:
    """Add `tap` to the commands of `stomp-gateway`."""
    tap = add_command(
        commands, "tap", _tap, "write the traffic journal of any STOMP server, as a proxy in front of it", _TAP
    )
    tap.add_argument(
        "--listen",
        required=True,
        type=_address,
        metavar="HOST:PORT",
        help="where clients connect; :PORT: all addresses",
    )
    tap.add_argument("--upstream", required=True, type=_address, metavar="HOST:PORT", help="the STOMP server")
    tap.add_argument("--journal", required=True, type=Path, metavar="DIR", help="the directory of the journal")
    what = tap.add_argument_group("what is written")
    what.add_argument(
        "--impl", choices=("plugin", "other"), default="plugin",
        help="what the server is: RabbitMQ's STOMP plugin, or something else (default: plugin)",
    )  # fmt: skip
    what.add_argument(
        "--level", choices=("session", "message"), default="session",
        help="session: sessions, subscriptions, errors, and counts every ten seconds; message: also every message, "
        "receipt and acknowledgement (default: session)",
    )  # fmt: skip
    what.add_argument(
        "--node", type=_node_name, metavar="NAME",
        help="the tap's name in the journal (default: the machine's)",
    )  # fmt: skip
    what.add_argument(
        "--users", choices=("plain", "hashed"), default="plain",
        help="logins as they are, or as a hash with a key that is kept in DIR (default: plain)",
    )  # fmt: skip
    what.add_argument(
        "--peers", choices=("full", "prefix", "none"), default="full",
        help="clients' addresses as they are, cut to the network, or not at all (default: full)",
    )  # fmt: skip
    kept = tap.add_argument_group("what is kept")
    kept.add_argument(
        "--retain", type=duration_or_null, default="7d", metavar="DURATION",
        help="how long, such as 12h or 30d; null: forever (default: %(default)s)",
    )  # fmt: skip
    kept.add_argument(
        "--retain-bytes", type=size_or_null, default=NULL, metavar="SIZE",
        help="how much, such as 20GiB, before the oldest is deleted; null: no limit (default: %(default)s)",
    )  # fmt: skip
    tls = tap.add_argument_group("TLS")
    tls.add_argument(
        "--cert-file", type=Path, metavar="FILE", help="use TLS with clients: the certificate and its chain (PEM)"
    )
    tls.add_argument("--key-file", type=Path, metavar="FILE", help="its private key (PEM, not encrypted)")
    tls.add_argument("--upstream-tls", action="store_true", help="use TLS to the server")
    tls.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="trust these certificates instead of the system's (PEM)"
    )
    tls.add_argument("--insecure", action="store_true", help="do not check the server's certificate; for trials only")


def _tap(options: argparse.Namespace) -> ExitCode:
    from gateway.config.journal_settings import JournalSettings  # noqa: PLC0415 - only this command needs them
    from gateway.config.model import Logging  # noqa: PLC0415
    from gateway.server.process.logs import configure_logs  # noqa: PLC0415
    from gateway.tap.tap_server import TapSettings, run_tap  # noqa: PLC0415

    journal = JournalSettings.model_construct(
        level=options.level, node=options.node, users=options.users, peers=options.peers,
        retain=options.retain, retain_bytes=options.retain_bytes,
    )  # fmt: skip
    settings = TapSettings(
        listen=options.listen,
        upstream=options.upstream,
        directory=options.journal,
        impl=options.impl,
        journal=journal,
        listen_tls=_listen_tls(options),
        upstream_tls=_upstream_tls(options),
    )
    configure_logs(Logging())
    run_coroutine(run_tap(settings))
    return ExitCode.OK


@as_in_configuration
def _node_name(text: str) -> str:
    from gateway.config.journal_settings import checked_node_name  # noqa: PLC0415

    return checked_node_name(text)


@as_in_configuration
def _address(text: str) -> SocketAddress:
    from gateway.config.addresses import SocketAddress  # noqa: PLC0415

    return SocketAddress.read(f"0.0.0.0{text}" if text.startswith(":") else text)  # noqa: S104 - as asked


def _listen_tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    from gateway.config.tls_settings import ServerTls  # noqa: PLC0415
    from gateway.server.tls_contexts import listener_tls_context  # noqa: PLC0415

    if options.cert_file is None and options.key_file is None:
        return None
    if options.cert_file is None or options.key_file is None:
        raise UsageError("--cert-file and --key-file belong together.")
    try:
        return listener_tls_context(ServerTls.model_construct(cert_file=options.cert_file, key_file=options.key_file))
    except OSError as error:
        raise UsageError(f"--cert-file {options.cert_file}, --key-file {options.key_file}: {_reason(error)}.") from None


def _upstream_tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    from gateway.config.tls_settings import broker_tls_context  # noqa: PLC0415
    from gateway.config.virtual_host import UpstreamTls  # noqa: PLC0415

    if not options.upstream_tls:
        if options.ca_file is not None or options.insecure:
            raise UsageError("--ca-file and --insecure need --upstream-tls.")
        return None
    try:
        return broker_tls_context(UpstreamTls.model_construct(ca_file=options.ca_file, verify=not options.insecure))
    except OSError as error:
        raise UsageError(f"--ca-file {options.ca_file}: {_reason(error)}.") from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)

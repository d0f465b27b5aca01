"""The command line of `stomp-gateway tap`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.commands import add_command, run_coroutine
from gateway.cli.option_types import NULL, duration_or_null, size_or_null
from gateway.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import ssl

    from gateway.cli.commands import Commands
    from gateway.config.addresses import SocketAddress

_DESCRIPTION = """\
Stand between STOMP clients and any STOMP server, pass all bytes on untouched, and write the traffic journal of what
they say: so a site sees its traffic, its latencies and the features that it uses before it moves to the gateway.
Clients connect to --listen, and the tap connects to --upstream for each of them. Runs until SIGTERM or Ctrl-C, which
close all connections.
"""

_EPILOG = """\
examples:
  stomp-gateway tap --listen 0.0.0.0:61614 --upstream mq.example.org:61613 --journal /var/lib/tap
  stomp-gateway tap ... --level message --users hashed --peers prefix
  stomp-gateway tap ... --retain null --retain-bytes 20GiB     until your rarest client has connected
  stomp-gateway tap ... --upstream activemq:61613 --impl other
  stomp-gateway tap --listen 0.0.0.0:61615 --cert-file tap.pem --key-file tap.key \\
                    --upstream mq.example.org:61614 --upstream-tls --ca-file ca.pem --journal DIR
  stomp-gateway journal tail --follow DIR
  stomp-gateway journal tail -n 100000 DIR --event use
                                          the features in use; a name with / is a rule of `stomp-gateway parity` in
                                          which the gateway differs from RabbitMQ's plugin on purpose

  Passcodes and bodies are never written. What the tap cannot read, such as STOMP over WebSocket, it passes on; the log
  has `stream not readable`, and the line `tap stopped` says how often. With TLS the tap opens it again to the server:
  the server does not see certificates of clients.

exit codes:
  0    stopped by a signal
  1    failed while running
  2    the command line is wrong
  3    --listen cannot be taken
"""


def add_tap(commands: Commands) -> None:
    """Add `tap` to the commands of `stomp-gateway`."""
    tap = add_command(
        commands, "tap", _run, help="write the traffic journal of any STOMP server, as a proxy in front of it",
        description=_DESCRIPTION, epilog=_EPILOG,
    )  # fmt: skip
    tap.add_argument("--listen", required=True, metavar="HOST:PORT", help="where clients connect; :PORT: all addresses")
    tap.add_argument("--upstream", required=True, metavar="HOST:PORT", help="the STOMP server")
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
    what.add_argument("--node", metavar="NAME", help="the tap's name in the journal (default: the machine's)")
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
        help="how long, such as 12h or 30d; null: for ever (default: %(default)s)",
    )  # fmt: skip
    kept.add_argument(
        "--retain-bytes", type=size_or_null, default=NULL, metavar="SIZE",
        help="how much, such as 20GiB, beyond which the oldest is deleted; null: no limit (default: %(default)s)",
    )  # fmt: skip
    tls = tap.add_argument_group("TLS")
    tls.add_argument("--cert-file", metavar="FILE", help="take TLS from clients, with this certificate and chain (PEM)")
    tls.add_argument("--key-file", metavar="FILE", help="its private key (PEM, not encrypted)")
    tls.add_argument("--upstream-tls", action="store_true", help="use TLS to the server")
    tls.add_argument("--ca-file", metavar="FILE", help="trust these certificates instead of the system's (PEM)")
    tls.add_argument("--insecure", action="store_true", help="do not check the server's certificate; for trials only")


def _run(options: argparse.Namespace) -> ExitCode:
    from gateway.config.model import Logging  # noqa: PLC0415 - only this command needs them
    from gateway.server.process.logs import configure_logs  # noqa: PLC0415
    from gateway.tap.tap_server import TapSettings, run_tap  # noqa: PLC0415

    settings = TapSettings(
        listen=_address("--listen", options.listen),
        upstream=_address("--upstream", options.upstream),
        directory=options.journal,
        impl=options.impl,
        node=_node(options.node),
        by_message=options.level == "message",
        hashes_users=options.users == "hashed",
        peers=options.peers,
        retain=options.retain,
        retain_bytes=options.retain_bytes,
        listen_tls=_listen_tls(options),
        upstream_tls=_upstream_tls(options),
    )
    configure_logs(Logging())
    run_coroutine(run_tap(settings))
    return ExitCode.OK


def _address(option: str, text: str) -> SocketAddress:
    from gateway.config.addresses import SocketAddress  # noqa: PLC0415

    try:
        return SocketAddress.read(f"0.0.0.0{text}" if text.startswith(":") else text)  # noqa: S104 - as asked
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from None


def _node(name: str | None) -> str | None:
    from gateway.config.journal_settings import checked_node_name  # noqa: PLC0415

    try:
        return None if name is None else checked_node_name(name)
    except ValueError as error:
        raise UsageError(f"--node {name}: {error}") from None


def _listen_tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    from gateway.config.tls_settings import ServerTls  # noqa: PLC0415
    from gateway.server.tls_contexts import listener_tls_context  # noqa: PLC0415

    if options.cert_file is None and options.key_file is None:
        return None
    if options.cert_file is None or options.key_file is None:
        raise UsageError("--cert-file and --key-file belong together.")
    try:
        return listener_tls_context(
            ServerTls.model_construct(cert_file=Path(options.cert_file), key_file=Path(options.key_file))
        )
    except OSError as error:
        raise UsageError(f"--cert-file {options.cert_file}, --key-file {options.key_file}: {_reason(error)}.") from None


def _upstream_tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    from gateway.config.tls_settings import broker_tls_context  # noqa: PLC0415
    from gateway.config.virtual_host import UpstreamTls  # noqa: PLC0415

    if not options.upstream_tls:
        if options.ca_file is not None or options.insecure:
            raise UsageError("--ca-file and --insecure need --upstream-tls.")
        return None
    ca_file = None if options.ca_file is None else Path(options.ca_file)
    try:
        return broker_tls_context(UpstreamTls.model_construct(ca_file=ca_file, verify=not options.insecure))
    except OSError as error:
        raise UsageError(f"--ca-file {options.ca_file}: {_reason(error)}.") from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)

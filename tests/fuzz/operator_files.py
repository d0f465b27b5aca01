"""The targets for files: the gateway's configuration, and those of RabbitMQ that ``migrate`` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.config.loader import parse
from gateway.errors import ConfigError, UsageError
from gateway.migrate.broker_settings import BrokerSettings
from gateway.migrate.conf_schema import STOMP, WEB_STOMP
from gateway.migrate.erlang_terms import TermSyntaxError, read_terms
from gateway.migrate.migration import check_configuration
from gateway.migrate.output import MigrateError, MigrationReport
from gateway.migrate.rabbitmq_conf import ConfFile, settings_of_conf
from gateway.migrate.source_files import Sources, settings_of_terms
from gateway.migrate.translation import translate
from tests.fuzz.violation import demand

SECRET: Final = "the-value-of-a-variable"
"""What ``${SECRET}`` in an input stands for: no text of the gateway may have it."""

_NOWHERE: Final = Path("/nonexistent")
_ENVIRONMENT: Final = {"SECRET": SECRET}


def check_configuration_file(data: bytes) -> None:
    """Read an input as ``gateway.yaml``: it is a configuration, or every mistake has a sentence.

    Raises:
        ViolationError: a promise is broken.
        Exception: something else than ConfigError was raised.
    """
    text = data.decode("utf-8", "replace")
    try:
        config = parse(text, directory=_NOWHERE, environment=_ENVIRONMENT)
    except ConfigError as error:
        demand(bool(error.mistakes) and all(mistake.sentence for mistake in error.mistakes), "a mistake is explained")
        demand(SECRET not in str(error), "no mistake quotes a value")
        demand(
            all(1 <= (mistake.line or 1) <= len(text.splitlines()) + 1 for mistake in error.mistakes), "a line is one"
        )
        return
    demand(bool(config.listeners), "a configuration has a listener")
    users = [settings.default_user for settings in (config.defaults, *config.virtual_hosts.values())]
    # Where it is no passcode, it is no secret.
    if any(user is not None and user.passcode.get_secret_value() == SECRET for user in users):
        shown = repr(config)
        demand(f"passcode='{SECRET}'" not in shown and f'"{SECRET}"' not in shown, "a passcode is not shown")


def check_conf(data: bytes) -> None:
    """Read an input as ``rabbitmq.conf``, and translate it.

    Raises:
        ViolationError: a promise is broken.
        Exception: something else than a mistake in the file was raised.
    """
    report = MigrationReport(lenient=bool(data[:1] == b"#"))
    _translate(settings_of_conf([ConfFile(_NOWHERE / "rabbitmq.conf", "rabbitmq.conf", _text(data))], report, {}))


def check_terms(data: bytes) -> None:
    """Read an input as ``advanced.config``, and translate it.

    Raises:
        ViolationError: a promise is broken.
        Exception: something else than a mistake in the file was raised.
    """
    text = _text(data)
    try:
        terms = read_terms(text)
    except TermSyntaxError as error:
        demand(1 <= error.line <= text.count("\n") + 1 and error.column >= 1, "a place is one")
        return
    if len(terms) == 1 and isinstance(terms[0], list):
        _translate(settings_of_terms(terms[0], "advanced.config", MigrationReport()))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _translate(settings: BrokerSettings) -> None:
    sources = Sources(settings, frozenset((STOMP, WEB_STOMP)), ["rabbitmq.conf"])
    try:
        text = translate(sources, upstream=(), port_offset=0, passcode_variable="").text(settings.report)
        check_configuration(text, _NOWHERE, {}, settings.report)
    except (MigrateError, UsageError):
        # A mistake in the file. Of a fault of the command the class is another one.
        return

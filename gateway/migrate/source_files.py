"""Reads RabbitMQ's files, finds out the form of each, and merges their settings."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from gateway.errors import UsageError
from gateway.migrate.broker_environment import (
    Variable,
    all_variables,
    broker_variables,
    is_environment,
    plugins_of_environment,
    report_environment,
    settings_of_environment,
)
from gateway.migrate.broker_settings import BrokerSettings, Origin, Setting, shown
from gateway.migrate.conf_schema import KEYS, LISTS, PROPERTY_LISTS, RABBIT, STOMP, WEB_STOMP, right_application
from gateway.migrate.erlang_terms import Atom, Term, TermSyntaxError, Tuple, read_terms
from gateway.migrate.output import MigrationReport
from gateway.migrate.rabbitmq_conf import FORGOTTEN, MAIN_FILE, ConfFile, read_text, settings_of_conf
from gateway.texts import printable

_ADVANCED: Final = "advanced.config"
_NO_VARIABLES: Final = "It has no variable of the broker (RABBITMQ_...): it counts for $(NAME) in rabbitmq.conf alone."
_NOT_A_CONFIGURATION: Final = "A file like this is one list of applications: [{rabbitmq_stomp, [...]}]."
_CONF_LINE: Final = re.compile(r"^[ \t]*[A-Za-z0-9_-]++(?:\\?\.[A-Za-z0-9_-]++)++[ \t]*=", re.MULTILINE)
"""A line that only rabbitmq.conf can have: words with dots between them, and a value."""


@dataclass
class Sources:
    """What all files together say."""

    settings: BrokerSettings
    plugins: frozenset[str] | None = None
    """The plugins that are enabled; None if no file says so."""
    names: list[str] = field(default_factory=list)
    """Of the files."""


def read_sources(
    files: Sequence[Path], enabled_plugins: Path | None, report: MigrationReport, environment: Mapping[str, str]
) -> Sources:
    """Read files in any order. Those in the Erlang form override rabbitmq.conf, and that the broker's environment.

    Of each form, a later file overrides an earlier one. Raises UsageError if a file cannot be read, or if
    `enabled_plugins` is not a list of plugins.
    """
    found = _sorted(files, report)
    settings = settings_of_environment(found.variables, report)
    settings.override_with(settings_of_conf(found.confs, report, {**environment, **found.environment}))
    for name, terms in found.configs:
        settings.override_with(settings_of_terms(terms, name, report))
    names, plugins, given = list(found.names), found.plugins, list(files)
    if enabled_plugins is not None:
        names.append(_name(enabled_plugins, files))
        given.append(enabled_plugins)
        list_of_plugins = _terms(read_text(enabled_plugins), names[-1], report)
        plugins = None if list_of_plugins is None else _plugins(list_of_plugins)
        if list_of_plugins is not None and plugins is None:
            raise UsageError(f"{printable(str(enabled_plugins))} is no list of plugins like [rabbitmq_stomp].")
    if any(_has_forgotten_advanced(file, files) for file in files):
        report.action(_ADVANCED, FORGOTTEN)
    report_environment(found.variables, [file.name for file in given], settings)
    in_variable = plugins_of_environment(found.variables)
    return Sources(settings, plugins if in_variable is None else in_variable, names)


@dataclass
class _SortedFiles:
    """The files by their form, each with its name."""

    names: list[str] = field(default_factory=list)
    confs: list[ConfFile] = field(default_factory=list)
    configs: list[tuple[str, list[Term]]] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    plugins: frozenset[str] | None = None


def _sorted(files: Sequence[Path], report: MigrationReport) -> _SortedFiles:
    found = _SortedFiles()
    for file in files:
        text, name = read_text(file), _name(file, files)
        found.names.append(name)
        form = form_of(text, file)
        if form is not form_by_name(file):
            report.note(name, f"It is read as {form.value}, because of what is in it.")
        if form is Form.ERLANG:
            terms = _terms(text, name, report) or []
            plugins = _plugins(terms) if terms else None
            if plugins is None:
                found.configs.append((name, terms))
            else:
                found.plugins = plugins
        elif form is Form.ENVIRONMENT:
            variables = list(broker_variables(text, name))
            if not variables:
                report.note(name, _NO_VARIABLES)
            found.variables += variables
            found.environment |= all_variables(text)
        else:
            found.confs.append(ConfFile(file, name, text))
    return found


def _has_forgotten_advanced(file: Path, files: Sequence[Path]) -> bool:
    beside = file.parent / _ADVANCED
    is_read = any(other.resolve() == beside.resolve() for other in files)
    return file.name == MAIN_FILE and beside.is_file() and not is_read


def _name(file: Path, files: Sequence[Path]) -> str:
    """A file's own name, with its directory if another file has the same name."""
    is_unique = sum(other.name == file.name for other in files) <= 1
    return printable(file.name if is_unique else str(file))


# The Erlang form: advanced.config, the classic rabbitmq.config, and enabled_plugins.


def _terms(text: str, file: str, report: MigrationReport) -> list[Term] | None:
    """The one list in a file of RabbitMQ. Anything else is reported as a mistake and gives None."""
    try:
        terms = read_terms(text)
    except TermSyntaxError as error:
        report.mistake(f"{file}:{error.line}", f"column {error.column}: {error.sentence}")
        return None
    if not terms:
        return []
    if len(terms) > 1 or not isinstance(terms[0], list):
        report.mistake(file, _NOT_A_CONFIGURATION)
        return None
    return terms[0]


def _plugins(terms: list[Term]) -> frozenset[str] | None:
    """The names in a list of enabled plugins; None if it is not such a list."""
    names = [term.name for term in terms if isinstance(term, Atom)]
    return frozenset(names) if len(names) == len(terms) else None


def settings_of_terms(terms: list[Term], file: str, report: MigrationReport) -> BrokerSettings:
    """The settings in the one list of a file."""
    settings = BrokerSettings(report)
    for term in terms:
        match term:
            case Tuple((Atom(app), (list() | "") as items)):
                _read_application(Setting(items or [], Origin(file, term.line, app)), settings)
            case str():
                report.mistake(file, "It names another file, which is not followed. Give that one on the command line.")
            case _:
                report.mistake(file, _NOT_A_CONFIGURATION)
    return settings


def _read_application(application: Setting, settings: BrokerSettings) -> None:
    app, items = application.origin.key, application.value
    if app not in KEYS:
        if "stomp" in app.lower():
            settings.report.unknown_key(application, f"{{{WEB_STOMP if 'web' in app.lower() else STOMP}, [...]}}")
        settings.foreign += len(items) if isinstance(items, list) else 0
        return
    found, others = _properties(application, last_counts=True)
    for key, setting in found.items():
        place = right_application(app, key)
        if key in KEYS[app]:
            settings.put(app, key, _structured(app, key, setting, settings.report))
        elif app == RABBIT and not place:
            settings.foreign += 1
        else:
            settings.report.unknown_key(setting, place and f"{{{place}, [...]}}")
    if others:
        settings.report.mistake(application, "In this list is something that is not of the form {key, value}.")


def _structured(app: str, key: str, setting: Setting, report: MigrationReport) -> Setting:
    """Turn a list into its entries, and a property list into its properties; `""` is Erlang's empty list."""
    if (app, key) not in PROPERTY_LISTS | LISTS:
        return setting
    if not isinstance(setting.value, list):
        if setting.value not in ("", Atom("none")):
            report.mistake(setting, "A list belongs here.")
        setting = Setting([], setting.origin)
    if (app, key) in LISTS:
        return _with_entries(setting)
    found, others = _properties(setting)
    for term in others:
        match term:
            case Tuple((Atom(name), *_)):
                what = shown(name)
            case _:
                what = "something"
        report.dropped(setting, f"In this list is {what}, which is not of the form {{key, value}}; it is left out.")
    return Setting({name: _with_entries(value) for name, value in found.items()}, setting.origin)


def _properties(setting: Setting, *, last_counts: bool = False) -> tuple[dict[str, Setting], list[Term]]:
    """The properties of a list by name, and its entries that are not properties. Of equal names the first one counts.

    Of equal keys of an application, the last one counts.
    """
    found: dict[str, Setting] = {}
    others: list[Term] = []
    for term in setting.value if isinstance(setting.value, list) else []:
        value: Term
        match term:
            case Atom(name):
                value = Atom("true")
            case Tuple((Atom(name), value)):
                pass
            case _:
                others.append(term)
                continue
        if last_counts or name not in found:
            found[name] = Setting(value, _origin(setting, term, f"{setting.origin.key}.{name}"))
    return found, others


def _with_entries(setting: Setting) -> Setting:
    """Turn a list into its entries; leave any other value as it is."""
    if not isinstance(setting.value, list):
        return setting
    found = [Setting(entry, _origin(setting, entry, setting.origin.key)) for entry in setting.value]
    return Setting(tuple(found), setting.origin)


def _origin(setting: Setting, entry: Term, key: str) -> Origin:
    """The origin of an entry of a list: its own line if the term knows it."""
    line = entry.line if isinstance(entry, (Atom, Tuple)) else 0
    return Origin(setting.origin.file, line or setting.origin.line, key)


class Form(Enum):
    """The form of a file; the value is what a user calls it."""

    CONF = "rabbitmq.conf"
    ERLANG = "Erlang terms"
    ENVIRONMENT = "the broker's environment"


_BY_ENDING: Final = {
    ".conf": Form.CONF,
    ".config": Form.ERLANG,
    ".env": Form.ENVIRONMENT,
    ".sh": Form.ENVIRONMENT,
    ".yaml": Form.ENVIRONMENT,
    ".yml": Form.ENVIRONMENT,
}
_BY_NAME: Final = {
    "enabled_plugins": Form.ERLANG,
    "rabbitmq-env.conf": Form.ENVIRONMENT,
    ".env": Form.ENVIRONMENT,
    "env": Form.ENVIRONMENT,
}


def form_by_name(file: Path) -> Form | None:
    """What a file's name says of its form; None if it says nothing."""
    return _BY_NAME.get(file.name) or _BY_ENDING.get(file.suffix)


def form_of(text: str, file: Path) -> Form:
    """The form of a file by its text, or by its name where the text fits several."""
    if _is_erlang(text, file):
        return Form.ERLANG
    if _CONF_LINE.search(text):
        return Form.CONF
    is_variables = is_environment(text) or any(broker_variables(text, file.name))
    return Form.ENVIRONMENT if is_variables or form_by_name(file) is Form.ENVIRONMENT else Form.CONF


def _is_erlang(text: str, file: Path) -> bool:
    """Tell the form by the first character outside comments, or by the name if the file is empty."""
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("%"):
            return True
        if bare and not bare.startswith("#"):
            return bare.startswith(("[", "{", "<", '"'))
    return file.suffix == ".config"

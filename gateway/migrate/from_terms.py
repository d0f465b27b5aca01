"""From advanced.config or the classic rabbitmq.config to settings, and what enabled_plugins says."""

from __future__ import annotations

from gateway.migrate.erlang import read_terms
from gateway.migrate.keys import KEYS, LISTS, PROPERTY_LISTS, RABBIT
from gateway.migrate.remarks import Remarks
from gateway.migrate.scan import TermSyntaxError
from gateway.migrate.settings import Given, Origin, Settings, property_list, shown
from gateway.migrate.terms import Atom, Term, Tuple

_ADVICE = "A file like this is one list of applications: [{rabbitmq_stomp, [...]}]."


def terms_of(text: str, file: str, remarks: Remarks) -> list[Term] | None:
    """The one list that a file of RabbitMQ is; None for an empty file, or one that is something else."""
    try:
        terms = read_terms(text)
    except TermSyntaxError as error:
        remarks.mistake(f"{file}:{error.line}", f"column {error.column}: {error.sentence}")
        return None
    if not terms:
        return []
    if len(terms) > 1 or not isinstance(terms[0], list):
        remarks.mistake(file, _ADVICE)
        return None
    return terms[0]


def plugins_of(terms: list[Term]) -> frozenset[str] | None:
    """The names in a file of enabled plugins; None if it is another one."""
    names = [term.name for term in terms if isinstance(term, Atom)]
    return frozenset(names) if len(names) == len(terms) else None


def from_terms(terms: list[Term], file: str, remarks: Remarks, *, lenient: bool) -> Settings:
    """Read the list of an Erlang configuration.

    Args:
        terms: its entries.
        file: what it is called in remarks.
        remarks: take what is wrong.
        lenient: unknown keys are a remark, and no mistake.
    """
    settings = Settings()
    for term in terms:
        app = _application(term)
        if app is None:
            if isinstance(term, str):
                remarks.mistake(
                    file, "It names another file, which is not followed. Give that one on the command line."
                )
            else:
                remarks.mistake(file, _ADVICE)
            continue
        name, entries, line = app
        if name not in KEYS:
            settings.foreign += len(entries)
            continue
        given, odd = property_list(Given(entries, Origin(file, line, name)), last=True)
        for key, value in given.items():
            if key in KEYS[name]:
                settings.apps.setdefault(name, {})[key] = _structured(name, key, value, remarks)
            elif name == RABBIT:
                settings.foreign += 1
            else:
                remarks.unknown(value.origin, lenient=lenient)
        if odd:
            remarks.mistake(Origin(file, line, name), "In this list is something that is not of the form {key, value}.")
    return settings


def _application(term: Term) -> tuple[str, list[Term], int] | None:
    if isinstance(term, Tuple) and len(term.items) == 2:  # noqa: PLR2004
        name, entries = term.items
        if isinstance(name, Atom) and (isinstance(entries, list) or entries == ""):
            return name.name, entries if isinstance(entries, list) else [], term.line
    return None


def _structured(app: str, key: str, given: Given, remarks: Remarks) -> Given:
    """Property lists by name, and lists by entry; `""` is Erlang's empty list."""
    if (app, key) not in PROPERTY_LISTS and (app, key) not in LISTS:
        return given
    value = given.value
    if not isinstance(value, list):
        if value not in ("", Atom("none")):
            remarks.mistake(given, "A list belongs here.")
        value = []
    if (app, key) in LISTS:
        return Given(tuple(Given(entry, _entry_origin(given.origin, entry)) for entry in value), given.origin)
    parts, odd = property_list(given)
    for term in odd:
        remarks.lost(given, f"In this list is {_named(term)}, which is not of the form {{key, value}}; it is left out.")
    return Given({name: _entries(part) for name, part in parts.items()}, given.origin)


def _named(term: Term) -> str:
    first = term.items[0] if isinstance(term, Tuple) and term.items else None
    return shown(first.name) if isinstance(first, Atom) else "something"


def _entries(part: Given) -> Given:
    """A list of TLS versions and the like, by entry."""
    if not isinstance(part.value, list):
        return part
    return Given(tuple(Given(entry, _entry_origin(part.origin, entry)) for entry in part.value), part.origin)


def _entry_origin(origin: Origin, entry: Term) -> Origin:
    line = entry.line if isinstance(entry, (Atom, Tuple)) and entry.line else origin.line
    return Origin(origin.file, line, origin.key)

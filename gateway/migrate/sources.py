"""The files that a migration starts from: which is which, and all of them as settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.errors import UsageError
from gateway.migrate.from_conf import from_conf
from gateway.migrate.from_terms import from_terms, plugins_of, terms_of
from gateway.migrate.remarks import Remarks
from gateway.migrate.settings import Settings, printable
from gateway.migrate.terms import Term

_LARGEST: Final = 4 << 20
_LATIN_1: Final = re.compile(rb"\A[^\n]*%[^\n]*coding[:=]\s*latin-1|\A[^\n]*\n[^\n]*%[^\n]*coding[:=]\s*latin-1")


@dataclass
class Sources:
    """What the files say together."""

    settings: Settings = field(default_factory=Settings)
    plugins: frozenset[str] | None = None
    names: list[str] = field(default_factory=list)


def read_sources(
    files: Sequence[Path],
    enabled_plugins: Path | None,
    remarks: Remarks,
    environment: Mapping[str, str],
    *,
    lenient: bool,
) -> Sources:
    """Read files in any order: those in Erlang's form override those of the form of rabbitmq.conf.

    Args:
        files: of each form, a later one overrides an earlier one.
        enabled_plugins: the file of that name, if it is known to be it.
        remarks: take what is wrong.
        environment: variables that rabbitmq.conf may refer to.
        lenient: unknown keys are a remark, and no mistake.

    Raises:
        UsageError: a file cannot be read, or is not what it is said to be.
    """
    sources = Sources()
    confs: list[tuple[str, str]] = []
    later: list[tuple[str, list[Term]]] = []
    for file in files:
        text, name = _text(file), _name(file, files)
        sources.names.append(name)
        if not _is_erlang(text, file):
            confs.append((name, text))
            continue
        terms = terms_of(text, name, remarks) or []
        names = plugins_of(terms) if terms else None
        if names is None:
            later.append((name, terms))
        else:
            sources.plugins = names
    sources.settings.lay_over(from_conf(confs, remarks, environment, lenient=lenient))
    for name, terms in later:
        sources.settings.lay_over(from_terms(terms, name, remarks, lenient=lenient))
    if enabled_plugins is not None:
        sources.names.append(_name(enabled_plugins, files))
        found = terms_of(_text(enabled_plugins), sources.names[-1], remarks)
        sources.plugins = None if found is None else plugins_of(found)
        if found is not None and sources.plugins is None:
            raise UsageError(f"{printable(str(enabled_plugins))} is no list of plugins like [rabbitmq_stomp].")
    return sources


def _name(file: Path, files: Sequence[Path]) -> str:
    """A file's own name, or with its directory where that is not enough."""
    alone = sum(other.name == file.name for other in files) <= 1
    return printable(file.name if alone else str(file))


def _text(file: Path) -> str:
    try:
        octets = _octets(file)
    except OSError as error:
        raise UsageError(f"{printable(str(file))} cannot be read: {error.strerror or error}.") from None
    if len(octets) > _LARGEST:
        raise UsageError(f"{printable(str(file))} is larger than any configuration ({_LARGEST >> 20} MiB).")
    try:
        return octets.decode("latin-1" if _LATIN_1.match(octets) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = octets.count(b"\n", 0, error.start) + 1, error.start - octets.rfind(b"\n", 0, error.start)
        place = f"{printable(str(file))}: line {line}, octet {column}"
        raise UsageError(f"{place}: This is not UTF-8. Save the file as UTF-8.") from None


def _octets(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(_LARGEST + 1)


def _is_erlang(text: str, file: Path) -> bool:
    """By the first character that is not in a comment; an empty file by its name."""
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("%"):
            return True
        if bare and not bare.startswith("#"):
            return bare.startswith(("[", "{", "<", '"'))
    return file.suffix == ".config"

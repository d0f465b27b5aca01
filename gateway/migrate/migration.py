"""Runs `stomp-gateway migrate`: reads RabbitMQ's files, writes a configuration, and reports on the terminal."""

import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gateway.config.loader import parse
from gateway.errors import ConfigError, ExitCode, GatewayError, Mistake, UsageError
from gateway.migrate.output import MigrateError, MigrationReport, Severity
from gateway.migrate.source_files import read_sources
from gateway.migrate.translation import translate
from gateway.whole_files import written_beside

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TLS_FILE: Final = re.compile(r"(?:listeners\[[0-9]+\]|upstream)\.tls\.(?:cert_file|key_file|ca_file)")
_ORIGIN: Final = re.compile(r".+:[0-9]+ ")
_IS_VARIABLE: Final = "environment variable"
_IS_MISSING: Final = "cannot be read"


def migrate(options: Namespace) -> ExitCode:
    """Make a configuration, and report on standard error. Raises UsageError.

    ``options``: ``files``, ``enabled_plugins``, ``output`` (None is standard output), ``force``, ``lenient``,
    ``upstream``, ``port_offset`` and ``passcode_variable`` of the command line.
    """
    if options.passcode_variable and not _VARIABLE.fullmatch(options.passcode_variable):
        raise UsageError("--passcode-variable takes the name of an environment variable, for example STOMP_PASSCODE.")
    if options.output is not None and not options.force:
        _refuse_existing(options.output)
    report = MigrationReport(options.lenient)
    try:
        text, has_passcode = _make_configuration(options, report)
    except MigrateError as error:
        print(f"stomp-gateway: {error}", file=sys.stderr)
        return ExitCode.CONFIGURATION
    if options.output is None:
        print(text, end="")
    else:
        write_file(options.output, text, is_private=has_passcode, force=options.force)
    print("\n".join(_report_lines(options, report, has_passcode=has_passcode)), file=sys.stderr)
    return ExitCode.FAILURE if report.remarks[Severity.ACTION] else ExitCode.OK


def _make_configuration(options: Namespace, report: MigrationReport) -> tuple[str, bool]:
    """The text of the configuration, and whether it has a passcode from the files."""
    sources = read_sources(options.files, options.enabled_plugins, report, os.environ)
    if options.output is not None:
        plugins = [] if options.enabled_plugins is None else [options.enabled_plugins]
        _refuse_input(options.output, [*options.files, *plugins, *sources.settings.files])
    translation = translate(sources, options.upstream, options.port_offset, options.passcode_variable)
    directory = Path() if options.output is None else options.output.parent
    # The first check adds to the report, which stands at the end of the text. So the final text is checked again.
    check_configuration(translation.text(MigrationReport()), directory, os.environ, report)
    text = translation.text(report)
    check_configuration(text, directory, os.environ, MigrationReport())
    return text, translation.has_passcode


def _report_lines(options: Namespace, report: MigrationReport, *, has_passcode: bool) -> Iterator[str]:
    if options.output is not None:
        mode = "; it holds a passcode, so only you may read it (mode 0600)" if has_passcode else ""
        yield f"{options.output} is written{mode}."
    elif has_passcode:
        yield "This holds a passcode: keep it in a file that only the gateway's user may read (mode 0600)."
    for heading, lines in report.sections(110):
        yield f"\n{heading}:"
        yield from (f"  {line}" for line in lines)
    if options.output is not None:
        yield f"\nNext: stomp-gateway check --config {options.output}"


def check_configuration(text: str, directory: Path, environment: Mapping[str, str], report: MigrationReport) -> None:
    """Read a configuration as `stomp-gateway check` does.

    TLS files that are not on this machine, and variables that are not set, go to the report: the user can add them.
    Raises MigrateError if the gateway refuses a value from the user's files, and GatewayError for any other mistake,
    which is a fault of this command.
    """
    try:
        parse(text, directory=directory, environment=environment)
    except ConfigError as error:
        lines = text.splitlines()
        refused = [mistake for mistake in error.mistakes if not _can_be_brought(mistake)]
        if faults := [mistake for mistake in refused if not _origin(mistake, lines)]:
            text = "this is a fault of the migrate command, please report it. It made a configuration with mistakes, "
            text += "and wrote nothing:\n"
            raise GatewayError(text + "\n".join(f"  {mistake}" for mistake in faults)) from None
        if refused:
            texts = [
                f"{_origin(mistake, lines)}: the gateway cannot have this. {_text(mistake)}" for mistake in refused
            ]
            raise MigrateError([*dict.fromkeys(texts), "Correct what is refused in a copy of the file."]) from None
        for mistake in error.mistakes:
            _report_missing(mistake, lines, report)


def _can_be_brought(mistake: Mistake) -> bool:
    is_variable = mistake.path.startswith("defaults.default_user.") and _IS_VARIABLE in mistake.sentence
    return is_variable or _TLS_FILE.fullmatch(mistake.path) is not None


def _origin(mistake: Mistake, lines: Sequence[str]) -> str:
    """The place in the user's files that a value came from, by its comment; empty for a value from elsewhere."""
    comment = lines[mistake.line - 1].rpartition("  # ")[2] if mistake.line else ""
    return comment if _ORIGIN.match(comment) else ""


def _text(mistake: Mistake) -> str:
    return " ".join(part for part in (mistake.sentence, mistake.suggestion) if part)


def _report_missing(mistake: Mistake, lines: Sequence[str], report: MigrationReport) -> None:
    """Report a file once and not for each setting, as listeners often share their files."""
    if _IS_VARIABLE in mistake.sentence:
        report.action(mistake.path, f"{mistake.sentence} Set it where the gateway runs.")
        return
    line = lines[mistake.line - 1] if mistake.line else ""
    file = line.partition(": ")[2].partition("  #")[0].strip()
    text = _text(mistake)
    if _IS_MISSING in mistake.sentence:
        text += " Bring it to the gateway's machine, readable for the gateway's user, or correct the path here."
    report.action(f"{mistake.path.rpartition('.')[2]} {file}", text)


def write_file(file: Path, text: str, *, is_private: bool, force: bool) -> None:
    """Write a file as a whole or not at all; only its owner may read it if it `is_private`.

    Raises GatewayError if it cannot be written, and UsageError if it exists and `force` is not set.
    """
    try:
        with written_beside(file, text.encode(), 0o600 if is_private else 0o644) as new:
            if force:
                new.replace(file)
            else:
                file.hardlink_to(new)  # never replaces a file, unlike a rename
    except FileExistsError:
        _refuse_existing(file)
    except OSError as error:
        raise GatewayError(f"{file} cannot be written: {error.strerror or error}.") from None


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise UsageError(f"{file} is there already. Give another name, or --force to replace it.")


def _refuse_input(output: Path, inputs: Sequence[Path]) -> None:
    if any(output.exists() and file.exists() and output.samefile(file) for file in inputs):
        raise UsageError(f"{output} is one of the files that are read, and stays as it is. Give another name.")

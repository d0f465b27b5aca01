"""The manual page, made of the texts of `--help`, so that both always say the same.

argparse-manpage makes such pages too, but leaves out the commands' epilogs, which have the examples and exit codes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Final

from gateway import __version__

_SUMMARY: Final = "STOMP gateway in front of RabbitMQ"
_HEADING: Final = re.compile(r"^(\S.*):\n", re.MULTILINE)
_NOT_SHOWN: Final = (argparse._HelpAction, argparse._SubParsersAction)


def runnable_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands that can be run, in the order of help; `journal` alone, for one, cannot."""
    commands = [
        command
        for action in parser._actions  # argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction)
        for command in action.choices.values()
    ]
    if not commands or parser.get_default("run") is not None:
        yield parser
    for command in commands:
        yield from runnable_commands(command)


def manual_page(parser: argparse.ArgumentParser) -> str:
    """The page of a whole command line, as roff with the macros of man(7)."""
    lines = [
        f'.TH STOMP\\-GATEWAY 1 "" "stomp\\-gateway {__version__}" "User Commands"',
        *(".SH NAME", f"stomp\\-gateway \\- {_SUMMARY}"),
        *(".SH SYNOPSIS", ".B stomp\\-gateway", ".I COMMAND", "[\\fIoptions\\fR]"),
        *(".SH DESCRIPTION", *_filled(parser.description)),
        ".SH COMMANDS",
    ]
    for command in runnable_commands(parser):
        lines += _command(command)
    for heading, text in _sections(parser.epilog):
        lines += [f".SH {heading.upper()}", *_verbatim(text)]
    return "\n".join(lines) + "\n"


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    parser.format_help()  # some parsers make their epilog only then
    yield f".SS {_escaped(parser.prog)}"
    yield from _verbatim(_usage(parser))
    yield from _filled(parser.description)
    for action in parser._actions:
        if action.help is not argparse.SUPPRESS and not isinstance(action, _NOT_SHOWN):
            yield ".TP"
            yield f".B {_escaped(_invocation(action))}"
            yield from _filled((action.help or "") % {**vars(action), "prog": parser.prog})
    for heading, text in _sections(parser.epilog):
        yield ".PP"
        if heading:
            yield f".I {_escaped(heading.capitalize())}"
        yield from _verbatim(text)


def _usage(parser: argparse.ArgumentParser) -> str:
    """The usage without the word "usage: ", and without the indentation under it."""
    prefix = "usage: "
    return "\n".join(line[len(prefix) :] for line in parser.format_usage().rstrip().splitlines())


def _invocation(action: argparse.Action) -> str:
    """How an option or an argument is written: `-o, --output FILE`."""
    name = action.metavar if isinstance(action.metavar, str) else None
    if name is None:
        name = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    if not action.option_strings:
        return name
    return ", ".join(action.option_strings) + (f" {name}" if action.nargs != 0 else "")


def _sections(epilog: str | None) -> Iterator[tuple[str, str]]:
    """The headings of an epilog, which are lines that end in a colon, each with the text below it."""
    before, *parts = _HEADING.split(epilog or "")
    for heading, text in (("", before), *zip(parts[::2], parts[1::2], strict=True)):
        if text.strip():
            yield heading, text.strip("\n")


def _filled(text: str | None) -> Iterator[str]:
    """Paragraphs whose lines man fills."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", (text or "").strip())):
        if number:
            yield ".PP"
        if paragraph:
            yield _escaped(" ".join(paragraph.split()))


def _verbatim(text: str) -> Iterator[str]:
    """Lines that man leaves as they are."""
    yield ".PP"
    yield ".nf"
    yield from map(_escaped, text.split("\n"))
    yield ".fi"


def _escaped(text: str) -> str:
    """Text in which roff finds no request, and whose hyphens can be copied as hyphens."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text

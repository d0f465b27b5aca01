"""The manual page, made of the same words as every `--help`, so that neither is ever behind the other."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Final

from gateway import __version__

DESCRIPTION: Final = """\
Print the manual page of all commands, in the form that man reads.
"""

EPILOG: Final = """\
examples:
  stomp-gateway manual | man -l -
  stomp-gateway manual > /usr/local/share/man/man1/stomp-gateway.1
"""

_SUMMARY: Final = "STOMP gateway in front of RabbitMQ"
_HEADING: Final = re.compile(r"^(\S.*):$")


def manual(parser: argparse.ArgumentParser) -> str:
    """The page, as roff with the macros of man(7).

    Args:
        parser: the whole command line.
    """
    lines = [
        f'.TH STOMP\\-GATEWAY 1 "" "stomp\\-gateway {__version__}" "User Commands"',
        *(".SH NAME", f"stomp\\-gateway \\- {_SUMMARY}"),
        *(".SH SYNOPSIS", ".B stomp\\-gateway", ".I COMMAND", "[\\fIoptions\\fR]"),
        *(".SH DESCRIPTION", *_prose(parser.description)),
        ".SH COMMANDS",
    ]
    for command in _commands(parser):
        lines += _command(command)
    for heading, text in _sections(parser.epilog):
        lines += [f".SH {heading.upper()}", *_as_it_is(text)]
    return "\n".join(lines) + "\n"


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands that do something, in the order of help, whatever they are below."""
    for action in parser._actions:  # argparse has no public way to ask
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                below = tuple(_commands(command))
                yield from below or (command,)


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    parser.format_help()  # some know their epilog only then
    yield f".SS {_escaped(parser.prog)}"
    yield from _as_it_is(_usage(parser))
    yield from _prose(parser.description)
    for action in parser._actions:
        if action.help is not argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            yield ".TP"
            yield f".B {_escaped(_invocation(action))}"
            yield from _prose((action.help or "") % {**vars(action), "prog": parser.prog})
    for heading, text in _sections(parser.epilog):
        yield ".PP"
        if heading:
            yield f".I {_escaped(heading.capitalize())}"
        yield from _as_it_is(text)


def _usage(parser: argparse.ArgumentParser) -> str:
    """How the command is called, without the word that argparse puts in front, and as deep as it is long."""
    prefix = "usage: "
    lines = parser.format_usage().rstrip().splitlines()
    return "\n".join(line.removeprefix(prefix) if line.startswith(prefix) else line[len(prefix) :] for line in lines)


def _invocation(action: argparse.Action) -> str:
    """How an option or an argument is written: `-o, --output FILE`."""
    name = action.metavar if isinstance(action.metavar, str) else None
    if name is None:
        name = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    if not action.option_strings:
        return name
    return ", ".join(action.option_strings) + (f" {name}" if action.nargs != 0 else "")


def _sections(epilog: str | None) -> Iterator[tuple[str, str]]:
    """The parts of an epilog: a line that ends in a colon begins one, and what it heads is indented."""
    heading, text = "", list[str]()
    for line in (epilog or "").splitlines():
        found = _HEADING.match(line)
        if found is not None:
            if any(text):
                yield heading, "\n".join(text).strip("\n")
            heading, text = found[1], []
        else:
            text.append(line)
    if any(text):
        yield heading, "\n".join(text).strip("\n")


def _prose(text: str | None) -> Iterator[str]:
    """Paragraphs, to be filled."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", (text or "").strip())):
        if number:
            yield ".PP"
        if paragraph:
            yield _escaped(" ".join(paragraph.split()))


def _as_it_is(text: str) -> Iterator[str]:
    """Lines that stay lines."""
    yield ".PP"
    yield ".nf"
    yield from map(_escaped, text.split("\n"))
    yield ".fi"


def _escaped(text: str) -> str:
    """Text in which nothing is a command of roff, and each hyphen can be copied as one."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text

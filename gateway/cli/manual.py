"""`stomp-gateway manual` and `completion`, made from the texts of `--help`, so that all agree.

argparse-manpage makes such pages, too, but leaves out the epilogs of commands, which have the examples and exit codes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Final

from gateway import __version__
from gateway.cli.commands import Commands, add_command
from gateway.errors import ExitCode

_SUMMARY: Final = "STOMP gateway in front of RabbitMQ"
_HEADING: Final = re.compile(r"^(\S.*):\n", re.MULTILINE)
_NOT_SHOWN: Final = (argparse._HelpAction, argparse._SubParsersAction)

_COMPLETION = """\
Print the script by which a shell completes commands, options and file names.

examples:
  bash   stomp-gateway completion bash > /etc/bash_completion.d/stomp-gateway
         for one user: ~/.local/share/bash-completion/completions/stomp-gateway
  zsh    stomp-gateway completion zsh > /usr/local/share/zsh/site-functions/_stomp-gateway
  tcsh   stomp-gateway completion tcsh > ~/.stomp-gateway.tcsh, and source it in ~/.tcshrc

  Then start a new shell.
"""

_MANUAL = """\
Print the manual page of all commands, in the format of man.

examples:
  stomp-gateway manual | man -l -
  stomp-gateway manual > /usr/local/share/man/man1/stomp-gateway.1
"""

SHELLS: Final = ("bash", "zsh", "tcsh")
"""Shells that `completion` supports."""


def add_manual(commands: Commands, parser: argparse.ArgumentParser) -> None:
    """Add `completion` and `manual`, which describe all commands of ``parser``."""
    line = "print the completion script of a shell"
    completion = add_command(
        commands, "completion", lambda options: _complete(parser, options.shell), line, _COMPLETION
    )
    completion.add_argument("shell", choices=SHELLS, help="the shell")
    add_command(commands, "manual", lambda _: _print_manual(parser), "print the manual page", _MANUAL)


def runnable_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands that can be run, in the order of help. `journal`, for example, cannot: it needs a subcommand."""
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
    """The manual page of a command line, as roff with the macros of man(7)."""
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
    parser.format_help()  # completes the epilog, where that is left until then
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
    """An option or argument as a user writes it: `-o, --output FILE`."""
    name = action.metavar if isinstance(action.metavar, str) else None
    if name is None:
        name = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    if not action.option_strings:
        return name
    return ", ".join(action.option_strings) + (f" {name}" if action.nargs != 0 else "")


def _sections(epilog: str | None) -> Iterator[tuple[str, str]]:
    """The headings of an epilog (lines that end in a colon), each with the text below it."""
    before, *parts = _HEADING.split(epilog or "")
    for heading, text in (("", before), *zip(parts[::2], parts[1::2], strict=True)):
        if text.strip():
            yield heading, text.strip("\n")


def _filled(text: str | None) -> Iterator[str]:
    """Paragraphs in which man breaks the lines."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", (text or "").strip())):
        if number:
            yield ".PP"
        if paragraph:
            yield _escaped(" ".join(paragraph.split()))


def _verbatim(text: str) -> Iterator[str]:
    """Lines that man prints unchanged."""
    yield ".PP"
    yield ".nf"
    yield from map(_escaped, text.split("\n"))
    yield ".fi"


def _escaped(text: str) -> str:
    """Text without roff requests, and with hyphens that stay hyphens when a reader copies them."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def _complete(parser: argparse.ArgumentParser, shell: str) -> ExitCode:
    import shtab  # noqa: PLC0415

    kinds = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    for command in runnable_commands(parser):
        for action in command._actions:
            if action.metavar in kinds:
                action.complete = kinds[action.metavar]  # type: ignore[attr-defined]  # the way shtab expects it
    print(shtab.complete(parser, shell))
    return ExitCode.OK


def _print_manual(parser: argparse.ArgumentParser) -> ExitCode:
    print(manual_page(parser), end="")
    return ExitCode.OK

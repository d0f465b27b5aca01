"""The manual page: it has every command and option, and man has nothing to object."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from gateway import cli
from gateway.cli.command_line import build_parser
from gateway.cli.manual import manual_page


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["manual"]) == 0
    return capsys.readouterr().out


def _rendered(page: str) -> str:
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-P-cbou", "-ww", "-rLL=200n"],
        input=page,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


needs_groff = pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not here, by which man shows pages")


def _leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for command in action.choices.values():
            yield from _leaves(command)
    if not below:
        yield parser


@needs_groff
def test_it_shows_every_command_and_every_option(page: str) -> None:
    shown = _rendered(page)
    commands = list(_leaves(build_parser()))
    assert "stomp-gateway journal tail" in {command.prog for command in commands}
    for command in commands:
        assert f"\n   {command.prog}\n" in shown
        for action in command._actions:
            if action.help is not argparse.SUPPRESS and action.dest != "help":
                assert all(option in shown for option in action.option_strings), command.prog


@needs_groff
def test_it_has_the_sections_that_a_page_has(page: str) -> None:
    shown = _rendered(page)
    headings = ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "EXAMPLES", "EXIT CODES", "ENVIRONMENT"]

    assert [line for line in shown.splitlines() if line.isupper() and line in headings] == headings
    assert "stomp-gateway check --config gateway.yaml" in shown


@needs_groff
def test_nothing_in_a_text_is_taken_for_a_command_of_roff() -> None:
    parser = argparse.ArgumentParser("stomp-gateway")
    command = parser.add_subparsers().add_parser("odd", epilog="examples:\n  C:\\new\n.SH Not a heading\n'quoted'")
    command.add_argument("--share", metavar="100%", help="50%% of it, .5 of \\fB, default %(default)s", default="-1")
    shown = _rendered(manual_page(parser))

    for text in ("C:\\new", ".SH Not a heading", "'quoted'", "--share 100%", "50% of it, .5 of \\fB, default -1"):
        assert text in shown


def test_a_command_that_says_nothing_of_itself_would_be_noticed() -> None:
    for command in _leaves(build_parser()):
        assert command.description, command.prog
        for action in command._actions:
            assert action.help, f"{command.prog}: {action.dest}"

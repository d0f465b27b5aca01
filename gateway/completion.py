"""Completion of the command line in a shell, printed for it to read."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

SHELLS: Final = ("bash", "zsh", "tcsh")

DESCRIPTION: Final = """\
Print what a shell needs to complete commands, options and file names.
"""

EPILOG: Final = """\
examples:
  bash   stomp-gateway completion bash > /etc/bash_completion.d/stomp-gateway
         or, for one user: ~/.local/share/bash-completion/completions/stomp-gateway
  zsh    stomp-gateway completion zsh > /usr/local/share/zsh/site-functions/_stomp-gateway
  tcsh   stomp-gateway completion tcsh > ~/.stomp-gateway.tcsh, and source it in ~/.tcshrc

  A shell that is started afterwards completes.
"""


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell.

    Args:
        parser: the whole command line.
        shell: one of SHELLS.
    """
    # Imported here: no other command needs it.
    import shtab  # noqa: PLC0415

    kinds = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    for action in _actions(parser):
        if action.metavar in kinds:
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]  # shtab's own way to be told
    script: str = shtab.complete(parser, shell)
    return script


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every option and argument of a command and of its own commands."""
    for action in parser._actions:  # argparse has no public way to ask
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action

"""What `stomp-gateway migrate` does, from the files to the file and to what is said on the terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.errors import ExitCode, UsageError
from gateway.migrate.proof import prove
from gateway.migrate.remarks import MigrateError, Remarks, Weight
from gateway.migrate.sheet import wrapped
from gateway.migrate.sources import read_sources
from gateway.migrate.translation import Wishes, translate
from gateway.migrate.writing import refuse_existing, write

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Request:
    """The command line."""

    files: Sequence[Path]
    enabled_plugins: Path | None = None
    output: Path | None = None
    """None is standard output."""
    force: bool = False
    lenient: bool = False
    upstream: Sequence[str] = ()
    port_offset: int = 0
    passcode_variable: str = ""


def migrate(request: Request) -> ExitCode:
    """Make a configuration, and say what there is to say on standard error.

    Raises:
        UsageError: the command line cannot be carried out.
    """
    if request.passcode_variable and not _VARIABLE.fullmatch(request.passcode_variable):
        raise UsageError("--passcode-variable takes the name of an environment variable, for example STOMP_PASSCODE.")
    if request.output is not None and not request.force:
        refuse_existing(request.output)
    remarks = Remarks()
    try:
        text, secret = _made(request, remarks)
    except MigrateError as error:
        print(f"stomp-gateway: {error}", file=sys.stderr)
        return ExitCode.CONFIGURATION
    if request.output is None:
        print(text, end="")
    else:
        write(request.output, text, secret=secret, force=request.force)
    print("\n".join(_report(request, remarks, secret=secret)), file=sys.stderr)
    return ExitCode.FAILURE if any(remarks.of(Weight.NEEDED)) else ExitCode.OK


def _made(request: Request, remarks: Remarks) -> tuple[str, bool]:
    """The text of the configuration, and whether it holds a passcode from the files."""
    sources = read_sources(request.files, request.enabled_plugins, remarks, os.environ, lenient=request.lenient)
    wishes = Wishes(request.upstream, request.port_offset, request.passcode_variable)
    translation = translate(sources.settings, sources.plugins, wishes, remarks)
    directory = Path() if request.output is None else request.output.parent
    prove(translation.text(sources.names, Remarks()), directory, os.environ, remarks)
    text = translation.text(sources.names, remarks)
    prove(text, directory, os.environ, Remarks())
    return text, translation.secret


def _report(request: Request, remarks: Remarks, *, secret: bool) -> Iterator[str]:
    if request.output is not None:
        mode = "; it holds a passcode, so only you may read it (mode 0600)" if secret else ""
        yield f"{request.output} is written{mode}."
    elif secret:
        yield "This holds a passcode: keep it in a file that only the gateway's user may read (mode 0600)."
    for weight in Weight:
        found = list(remarks.of(weight))
        if found:
            yield f"\n{weight.value}:"
            for remark in found:
                yield from (f"  {line}" for line in wrapped(f"* {remark}", 110))
    if request.output is not None:
        yield f"\nNext: stomp-gateway check --config {request.output}"

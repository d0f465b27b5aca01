"""Is what was written a configuration? The gateway's own reader says so, before anybody relies on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.config import parse
from gateway.errors import ConfigError, GatewayError, Mistake
from gateway.migrate.remarks import MigrateError, Remarks

_FILES: Final = re.compile(r"(?:listeners\[[0-9]+\]|upstream)\.tls\.(?:cert_file|key_file|ca_file)")
_VARIABLE: Final = "environment variable"
_MISSING: Final = "cannot be read"
_FROM_A_FILE: Final = re.compile(r".+:[0-9]+ ")


class FaultError(GatewayError):
    """The command made a configuration that the gateway does not take."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        lines = [f"  {mistake}" for mistake in mistakes]
        text = "this is a fault of the migrate command, please report it. It made a configuration with mistakes, and "
        super().__init__("\n".join([f"{text}wrote nothing:", *lines]))


def prove(text: str, directory: Path, environment: Mapping[str, str], remarks: Remarks) -> None:
    """Read a configuration as `check` does.

    A file of TLS that is not to be had here, or a variable that is not set, is no fault of the translation: each
    becomes a remark that says what to bring.

    Args:
        text: the YAML.
        directory: where its file will be.
        environment: variables.
        remarks: grow.

    Raises:
        MigrateError: a value from the user's files is one that the gateway does not take.
        FaultError: there is any other mistake in it.
    """
    try:
        parse(text, directory=directory, environment=environment)
    except ConfigError as error:
        lines = text.splitlines()
        others = [mistake for mistake in error.mistakes if not _is_to_bring(mistake)]
        faults = [mistake for mistake in others if not _origin(mistake, lines)]
        if faults:
            raise FaultError(faults) from None
        if others:
            texts = [f"{_origin(mistake, lines)}: the gateway cannot have this. {_said(mistake)}" for mistake in others]
            advice = "Correct what is refused in a copy of the file."
            raise MigrateError([*dict.fromkeys(texts), advice]) from None
        for mistake in error.mistakes:
            _remark(mistake, lines, remarks)


def _is_to_bring(mistake: Mistake) -> bool:
    return bool(_FILES.fullmatch(mistake.path)) or (
        mistake.path.startswith("defaults.default_user.") and _VARIABLE in mistake.sentence
    )


def _origin(mistake: Mistake, lines: list[str]) -> str:
    """Where the value stood that the gateway does not take; empty if it is none of the user's."""
    comment = lines[mistake.line - 1].rpartition("  # ")[2] if mistake.line else ""
    return comment if _FROM_A_FILE.match(comment) else ""


def _said(mistake: Mistake) -> str:
    return " ".join(part for part in (mistake.sentence, mistake.suggestion) if part)


def _remark(mistake: Mistake, lines: list[str], remarks: Remarks) -> None:
    """What to bring. Listeners mostly share their files, and each file is spoken of once."""
    if _VARIABLE in mistake.sentence:
        remarks.needed(mistake.path, f"{mistake.sentence} Set it where the gateway runs.")
        return
    line = lines[mistake.line - 1] if mistake.line else ""
    file = line.partition(": ")[2].partition("  #")[0].strip()
    said = _said(mistake)
    if _MISSING in mistake.sentence:
        said += " Bring it to the gateway's machine, readable for the gateway's user, or correct the path here."
    remarks.needed(f"{mistake.path.rpartition('.')[2]} {file}", said)

"""From a file to a `GatewayConfig`, or to every mistake in it at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from gateway.config.consistency import contradictions, model_contradictions
from gateway.config.document import Document, YamlSyntaxError, read_document
from gateway.config.files import ConfigFiles, read_passcode_files
from gateway.config.findings import Finding, Trail, findings_of, path_text
from gateway.config.model import GatewayConfig
from gateway.errors import ConfigError, Mistake


def load(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> GatewayConfig:
    """Read a configuration file (UTF-8 YAML).

    Args:
        path: the file. File names in it are relative to its directory.
        environment: variables for `${NAME}`; the process's own unless given.

    Raises:
        ConfigError: the file cannot be read or used; it carries every mistake.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        sentence = f"This file cannot be read: {error.strerror or error}."
        raise ConfigError([Mistake("", sentence)], str(file)) from None
    except UnicodeDecodeError as error:
        raise ConfigError([Mistake("", f"Byte {error.start} of this file is not UTF-8.")], str(file)) from None
    return parse(text, directory=file.parent, name=str(file), environment=environment)


def parse(
    text: str,
    *,
    directory: Path | None = None,
    name: str = "configuration",
    environment: Mapping[str, str] | None = None,
) -> GatewayConfig:
    """Read a configuration from a YAML text. An empty one is valid: everything has a default.

    Args:
        text: the YAML.
        directory: where relative file names start; the current directory unless given.
        name: what errors call the text.
        environment: variables for `${NAME}`; the process's own unless given.

    Raises:
        ConfigError: with every mistake.
    """
    try:
        document = read_document(text, os.environ if environment is None else environment)
    except YamlSyntaxError as mistake:
        raise ConfigError([Mistake("", mistake.sentence, mistake.suggestion, mistake.line)], name) from None
    files = ConfigFiles(Path() if directory is None else directory)
    read_passcode_files(document, files)
    config, found = _validated(document.tree, files)
    found += contradictions(document.tree)
    if config is not None and not found:
        found += model_contradictions(config, files)
    mistakes = _mistakes(document, found)
    if config is None or mistakes:
        raise ConfigError(mistakes, name)
    return config


def _validated(tree: object, files: ConfigFiles) -> tuple[GatewayConfig | None, list[Finding]]:
    try:
        return GatewayConfig.model_validate(tree, context=files), []
    except ValidationError as error:
        return None, list(findings_of(error))


def _mistakes(document: Document, found: list[Finding]) -> list[Mistake]:
    """All findings, in the order of the file, without echoes of a value that could not be had."""
    kept = document.findings + [finding for finding in found if not _spoiled(document, finding.trail)]
    mistakes = [
        Mistake(path_text(finding.trail), finding.sentence, finding.suggestion, document.line_of(finding.trail))
        for finding in dict.fromkeys(kept)
    ]
    return sorted(mistakes, key=lambda mistake: mistake.line or 0)


def _spoiled(document: Document, trail: Trail) -> bool:
    return any(trail[:length] in document.spoiled for length in range(len(trail) + 1))

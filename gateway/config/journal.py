"""The traffic journal's configuration: what is written, where, and what is left out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from gateway.config.parts import Group, ReadableFile, Text, base_directory
from gateway.config.quantities import Count, Duration, Factor, Size, mistake

_DAY: Final = 86_400.0
_NODE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def _directory(value: object, info: ValidationInfo) -> object:
    """Resolve against the configuration file's directory. It need not exist: the gateway makes it."""
    if not isinstance(value, str) or not value:
        raise mistake("The name of a directory is needed here.")
    return base_directory(info.context) / value


def _off(value: object) -> object:
    """YAML reads a bare ``off`` as false."""
    return "off" if value is False else value


def _node_name(value: str) -> str:
    if not set(value) <= _NODE:
        raise mistake(
            "Only letters, digits, dots, hyphens and underscores can stand here: it becomes part of file names."
        )
    return value


def _destination_pattern(value: str) -> str:
    if not value.startswith("/") or "*" not in value:
        raise mistake("A pattern begins with / and has a * for what changes, for example /queue/replies-*.")
    return value


class Journal(Group):
    """The traffic journal: one line per event, for the pipeline and for people."""

    level: Annotated[Literal["off", "session", "message"], BeforeValidator(_off)] = Field(
        "session",
        description="session: sessions, subscriptions, errors, and counts every ten seconds. "
        "message: also every message, confirm and acknowledgement.",
    )
    directory: Annotated[Path, BeforeValidator(_directory, json_schema_input_type=str)] | None = Field(
        None,
        description="Where it is written. null: below $STATE_DIRECTORY, else /var/lib/stomp-gateway for root, else "
        "~/.local/state/stomp-gateway. Relative to this file's directory.",
    )
    node: Annotated[Text, AfterValidator(_node_name)] | None = Field(
        None, description="This gateway's name in the journal. null: the machine's name."
    )
    sample: Annotated[float, Factor(least=0.0001, most=1)] = Field(
        1.0, description="At level message, the share of messages that are written; each with all its events."
    )
    rotate_bytes: Annotated[int, Size()] = Field(64 << 20, description="A segment (a file) of this size is finished.")
    rotate_after: Annotated[float, Duration(zero=False)] = Field(
        60.0, description="A segment this old is finished, whatever its size."
    )
    retain: Annotated[float, Duration(zero=False)] = Field(
        7 * _DAY, description="Finished segments of this gateway are deleted when they are this old."
    )
    users: Literal["plain", "hashed"] = Field(
        "plain", description="Logins as they are, or as a keyed hash that is the same every time."
    )
    users_key_file: ReadableFile | None = Field(
        None,
        description="The key of the hash, for several gateways that must agree. null: one is made, in the directory. "
        "Relative to this file's directory.",
    )
    peers: Literal["full", "prefix", "none"] = Field(
        "full", description="Clients' addresses: as they are, cut to the network (/24, /48), or not at all."
    )
    header_values: tuple[Text, ...] = Field(
        (), description="At level message, headers of SEND whose values are written. All others' never are."
    )
    destinations: tuple[Annotated[Text, AfterValidator(_destination_pattern)], ...] = Field(
        (), description="Destinations with generated parts, as patterns: each stands for all that fit it."
    )
    max_destinations: Annotated[int, Count()] = Field(
        10_000, description="Distinct destinations of this virtual host; any further one is written as other."
    )


def default_directory(environment: dict[str, str] | None = None, user: int | None = None) -> Path:
    """Where the journal lies unless configured.

    Args:
        environment: variables; the process's own unless given.
        user: numeric user id; the process's own unless given.
    """
    variables = dict(os.environ) if environment is None else environment
    given = variables.get("STATE_DIRECTORY", "").partition(":")[0]  # systemd's StateDirectory=, one or several
    if given:
        return Path(given) / "journal"
    if (os.getuid() if user is None else user) == 0:
        return Path("/var/lib/stomp-gateway/journal")
    state = variables.get("XDG_STATE_HOME") or str(Path(variables.get("HOME", "/")) / ".local" / "state")
    return Path(state) / "stomp-gateway" / "journal"

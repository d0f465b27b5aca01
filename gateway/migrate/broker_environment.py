"""Reads the environment of a broker, and says what its variables (RABBITMQ_*) mean for the plugins.

It is found in a file for `docker run --env-file`, in the output of `env`, in rabbitmq-env.conf (where names may lack
RABBITMQ_), in a file of docker compose, and in a script with `docker run -e RABBITMQ_...`. Variables stand in for
settings that no file has, or say which files the broker reads.
"""

import fnmatch
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.migrate.broker_settings import BrokerSettings, Origin, Setting, shown
from gateway.migrate.conf_schema import RABBIT, STOMP
from gateway.migrate.erlang_terms import Atom, Tuple
from gateway.migrate.output import MigrationReport

_PREFIX: Final = "RABBITMQ_"
_NAME: Final = "[A-Z_][A-Za-z0-9_]*"
_LINE: Final = re.compile(rf"\s*(?:export\s+)?(?P<name>{_NAME})=(?P<value>.*)")
"""A line of an environment file: everything after the sign is the value."""
_ASSIGNMENT: Final = re.compile(
    rf"""(?P<name>{_NAME})=(?P<value>(?:[^\s"']++|"[^"]*"|'[^']*'|["']|\s(?!{_NAME}=))*+)"""
)
"""One of several in such a line: the value ends where the next name follows."""
_ANYWHERE: Final = re.compile(
    r"""\b(?P<name>RABBITMQ_[A-Z0-9_]+)["']?[ \t]*[=:][ \t]*(?P<value>"[^"]*"|'[^']*'|[^\s"']*)"""
)
_BEFORE_COMMENT: Final = re.compile(r"""(?:[^"'#]++|"[^"]*"|'[^']*'|["']|(?<=\S)#)*+""")
_PATH: Final = re.compile(r"(?:[A-Za-z]:|[.~]+)?[/\\][\w./\\*+@-]*")
_FILES: Final = ("CONFIG_FILE", "CONFIG_FILES", "ADVANCED_CONFIG_FILE", "ENABLED_PLUGINS_FILE", "CONF_ENV_FILE")
_ARGUMENTS: Final = ("SERVER_ADDITIONAL_ERL_ARGS", "SERVER_START_ARGS", "SERVER_ERL_ARGS")
_TLS_PREFIX: Final = "SSL_"
_COUNTS_ONCE: Final = ("NODE_PORT", "NODE_IP_ADDRESS", "ENABLED_PLUGINS")
_USED: Final = frozenset((*_COUNTS_ONCE, *_FILES, *_ARGUMENTS))
_FIRST_START: Final = {
    "DEFAULT_USER": "It names the first user in place of guest. The plugin's own default user stays guest without "
    "stomp.default_user: such clients, without a login, were refused and still are.",
    "DEFAULT_PASS": "It is the passcode of the broker's first user. The plugin's own default user has that of "
    "stomp.default_pass, else guest.",
    "DEFAULT_VHOST": "It names the first virtual host in place of /. Without stomp.default_vhost a client that sends "
    "no host still asks for /: set default_vhost if there is none.",
}


@dataclass(frozen=True)
class Variable:
    """A variable of the broker, without RABBITMQ_ before its name."""

    name: str
    value: str
    origin: Origin


def broker_variables(text: str, file: str) -> Iterator[Variable]:
    """The variables of the broker in a text, in order."""
    for number, line in enumerate(text.splitlines(), 1):
        bare = _before_comment(line)
        for match in (_ASSIGNMENT if _LINE.fullmatch(bare) else _ANYWHERE).finditer(bare):
            name = match["name"].removeprefix(_PREFIX)
            if match["name"] != name or name in _USED:
                yield Variable(name, match["value"].strip().strip("\"'"), Origin(file, number, match["name"]))


def is_environment(text: str) -> bool:
    """Whether every line of a text sets a variable, comments aside."""
    lines = [bare for line in text.splitlines() if (bare := _before_comment(line).strip())]
    return bool(lines) and all(_LINE.fullmatch(line) for line in lines)


def all_variables(text: str) -> dict[str, str]:
    """Every variable in the lines of an environment file, for the values of rabbitmq.conf that refer to them."""
    found = [match for line in text.splitlines() if (match := _LINE.fullmatch(line))]
    return {match["name"]: match["value"].strip().strip("\"'") for match in found}


def _before_comment(line: str) -> str:
    """A line without its comment, which begins with # after white space."""
    return next(_BEFORE_COMMENT.finditer(line))[0]


def settings_of_environment(variables: Sequence[Variable], report: MigrationReport) -> BrokerSettings:
    """The settings that hold where the files have none: the broker's own address."""
    settings, found = BrokerSettings(report), {variable.name: variable for variable in variables}
    _report_differences(variables, report)
    port, ip = found.get("NODE_PORT"), found.get("NODE_IP_ADDRESS")
    if port is not None and not port.value.isdecimal():
        report.mistake(port.origin, "A port belongs here.")
    elif variable := port or ip:
        address = Tuple((ip.value if ip and ip.value else Atom("auto"), int(port.value) if port else 5672))
        entry = Setting(address, variable.origin)
        settings.put(RABBIT, "tcp_listeners", Setting((entry,), variable.origin))
    return settings


def _report_differences(variables: Sequence[Variable], report: MigrationReport) -> None:
    """Report a variable with two values in one file, for example of two services of docker compose."""
    first: dict[tuple[str, str], Variable] = {}
    for variable in variables:
        earlier = first.setdefault((variable.origin.file, variable.name), variable)
        if variable.name in _COUNTS_ONCE and variable.value != earlier.value:
            text = f"Its value is another one than in line {earlier.origin.line}, and the last one counts here. "
            report.action(variable.origin, f"{text}Leave only the broker's variables in a copy of the file.")


def plugins_of_environment(variables: Sequence[Variable]) -> frozenset[str] | None:
    """The plugins that a variable enables in place of the file enabled_plugins; None if there is no such variable."""
    lists = [variable.value for variable in variables if variable.name == "ENABLED_PLUGINS" and variable.value != "ALL"]
    return frozenset(name.strip() for name in lists[-1].split(",")) if lists else None


def report_environment(variables: Sequence[Variable], given: Sequence[str], settings: BrokerSettings) -> None:
    """Say what each variable means. `given` are the names of the files on the command line."""
    report, others = settings.report, []
    for variable in variables:
        origin, name = variable.origin, variable.name
        if name in _FILES:
            if not _is_given(variable.value, given):
                # Anything else may hold a passcode.
                file = shown(variable.value) if _PATH.fullmatch(variable.value) else "a file"
                text = f"The broker reads {file}, which is not among these files. Give it as well."
                report.action(origin, text)
        elif name in _FIRST_START:
            report.note(origin, _FIRST_START[name])
        elif name.startswith(_TLS_PREFIX):
            if "ssl_options" not in settings.apps.get(RABBIT, {}):
                text = "Older images make ssl_options of rabbitmq.conf of it when the broker starts. Give the file "
                report.action(origin, f"{text}that is in the container as well: /etc/rabbitmq/rabbitmq.conf.")
        elif name in _ARGUMENTS and re.search(r"(?:^|\s)-(?:rabbit|rabbitmq_(?:web_)?stomp)\s", variable.value):
            text = "It has settings on Erlang's command line, which override every file and are not read here. Write "
            report.action(origin, f"{text}those of {RABBIT} and {STOMP} into advanced.config, and give that as well.")
        elif name not in _USED:
            others.append(_PREFIX + name)
    if others:
        names = ", ".join(shown(name) for name in dict.fromkeys(others))
        report.note("", f"Nothing to do: these variables say nothing about the plugins: {names}.")


def _is_given(path: str, given: Sequence[str]) -> bool:
    """Whether a file is among others. The value may be a pattern, a directory, or a name without its ending."""
    pattern = os.path.basename(path.rstrip("/"))
    return any(fnmatch.fnmatch(name, pattern) or name.rpartition(".")[0] == pattern for name in given)

"""Tells the form of one of RabbitMQ's files: by what is in it, and what its name says."""

import re
from enum import Enum
from pathlib import Path
from typing import Final

from gateway.migrate.broker_environment import broker_variables, is_environment

_CONF_LINE: Final = re.compile(r"^[ \t]*[A-Za-z0-9_-]++(?:\\?\.[A-Za-z0-9_-]++)++[ \t]*=", re.MULTILINE)
"""A line that only rabbitmq.conf can have: words with dots between them, and a value."""


class Form(Enum):
    """The form of a file; the value is what a user calls it."""

    CONF = "rabbitmq.conf"
    ERLANG = "Erlang terms"
    ENVIRONMENT = "the broker's environment"


_BY_ENDING: Final = {
    ".conf": Form.CONF,
    ".config": Form.ERLANG,
    ".env": Form.ENVIRONMENT,
    ".sh": Form.ENVIRONMENT,
    ".yaml": Form.ENVIRONMENT,
    ".yml": Form.ENVIRONMENT,
}
_BY_NAME: Final = {
    "enabled_plugins": Form.ERLANG,
    "rabbitmq-env.conf": Form.ENVIRONMENT,
    ".env": Form.ENVIRONMENT,
    "env": Form.ENVIRONMENT,
}


def form_by_name(file: Path) -> Form | None:
    """What a file's name says of its form; None if it says nothing."""
    return _BY_NAME.get(file.name) or _BY_ENDING.get(file.suffix)


def form_of(text: str, file: Path) -> Form:
    """The form of a file by its text, or by its name where the text fits several."""
    if _is_erlang(text, file):
        return Form.ERLANG
    if _CONF_LINE.search(text):
        return Form.CONF
    is_variables = is_environment(text) or any(broker_variables(text, file.name))
    return Form.ENVIRONMENT if is_variables or form_by_name(file) is Form.ENVIRONMENT else Form.CONF


def _is_erlang(text: str, file: Path) -> bool:
    """Tell the form by the first character outside comments, or by the name if the file is empty."""
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("%"):
            return True
        if bare and not bare.startswith("#"):
            return bare.startswith(("[", "{", "<", '"'))
    return file.suffix == ".config"

"""`stomp-gateway reload` and `config`: a running gateway reads its configuration again, and shows the one in use."""

from __future__ import annotations

import json
from argparse import Namespace

import yaml

from gateway.admin.terminal_api import AdminApi
from gateway.admin.terminal_text import clean


def reload(options: Namespace) -> None:
    """Ask for a reload, and print what has changed and what needs a restart.

    Raises:
        UsageError: an option has no meaning.
        AdminError: the gateway does not answer, or refuses.
        ConfigError: the configuration has mistakes, and the gateway goes on with its old one.
    """
    answer = AdminApi(options).ask("reload", method="POST")
    if options.json:
        print(json.dumps(answer, indent=2))
        return
    changes, restart = answer["changes"], answer["restart"]
    print("reloaded" if changes else "reloaded: nothing has changed")
    for change in changes:
        print(f"  {clean(change)}")
    if restart:
        print("needs a restart; until then the old value stays in use:")
        for each in restart:
            print(f"  {clean(each['key'])}: {clean(each['in_use'])}")


def show_config(options: Namespace) -> None:
    """Print the configuration that a gateway uses.

    Raises:
        UsageError: an option has no meaning.
        AdminError: the gateway does not answer, or refuses.
    """
    answer = AdminApi(options).ask("config")
    if options.json:
        print(json.dumps(answer, indent=2))
    else:
        print(yaml.safe_dump(answer, sort_keys=False), end="")

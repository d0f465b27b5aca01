"""`stomp-gateway reload`: makes a running gateway read its configuration again, and shows its answer."""

from __future__ import annotations

import json
from argparse import Namespace

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

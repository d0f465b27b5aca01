"""`stomp-gateway log-level`: shows or changes the level of a running gateway's log lines."""

from __future__ import annotations

import json
from argparse import Namespace

from gateway.admin.terminal_api import AdminApi
from gateway.admin.terminal_text import clean


def log_level(options: Namespace) -> None:
    """Ask for the level, or for another one, and print what holds.

    Raises:
        UsageError: an option has no meaning.
        AdminError: the gateway does not answer, or refuses.
    """
    api = AdminApi(options)
    if options.level is None:
        answer = api.ask("log-level")
    else:
        query = {"level": options.level, "seconds": round(options.duration)}
        answer = api.ask("log-level", query, method="POST")
    if options.json:
        print(json.dumps(answer))
        return
    level, configured, until = (clean(str(answer[key])) for key in ("level", "configured", "until"))
    print(level if answer["until"] is None else f"{level} until {until}, then {configured}")

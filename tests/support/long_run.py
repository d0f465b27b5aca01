"""What commands that start servers have in common: the servers are stopped whatever ends the command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Final

from deploy.local.errors import LocalError

SUCCESS: Final = 0
FOUND: Final = 1
NOT_STARTED: Final = 2


def status_of(work: Callable[[], int]) -> int:
    """Do the work; its exit status, or that of what kept it from its end."""
    # Otherwise SIGTERM would end this process without the clean-up, and so without stopping what it started.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    try:
        return work()
    except LocalError as error:
        print(error, file=sys.stderr)
        return NOT_STARTED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT

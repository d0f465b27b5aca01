"""A gateway that dials a broker only if the one before it has failed, however late that one answers.

Otherwise it dials the next one after a moment, and takes the first that answers. On a busy machine this need not be the
one that a test expects.
"""

from __future__ import annotations

import sys

from gateway.cli import main
from gateway.server.broker import dialer

CONSTANTS = {"_MOMENT": 3600.0, "_ALL_DIALLED": 36_000.0}
"""Those of the dialer that make it so, in seconds; for gateways in the test's own process, too."""

if __name__ == "__main__":
    vars(dialer).update(CONSTANTS)
    sys.exit(main())

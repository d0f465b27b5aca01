"""A gateway that waits ten minutes for clients and brokers to close, where others wait seconds.

So a stop that has to wait for one of them ends no test in time, on any machine.
"""

from __future__ import annotations

import sys

from gateway.server.broker import channel, link
from gateway.server.listen import websocket

_TEN_MINUTES = 600.0

if __name__ == "__main__":
    # Set before the modules load that copy them. All are `Final`.
    link.CLOSE_TIMEOUT = channel.CLOSED_WITHIN = websocket._CLOSE_TIMEOUT = _TEN_MINUTES  # type: ignore[misc]

    from gateway.cli import main
    from gateway.server.client import output

    output._CLOSE_TIMEOUT = _TEN_MINUTES  # type: ignore[misc]
    sys.exit(main())

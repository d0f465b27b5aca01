"""A worker that serves nobody: the first one starts, and the next ones end before they have started."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Final

from gateway.server.process.worker_channel import answer_calls

FILE_VARIABLE: Final = "SHORT_LIVED_WORKER"
"""Names the file that says that there was one."""


async def _answer(_: str, __: tuple[object, ...]) -> None:
    pass


if __name__ == "__main__":
    first = Path(os.environ[FILE_VARIABLE])
    if not first.exists():
        first.write_text("")
        asyncio.run(answer_calls(socket.socket(fileno=int(sys.argv[1])), _answer))

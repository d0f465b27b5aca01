"""What `serve` does around a gateway."""

from __future__ import annotations

import asyncio
import gc
import os
import signal

from gateway.config.loader import parse
from gateway.server.process.serving import serve
from tests.support.deadline import until


async def test_the_program_itself_is_not_among_what_python_searches_for_garbage() -> None:
    gc.unfreeze()
    config = parse("listeners: [{tcp: '127.0.0.1:0'}]\ndefaults: {journal: {level: 'off'}}", environment={})
    serving = asyncio.get_running_loop().create_task(serve(config))
    try:
        # A module is of the program, and searched by Python unless it is put aside.
        await until(lambda: _searched(asyncio), lambda searched: not searched)
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
    finally:
        serving.cancel()
        gc.unfreeze()
        await asyncio.wait([serving])


async def _searched(thing: object) -> bool:
    """Whether Python's search for garbage looks at something; ``get_objects`` leaves out what is put aside."""
    return any(each is thing for each in gc.get_objects())

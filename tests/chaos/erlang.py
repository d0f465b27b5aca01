"""A process of Erlang that asks the nodes of a cluster; `rabbitmqctl` would start anew for each question."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, Self

from deploy.local.errors import LocalError
from deploy.local.node import PrivateNode

_ANSWERS_WITHIN: Final = 30.0

# Each line that it reads has the name of a node and what that evaluates. What the code prints comes back, and then a
# line that says whether it went well.
_LOOP: Final = """
    Loop = fun(Loop) ->
        case io:get_line("") of
            eof -> halt();
            Line ->
                [Node, Code] = string:split(string:trim(Line), " "),
                {ok, Tokens, _} = erl_scan:string(Code),
                {ok, Parsed} = erl_parse:parse_exprs(Tokens),
                case rpc:call(list_to_atom(Node), erl_eval, exprs, [Parsed, []], 8000) of
                    {value, _, _} -> io:format("+~n");
                    Failure -> io:format("-~0p~n", [Failure])
                end,
                Loop(Loop)
        end
    end,
    Loop(Loop).
"""


class Erlang:
    """Made by ``started``.

    Args:
        process: that runs the loop.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._asking = asyncio.Lock()

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, node: PrivateNode) -> AsyncIterator[Self]:
        """Start it beside a node, and end it at the end."""
        command, environment = node.erlang(
            "-noshell", "-hidden", "-sname", f"chaos-{node.amqp_port}@localhost", "-start_epmd", "false",
            "-kernel", "net_setuptime", "3", "-kernel", "net_ticktime", "6", "-setcookie", node.cookie,
            "-eval", " ".join(_LOOP.split()),
        )  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            yield cls(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            _ = await process.wait()

    async def evaluated(self, node: PrivateNode, code: str) -> list[str]:
        """What Erlang code on a node prints, a line each.

        Raises:
            LocalError: the node does not answer, or the code fails.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._asking, asyncio.timeout(_ANSWERS_WITHIN):
            self._process.stdin.write(f"{node.name} {code}\n".encode())
            lines = []
            while (line := (await self._process.stdout.readline()).decode())[:1] not in ("+", "-"):
                if not line:
                    raise LocalError("Erlang has ended.")
                lines.append(line.rstrip("\n"))
        if not line.startswith("+"):
            raise LocalError(f"{node.name}: {line[1:].strip()}")
        return lines

"""The `stomp-gateway` command."""

from gateway.cli.command_line import main

__all__ = ["main"]

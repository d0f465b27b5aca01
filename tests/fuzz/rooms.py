"""Which packages a target is about: their lines are counted, and atheris watches them. This file imports nothing."""

from __future__ import annotations

from typing import Final

ROOMS: Final = {
    "decoder": ("stomp",),
    "session": ("stomp", "session"),
    "splitter": ("amqp",),
    "properties": ("amqp",),
    "broker": ("amqp", "session"),
    "configuration": ("config",),
    "proxy": ("server/listen",),
    "handshake": ("server/listen",),
    "conf": ("migrate",),
    "terms": ("migrate",),
}
"""Packages below ``gateway``, by target."""

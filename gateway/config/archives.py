"""Archives: streams that keep a copy of the messages to some destinations, for the pipeline."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from gateway.config.base_models import ConfigModel, Text
from gateway.config.broker_user import User
from gateway.config.scalars import Duration, Size, mistake

_BINDABLE: Final = re.compile(r"/topic/[^/]+|/exchange/[^/]+(/[^/]*)?")
_BY_DEFAULT_EXCHANGE: Final = ("/queue/", "/amq/queue/", "/temp-queue/", "/reply-queue/")


def _archived(text: str) -> str:
    if text.startswith(_BY_DEFAULT_EXCHANGE):
        raise mistake(
            "Messages to a queue go through the broker's default exchange, to which no stream can be bound.",
            "Archive the topic or the exchange in front of the queue. If there is none, let clients send to "
            "/exchange/<exchange>/<key>, and bind the queue to that.",
        )
    if _BINDABLE.fullmatch(text) is None:
        sentence = "This is no destination of a topic or an exchange."
        raise mistake(sentence, "Write /topic/<key> or /exchange/<exchange>/<key>.")
    return text


class Archive(ConfigModel):
    """A stream that gets a copy of every message to some destinations. The gateway declares it, and its bindings."""

    stream: Text
    """The stream's name in the broker."""
    destinations: Annotated[tuple[Annotated[Text, AfterValidator(_archived)], ...], Field(min_length=1)]
    """Which messages: /topic/<key>, where * is one word and # any number of words, or /exchange/<exchange>/<key>."""
    user: User
    """The broker's user who declares the stream and binds it; never a client."""
    max_age: Annotated[float, Duration(least=1)] | None = None
    """Of a stream that the gateway declares: the broker deletes messages that are older. null: never."""
    max_bytes: Annotated[int, Size()] | None = None
    """Of a stream that the gateway declares: beyond it the broker deletes the oldest messages. null: no limit."""

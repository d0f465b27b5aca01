"""What an operator lays down for the clients of a virtual host: limits, and rules for destinations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.config.parts import Group, Part, Text
from gateway.config.quantities import Count, Duration, Size, Switch, mistake


def _pattern(value: str) -> str:
    if not value.startswith("/"):
        raise mistake("A destination begins with /; * in it stands for anything, for example /queue/orders.*.")
    return value


DestinationPattern = Annotated[Text, AfterValidator(_pattern)]


class Prefetch(Group):
    """How many unacknowledged messages a subscription may have in hand (prefetch-count)."""

    default: Annotated[int, Count(most=65535)] | None = Field(
        None, description="For a SUBSCRIBE without prefetch-count. null: no limit, as with the plugin."
    )
    max: Annotated[int, Count(most=65535)] | None = Field(
        None, description="What a client may ask for; more, and no limit, become this. null: whatever it asks for."
    )


class QueueArguments(Part):
    """Arguments that the queues behind some destinations are declared with, unless a client gives its own."""

    destination: DestinationPattern = Field(
        description="Which: * stands for anything, for example /queue/orders.*. The first entry that fits counts."
    )
    arguments: Mapping[Text, bool | int | str] = Field(
        description="By their AMQP names, for example x-queue-type: quorum, x-expires: 3600000, x-max-length: 10000."
    )


class DestinationRule(Part):
    """What clients may do with some destinations. The first rule that fits decides; without one all is allowed."""

    action: Literal["allow", "deny", "rewrite"] = Field(description="rewrite puts another destination in its place.")
    destination: DestinationPattern = Field(description="Which: * stands for anything, {login} for the client's login.")
    to: DestinationPattern | None = Field(
        None, description="For rewrite: the new destination; * becomes what the * of destination stood for, in order."
    )
    on: Literal["send", "subscribe", "both"] = Field("both", description="Which frames it is about.")
    logins: tuple[Text, ...] = Field((), description="Whose; * stands for anything. Empty: everybody's.")
    mandatory: Annotated[bool, Switch()] = Field(
        False, description="A message sent by this rule that reaches no queue is an ERROR and gets no RECEIPT."
    )

    @model_validator(mode="after")
    def _rewrites_to_something(self) -> Self:
        if (self.to is not None) != (self.action == "rewrite"):
            raise mistake("action: rewrite needs to, and nothing else has it.")
        if self.to is not None and self.to.count("*") > self.destination.count("*"):
            raise mistake("to has more * than destination.")
        if self.mandatory and (self.on == "subscribe" or self.action == "deny"):
            raise mistake("mandatory is about messages that are sent: it goes with allow or rewrite, on send or both.")
        return self


class Limit(Group):
    """What one user, or one address, may have and do in a virtual host. null: without limit."""

    sessions: Annotated[int, Count()] | None = Field(
        None, description="Sessions at once. One more is refused with an ERROR."
    )
    messages_per_second: Annotated[int, Count()] | None = Field(
        None, description="SEND frames per second, all its sessions together. Beyond it they are read more slowly."
    )
    bytes_per_second: Annotated[int, Size()] | None = Field(
        None, description="Bytes of frames per second, all its sessions together. Beyond it they are read more slowly."
    )
    burst: Annotated[float, Duration(zero=False)] = Field(
        2.0, description="How many seconds' worth may come at once after a rest."
    )


class Limits(Group):
    """What clients of a virtual host may have and do."""

    sessions: Annotated[int, Count()] | None = Field(
        None, description="Sessions of the virtual host at once. null: without limit."
    )
    user: Limit = Field(default_factory=Limit, description="For each login.")
    address: Limit = Field(default_factory=Limit, description="For each client address.")

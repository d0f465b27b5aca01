"""Operations that a session asks the broker for, and events: their outcome, and what happens at the broker.

A session has one operation under way, or several SUBSCRIBEs; later frames wait. Publishing, acknowledging and
delivering are not operations: they are bytes, and never wait. The ``purpose`` of an operation is the request in words,
for an ERROR.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from gateway.config.virtual_host import VirtualHost
from gateway.errors import StompError
from gateway.session.queues import QueueSpec
from gateway.session.subscription import Subscribe as Subscribe  # noqa: PLC0414 - it is one of these, too
from gateway.session.subscription import Subscription


@dataclass(frozen=True, slots=True)
class Login:
    """Let the broker decide on credentials and virtual host.

    Answered by LoggedIn, LoginFailed or LoginNotTried.
    """

    settings: VirtualHost
    login: bytes
    passcode: bytes
    is_from_file: bool = False
    """Whether the passcode is the operator's, from the configuration, and the client did not send it."""

    purpose: ClassVar[str] = "to check the login"

    def __repr__(self) -> str:
        # The passcode stays out of every log and traceback.
        return f"Login({self.settings.name!r}, {self.login!r})"


@dataclass(frozen=True, slots=True)
class PreparePublisher:
    """Open the session's publishing channel if there is none yet, switch on confirms, declare a queue.

    With ``is_fresh`` the channel is replaced first, once nothing on it waits for a confirm, unless it was replaced a
    moment ago. Answered by PublisherPrepared or OperationFailed.
    """

    confirms: bool
    queue: QueueSpec | None
    is_fresh: bool = False

    @property
    def purpose(self) -> str:
        """See at the top."""
        name = "" if self.queue is None else f", and to declare the queue '{self.queue.name}'"
        return f"to open a channel for messages{name}"


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Cancel a subscription's consumer, return unsettled messages, and delete a queue if one is named.

    With ``keeps_up_to`` the client may still settle the deliveries up to this tag: only later ones are returned, and
    the channel stays until this is requested again without it.

    Answered by Unsubscribed or OperationFailed.
    """

    subscription: Subscription
    delete_queue: str | None
    keeps_up_to: int | None = None

    @property
    def purpose(self) -> str:
        """See at the top."""
        return f"to end the subscription to '{self.subscription.destination.decode(errors='replace')}'"


@dataclass(frozen=True, slots=True)
class RenewToken:
    """Let the broker decide on another token, and use it on all links of the session.

    Answered by TokenRenewed or TokenRefused.
    """

    token: bytes = field(repr=False)

    purpose: ClassVar[str] = "to check the new token"


@dataclass(frozen=True, slots=True)
class CloseUpstream:
    """Close every channel of the session in an orderly way. Answered by UpstreamClosed."""

    purpose: ClassVar[str] = "to close the session's channels"


@dataclass(frozen=True, slots=True)
class FindQueues:
    """Find out whether one of these queues, by their names, is deleted or away. Answered by QueuesFound."""

    queues: tuple[str, ...]

    purpose: ClassVar[str] = "to find a queue"


@dataclass(frozen=True, slots=True)
class Recover:
    """Bring back what went with a lost link, as soon as a broker answers. Answered by Recovered or RecoveryFailed.

    ``subscriptions`` are to consume again, in this order. Then, if ``publishing``, a publishing channel with confirms
    is opened, and ``queues`` are declared there. All of it may be empty: an operation was interrupted before it began.
    ``is_again``: nothing has succeeded since the last time, so the time goes on that this may take. ``has_refused``:
    the broker did not take messages on the old publishing channel, and may still confirm others there.
    ``is_refusal``: nothing is lost but the publishing channel, which the broker closed because of a message that is
    not published again.
    """

    subscriptions: tuple[Subscribe, ...] = ()
    publishing: bool = False
    queues: tuple[QueueSpec, ...] = ()
    is_again: bool = False
    has_refused: bool = False
    is_refusal: bool = False

    purpose: ClassVar[str] = "to bring back what was lost with a link"


Operation = Login | PreparePublisher | Subscribe | Unsubscribe | RenewToken | CloseUpstream | FindQueues | Recover


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The broker accepted the login.

    ``broker_version`` is empty when the broker does not tell it. ``renews_tokens``: whether the client may renew a
    token, and the session ends with it.
    """

    broker_version: tuple[int, ...] = ()
    renews_tokens: bool = False


@dataclass(frozen=True, slots=True)
class LoginFailed:
    """The broker did not accept the login. Code and text are its own."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class LoginNotTried:
    """The broker was not asked about the login, or it does not count. ``is_logged``: the server has logged the refusal.

    No broker could be asked, there are as many sessions as allowed, or too many logins from the address have failed.
    """

    error: StompError
    is_logged: bool = True


@dataclass(frozen=True, slots=True)
class PublisherPrepared:
    """The publishing channel: its number, the largest frame in bytes, whether it confirms, and whether it is new."""

    channel: int
    frame_max: int
    confirms: bool
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscription's consumer runs, on this queue."""

    subscription: Subscription
    queue_name: str


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The subscription's consumer is gone."""


@dataclass(frozen=True, slots=True)
class TokenRenewed:
    """Every link of the session uses the new token."""


@dataclass(frozen=True, slots=True)
class TokenRefused:
    """The new token is not used anywhere. ``text`` says why, fit for the client."""

    text: str


@dataclass(frozen=True, slots=True)
class UpstreamClosed:
    """All channels of the session are closed; the broker has handled everything sent on them."""


@dataclass(frozen=True, slots=True)
class OperationFailed:
    """The broker refused the operation under way and closed its channel.

    ``of_publish``: it refused a message sent before on the same channel, and not the operation. ``may_pass``: because
    a node of the broker is away, or still starts.
    """

    code: int
    text: str
    of_publish: bool = False
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class ChannelClosed:
    """The broker closed the publishing channel of the session, or a subscription's, without being asked.

    ``of_declaration``: it refused to declare a queue for a message, and ``may_pass`` tells that this queue is away.
    """

    code: int
    text: str
    publishing: bool
    of_declaration: bool = False
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerCancelled:
    """The broker cancelled the consumer of a subscription."""

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class QueueAway:
    """A subscription has lost its consumer, perhaps because its queue is away. QueueBack follows, or ConsumerCancelled.

    The subscription knows already that its channel is lost.
    """

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class QueueBack:
    """The queue of a subscription is back, and its consumer runs."""

    subscribed: Subscribed

    @property
    def subscription(self) -> Subscription:
        """Which one."""
        return self.subscribed.subscription


@dataclass(frozen=True, slots=True)
class QueuesFound:
    """Whether one of the queues that were asked for is not there: it is away, or deleted."""

    is_any_missing: bool


@dataclass(frozen=True, slots=True)
class AccessRevoked:
    """The broker, asked again, does not let the user consume what a subscription does.

    Without ``subscription`` it does not accept the login any more. ``text`` is the broker's.
    """

    text: str
    subscription: Subscription | None = None


@dataclass(frozen=True, slots=True)
class LinkLost:
    """An AMQP connection of the session ended. ``text`` is the broker's or the gateway's, fit for the client.

    With it went the channels of these subscriptions, and with ``publishing`` the publishing channel.
    """

    code: int
    text: str
    subscriptions: tuple[Subscription, ...] = ()
    publishing: bool = False


@dataclass(frozen=True, slots=True)
class OperationInterrupted:
    """The link was lost, or no broker answered, before the operation under way was answered."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """Everything lost is restored: the subscriptions, and the publishing channel if it was requested."""

    subscribed: tuple[Subscribed, ...] = ()
    publisher: PublisherPrepared | None = None


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """The recovery failed. Without ``code``, because it took too long; else because the broker refused.

    ``is_down``: in the end there was no broker that answered.
    """

    code: int = 0
    text: str = ""
    is_down: bool = False


Event = (
    LoggedIn | LoginFailed | LoginNotTried | PublisherPrepared | Subscribed
    | Unsubscribed | TokenRenewed | TokenRefused | UpstreamClosed | OperationFailed | ChannelClosed | ConsumerCancelled
    | AccessRevoked | QueueAway | QueueBack | QueuesFound | LinkLost | OperationInterrupted | Recovered | RecoveryFailed
)  # fmt: skip

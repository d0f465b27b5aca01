"""Operations, which a session asks of the broker, and events: answers to operations, and what happens at the broker.

A session has one operation under way, or several SUBSCRIBEs, while later frames wait. Publishing, acknowledging and
delivering are not operations: they are bytes and never wait. ``purpose`` says in an ERROR what the broker was asked.
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
    """Let the broker check credentials and virtual host. Answered by LoggedIn, LoginFailed or LoginNotTried.

    ``is_from_file``: the passcode is not the client's, but the operator's, from the configuration.
    """

    settings: VirtualHost
    login: bytes
    passcode: bytes
    is_from_file: bool = False

    purpose: ClassVar[str] = "to check the login"

    def __repr__(self) -> str:
        # Keeps the passcode out of logs and tracebacks.
        return f"Login({self.settings.name!r}, {self.login!r})"


@dataclass(frozen=True, slots=True)
class PreparePublisher:
    """Open the publishing channel if there is none, switch on confirms if asked to, and declare the queue if given.

    With ``is_fresh``, the channel is first replaced, after all its messages are confirmed, unless it is itself a recent
    replacement. Answered by PublisherPrepared or OperationFailed.
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
    """Cancel a subscription's consumer, requeue its unsettled messages, and delete the queue, if one is named.

    With ``keeps_up_to``, the client may still settle the deliveries up to this tag. Only later ones are requeued, and
    the channel stays open until another Unsubscribe without ``keeps_up_to``.

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
    """Let the broker check a new token, and use it on the session's links, unless their token lasts longer.

    Answered by TokenRenewed or TokenRefused.
    """

    token: bytes = field(repr=False)

    purpose: ClassVar[str] = "to check the new token"


@dataclass(frozen=True, slots=True)
class CloseUpstream:
    """Close every channel of the session, after the broker has handled everything on it. Answered by UpstreamClosed."""

    purpose: ClassVar[str] = "to close the session's channels"


@dataclass(frozen=True, slots=True)
class FindQueues:
    """Find out whether any of the queues with these names is deleted or away. Answered by QueuesFound."""

    queues: tuple[str, ...]

    purpose: ClassVar[str] = "to find a queue"


@dataclass(frozen=True, slots=True)
class Recover:
    """Restore what was lost with a link, as soon as a broker answers. Answered by Recovered or RecoveryFailed.

    All may be empty, if a link was lost before an operation began.

    Args:
        subscriptions: are to consume again, in this order.
        publishing: afterwards open a publishing channel with confirms.
        queues: are declared on that channel.
        is_again: nothing has succeeded since the last recovery, so its deadline still holds.
        has_refused: the broker refused messages on the old publishing channel, and may still confirm others there.
        is_refusal: only the publishing channel is lost, because of a message that is not published again.
    """

    subscriptions: tuple[Subscribe, ...] = ()
    publishing: bool = False
    queues: tuple[QueueSpec, ...] = ()
    is_again: bool = False
    has_refused: bool = False
    is_refusal: bool = False

    purpose: ClassVar[str] = "to restore what was lost with a link"


Operation = Login | PreparePublisher | Subscribe | Unsubscribe | RenewToken | CloseUpstream | FindQueues | Recover


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The broker accepted the login.

    ``broker_version``: empty if the broker does not tell it. ``renews_tokens``: the client may renew its token, and the
    session ends when the token expires.
    """

    broker_version: tuple[int, ...] = ()
    renews_tokens: bool = False


@dataclass(frozen=True, slots=True)
class LoginFailed:
    """The broker refused the login, with this reply code and text."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class LoginNotTried:
    """The gateway refused the login, whatever the broker says. ``is_logged``: the server has logged the refusal.

    No broker could be asked, a limit of sessions is reached, or too many logins from the address have failed.
    """

    error: StompError
    is_logged: bool = True


@dataclass(frozen=True, slots=True)
class PublisherPrepared:
    """The publishing channel is ready. ``frame_max``: the largest frame in bytes, 0 for no limit."""

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
    """The broker accepted the new token. The session's shared links use it, unless their token lasts longer."""


@dataclass(frozen=True, slots=True)
class TokenRefused:
    """The new token was refused and is not used. ``text``: the reason, for the client."""

    text: str


@dataclass(frozen=True, slots=True)
class UpstreamClosed:
    """All channels of the session are closed; the broker has handled everything sent on them."""


@dataclass(frozen=True, slots=True)
class OperationFailed:
    """The broker refused an operation and closed its channel, with this reply code and text.

    ``of_publish``: it refused an earlier message on that channel, and not the operation. ``may_pass``: the reason may
    be temporary, because a node of the broker is away or still starting.
    """

    code: int
    text: str
    of_publish: bool = False
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class ChannelClosed:
    """The broker closed the publishing channel (``publishing``) or a subscription's, without being asked.

    ``of_declaration``: because it refused to declare the queue of a message. ``may_pass``: because that queue is away.
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
    """A subscription lost its consumer, perhaps because its queue is away. QueueBack or ConsumerCancelled follows.

    ``Subscription.lost`` has been called.
    """

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class QueueBack:
    """The queue of a subscription is back, and its consumer runs."""

    subscribed: Subscribed

    @property
    def subscription(self) -> Subscription:
        """The subscription."""
        return self.subscribed.subscription


@dataclass(frozen=True, slots=True)
class QueuesFound:
    """The answer to FindQueues: whether any of the queues is away or deleted."""

    is_any_missing: bool


@dataclass(frozen=True, slots=True)
class AccessRevoked:
    """On a recheck, the broker refused the subscription's queue to the user; without ``subscription``, the login.

    ``text``: the broker's reply text.
    """

    text: str
    subscription: Subscription | None = None


@dataclass(frozen=True, slots=True)
class LinkLost:
    """A link of the session is lost, with the channels of these subscriptions, and with ``publishing`` that channel.

    ``text``: the reason for the client, in the broker's or the gateway's words.
    """

    code: int
    text: str
    subscriptions: tuple[Subscription, ...] = ()
    publishing: bool = False


@dataclass(frozen=True, slots=True)
class OperationInterrupted:
    """The link was lost, or no broker answered, before the answer to the operation."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """Everything lost is restored: the subscriptions, and the publishing channel if it was requested."""

    subscribed: tuple[Subscribed, ...] = ()
    publisher: PublisherPrepared | None = None


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """The recovery failed: the broker refused something, or without ``code``, it took too long.

    ``is_down``: no broker answered at the end.
    """

    code: int = 0
    text: str = ""
    is_down: bool = False


Event = (
    LoggedIn | LoginFailed | LoginNotTried | PublisherPrepared | Subscribed
    | Unsubscribed | TokenRenewed | TokenRefused | UpstreamClosed | OperationFailed | ChannelClosed | ConsumerCancelled
    | AccessRevoked | QueueAway | QueueBack | QueuesFound | LinkLost | OperationInterrupted | Recovered | RecoveryFailed
)  # fmt: skip

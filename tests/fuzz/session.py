"""The target for the session: clients' bytes and a broker's whims, played on pure sessions and the model broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pamqp import commands

from gateway.config.virtual_host import ConfirmWindow, TransactionLimits, VirtualHost
from gateway.session import ops
from gateway.session.context import Hold
from gateway.stomp.decoder import FrameLimits
from tests.fuzz.client import Client
from tests.fuzz.script import Event, read_script
from tests.fuzz.violation import demand
from tests.support.model_broker import Message, ModelBroker, write_properties

# What a virtual host may want, each without the others.
_FLAVOURS: Final = (
    VirtualHost(name="/"),
    VirtualHost(name="/", conformance="strict"),  # here CONNECT may be left out, too
    VirtualHost(name="/", compatibility="next", hide_server_info=True, default_nack_requeue=False),
    VirtualHost(name="/", subscription_queues="exclusive", selectors=True),
)
# Limits that an input can reach.
_TIGHT: Final[dict[str, Any]] = dict(
    max_frame_size=600,
    confirm_window=ConfirmWindow(messages=4, bytes=200),
    auto_ack_window=4,
    transactions=TransactionLimits(max_open=2, max_actions=3, max_bytes=400, max_age=60.0),
)

# How many clients may speak in one input, and how often anything may happen before it must have come to rest.
_CLIENTS: Final = 4
_ROUNDS: Final = 2000
_LONGEST_READ: Final = 65_536

_KEYS: Final = (("", "q"), ("", "test"), ("amq.topic", "a.b"), ("amq.topic", "t"), ("amq.fanout", ""), ("", "reply"))
_PROPERTIES: Final = tuple(
    write_properties(properties)
    for properties in (
        commands.Basic.Properties(),
        commands.Basic.Properties(delivery_mode=2, content_type="text/plain", reply_to="amq.gen-1"),
        commands.Basic.Properties(
            headers={
                "content-length": "999",
                "message-id": "forged",
                "receipt-id": "r",
                "a:b\n\\": "c:d\r\n",
                "": "",
                "number": 7,
                "table": {"of": ["all", 1]},
                "ack": "forged",
                "none": None,
                "true": True,
            },
            priority=255,
        ),
        commands.Basic.Properties(correlation_id="\0", message_id="\n\n", expiration="1", user_id="guest", app_id=":"),
    )
)


def check_session(data: bytes) -> None:
    """Play an input, with tight limits (odd setting) or those of the default configuration (even), in some flavour.

    Args:
        data: any input.

    Raises:
        ViolationError: a promise of the session is broken.
        Exception: the session raised.
    """
    script = read_script(data)
    stage = _Stage(_FLAVOURS[script.setting // 2 % len(_FLAVOURS)], tight=bool(script.setting & 1))
    for step in script.steps:
        if isinstance(step, Event):
            stage.happen(step)
        else:
            stage.speak(step)
    stage.end()


class _Stage:
    """The broker, and the clients that there are."""

    def __init__(self, flavour: VirtualHost, *, tight: bool) -> None:
        self._tight = tight
        self._settings = flavour.model_copy(update=_TIGHT) if tight else flavour
        self._broker = ModelBroker()
        self._broker.declare("q", durable=True)
        self._broker.declare("full", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        self._clients: dict[int, Client] = {}
        self._numbers = iter(range(1, 1 << 30))
        self._speaking = 0
        self._waits = False
        self._now = 0.0

    def speak(self, data: bytes) -> None:
        """The client says something."""
        self._client().say(data)
        self._go_on()

    def happen(self, event: Event) -> None:
        """Something else happens."""
        action = _ACTIONS.get(event.letter)
        if action is not None:
            action(self, event.argument)
            self._go_on()

    def end(self) -> None:
        """All clients go; what they had goes back to the broker."""
        self._waits = False
        self._go_on()
        for client in self._clients.values():
            client.end()
        self._clients.clear()
        queues = self._broker.queues.values()
        demand(not any(queue.consumers or queue.owner is not None for queue in queues), "nobody leaves anything behind")

    def _client(self) -> Client:
        client = self._clients.get(self._speaking)
        if client is None:
            limits = FrameLimits(frame=300, headers=8, header=100) if self._tight else FrameLimits(frame=64 * 1024)
            read = 100 if self._tight else _LONGEST_READ
            client = Client(
                self._broker, next(self._numbers), self._resolve, limits, read, implicit_connect=self._settings.strict
            )
            self._clients[self._speaking] = client
        return client

    def _resolve(self, host: str | None) -> VirtualHost | None:
        return self._settings if host in (None, "/") else None

    def _go_on(self) -> None:
        """Let everybody go on, the broker too unless it waits to be told, until nothing happens any more."""
        for _ in range(_ROUNDS):
            busy = [client.turn(settles=not self._waits) for client in list(self._clients.values())]
            if not self._waits:
                busy += [client.bridge.step() for client in list(self._clients.values()) if not client.is_over]
            if not any(busy):
                return
        demand(False, "it comes to rest")

    # Events.

    def switch(self, argument: int) -> None:
        self._speaking = argument % _CLIENTS

    def hang_up(self, _: int) -> None:
        client = self._clients.pop(self._speaking, None)
        if client is not None:
            client.end()

    def wait(self, argument: int) -> None:
        self._waits = bool(argument & 1)

    def answer(self, argument: int) -> None:
        client = self._client()
        for _ in range(1 + argument % 8):
            if client.is_over or not client.bridge.step():
                return

    def fail(self, argument: int) -> None:
        self._client().bridge.fail_next(argument)

    def reject(self, argument: int) -> None:
        bridge = self._client().bridge
        bridge.rejects, bridge.newest_first = bool(argument & 1), bool(argument & 2)

    def publish(self, argument: int) -> None:
        properties = _PROPERTIES[argument % len(_PROPERTIES)]
        exchange, key = _KEYS[argument // len(_PROPERTIES) % len(_KEYS)]
        self._broker.route(Message(exchange, key, properties, b"\0" * (argument % 3)))

    def delete(self, argument: int) -> None:
        names = sorted(self._broker.queues)
        self._broker.delete(names[argument % len(names)] if names else "")

    def close_channel(self, argument: int) -> None:
        texts = ("NOT_FOUND - no exchange 'amq.topic' in vhost '/'", "PRECONDITION_FAILED - no", "\udcff'")
        text = texts[argument // 2 % 2]
        self._client().session.handle(ops.ChannelClosed(404 + argument // 4 % 4, text, bool(argument & 1)))

    def lose_link(self, _: int) -> None:
        client = self._client()
        if client.session.login is not None:
            client.bridge.lose_link(541, "INTERNAL_ERROR")

    def stall(self, argument: int) -> None:
        client = self._client()
        if client.is_over:
            return
        client.session.context.client_writable = not argument & 1
        if argument & 1 and argument > 127:
            client.bridge.drop_for_requeue(True)
            client.session.holds.add(Hold.CLIENT_WRITE)
        elif not argument & 1:
            client.session.holds.discard(Hold.CLIENT_WRITE)
            client.bridge.drop_for_requeue(False)

    def settle(self, _: int) -> None:
        self._client().turn(settles=True)

    def hold(self, argument: int) -> None:
        session = self._client().session
        (session.holds.add if argument & 1 else session.holds.discard)(Hold.LINK_WRITE)

    def alarm(self, argument: int) -> None:
        self._client().session.publisher.set_blocked(bool(argument & 1))

    def pass_time(self, argument: int) -> None:
        self._now += argument
        for client in self._clients.values():
            client.session.time_passed(self._now)

    def stop(self, _: int) -> None:
        self._client().session.shut_down()


_ACTIONS: Final[dict[str, Callable[[_Stage, int], None]]] = {
    "c": _Stage.switch,
    "d": _Stage.hang_up,
    "z": _Stage.wait,
    "b": _Stage.answer,
    "f": _Stage.fail,
    "n": _Stage.reject,
    "m": _Stage.publish,
    "x": _Stage.delete,
    "k": _Stage.close_channel,
    "l": _Stage.lose_link,
    "w": _Stage.stall,
    "s": _Stage.settle,
    "o": _Stage.hold,
    "a": _Stage.alarm,
    "t": _Stage.pass_time,
    "q": _Stage.stop,
}

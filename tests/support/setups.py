"""Servers in the configurations that transcripts name as their setup: one broker, and a gateway for each setup.

`SETUPS` describes the setups, and README.md beside the transcripts says how to make them by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Self

from deploy.local.broker import Broker
from gateway.parity.transcript import Setup
from tests.support.erlang_text import formatted
from tests.support.gateway import Address, configuration, gateway_process

DEFAULT_USER: Final = {"login": "somebody", "passcode": "somebodys"}
DEFAULT_VHOST: Final = "elsewhere"
TOPIC_EXCHANGE: Final = "elsewhere.topic"
RESTRICTED: Final = "restricted"

MAY_CONFIGURE: Final = r"^(t-[0-9a-f]+-(own|open|made)|stomp-subscription-.*)$"
MAY_WRITE: Final = r"^(amq\.topic|t-[0-9a-f]+-own|stomp-subscription-.*)$"
MAY_READ: Final = r"^(amq\.topic|t-[0-9a-f]+-(own|open)|stomp-subscription-.*)$"
MAY_TOPIC: Final = r"\.open$"

# The plugin's own application environment, as Erlang writes it.
_PLUGIN: Final[Mapping[Setup, Mapping[str, str]]] = {
    "configured": {
        "implicit_connect": "true",
        "default_user": '[{login, <<"somebody">>}, {passcode, <<"somebodys">>}]',
        "default_vhost": f'<<"{DEFAULT_VHOST}">>',
        "default_topic_exchange": f'<<"{TOPIC_EXCHANGE}">>',
        "default_nack_requeue": "false",
        "hide_server_info": "true",
        "login_timeout": "2000",
    },
    "no-default-user": {"implicit_connect": "true", "default_user": "[]"},
    "restricted-user": {},
}
_USUAL: Final = {
    "implicit_connect": "false",
    "default_user": '[{login, <<"guest">>}, {passcode, <<"guest">>}]',
    "default_vhost": '<<"/">>',
    "default_topic_exchange": '<<"amq.topic">>',
    "default_nack_requeue": "true",
    "hide_server_info": "false",
    "login_timeout": "10000",
}
# The socket of before may still be in use for a moment.
_START: Final = (
    "Start = fun Again(Times) -> case application:start(rabbitmq_stomp) of ok -> ok; "
    "_ when Times > 0 -> timer:sleep(100), Again(Times - 1) end end, ok = Start(50)."
)
_EVERYTHING: Final = {"configure": ".*", "write": ".*", "read": ".*"}
_DEFINITIONS: Final = {
    "vhosts": [{"name": DEFAULT_VHOST}],
    "users": [
        {"name": name, "password": passcode, "tags": ""}
        for name, passcode in ((DEFAULT_USER["login"], DEFAULT_USER["passcode"]), (RESTRICTED, RESTRICTED))
    ],
    "permissions": [
        *({"user": DEFAULT_USER["login"], "vhost": vhost, **_EVERYTHING} for vhost in ("/", DEFAULT_VHOST)),
        {"user": RESTRICTED, "vhost": "/", "configure": MAY_CONFIGURE, "write": MAY_WRITE, "read": MAY_READ},
    ],
    "topic_permissions": [
        {"user": RESTRICTED, "vhost": "/", "exchange": "amq.topic", "write": MAY_TOPIC, "read": MAY_TOPIC}
    ],
    "exchanges": [
        {
            "name": TOPIC_EXCHANGE, "vhost": vhost, "type": "topic", "durable": True, "auto_delete": False,
            "internal": False, "arguments": {},
        }
        for vhost in ("/", DEFAULT_VHOST)
    ],
}  # fmt: skip
_LISTENER: Final = {"tcp": "127.0.0.1:0", "implicit_connect": True}


def _document(setup: Setup, amqp_url: str) -> dict[str, Any]:
    """The gateway's configuration for a setup."""
    if setup == "configured":
        return configuration(
            amqp_url,
            {
                "default_user": DEFAULT_USER,
                "default_topic_exchange": TOPIC_EXCHANGE,
                "default_nack_requeue": False,
                "hide_server_info": True,
            },
            listeners=[{**_LISTENER, "login_timeout": 2}],
            default_vhost=DEFAULT_VHOST,
            virtual_hosts={"/": {}, DEFAULT_VHOST: {}},
        )
    if setup == "no-default-user":
        return configuration(amqp_url, {"default_user": None}, listeners=[_LISTENER])
    return configuration(amqp_url, virtual_hosts={"/": {}, DEFAULT_VHOST: {}})


class Setups:
    """The plugin and a gateway for each setup.

    Args:
        broker: with the plugin. Nothing else may use it, since the plugin has one configuration at a time.
        stack: stops the gateways.
    """

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        self._broker = broker
        self._stack = stack
        self._gateways: dict[Setup, Address] = {}
        self._plugin_setup: Setup | None = None

    @classmethod
    @contextmanager
    def on(cls, broker: Broker) -> Iterator[Self]:
        """Make the users, the virtual host and the exchange that the setups need, and stop the gateways at the end."""
        text = formatted(json.dumps(_DEFINITIONS).encode())
        # All in one rabbitmqctl, which takes a second.
        broker.ctl("eval", f"ok = rabbit_definitions:import_raw({text}).")
        with ExitStack() as stack:
            yield cls(broker, stack)

    @property
    def amqp_url(self) -> str:
        """AMQP URL of the broker, with credentials."""
        return self._broker.amqp_url

    def plugin(self, setup: Setup) -> Address:
        """Configure the plugin and return its address. A change restarts it, which closes its connections."""
        if self._broker.stomp_port is None:
            raise AssertionError("the broker has no STOMP plugin")
        if self._plugin_setup != setup:
            environment = _USUAL | dict(_PLUGIN[setup])
            changes = "".join(
                f"application:set_env(rabbitmq_stomp, {key}, {value}), " for key, value in environment.items()
            )
            self._broker.ctl("eval", f"ok = application:stop(rabbitmq_stomp), {changes}{_START}")
            self._plugin_setup = setup
        return self._broker.host, self._broker.stomp_port

    def gateway(self, setup: Setup) -> Address:
        """Start the gateway for a setup, once, and return its address."""
        if setup not in self._gateways:
            process = self._stack.enter_context(gateway_process(_document(setup, self._broker.amqp_url)))
            self._gateways[setup] = process.address
        return self._gateways[setup]

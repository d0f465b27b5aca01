"""Configurations of brokers as operators have them, and what `stomp-gateway migrate` must make of each.

In the files, FOLDER is the folder that they are written to; it holds `broker.pem`, `broker.key` and `ca.pem`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BrokerFiles:
    """The files of one broker, and what is expected."""

    texts: Mapping[str, str]
    """By the name in the folder."""
    arguments: Sequence[str]
    """The names that are given to the command."""
    listeners: Sequence[str]
    """Addresses of the gateway, in order."""
    code: int = 0
    said: Sequence[str] = ()
    """In the file and on the terminal."""
    lines: Sequence[str] = ()
    """In the file, without indentation and comments."""
    unsaid: Sequence[str] = ()
    upstream: str = "amqp://127.0.0.1:5672"
    judged: bool = False
    """Whether a broker is asked for what it makes of the files, which takes it a second."""
    options: Sequence[str] = ()

    def write(self, folder: Path) -> list[str]:
        """Write the files, and return the arguments for the command."""
        for name, text in self.texts.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("FOLDER", str(folder)))
        return [*(str(folder / name) for name in self.arguments), *self.options]


_TLS = """\
ssl_options.cacertfile = FOLDER/ca.pem
ssl_options.certfile   = FOLDER/broker.pem
ssl_options.keyfile    = FOLDER/broker.key
"""

_DROP_INS = BrokerFiles(
    texts={
        "rabbitmq.conf": "# Defaults; what is ours is in conf.d.\nlog.file.level = info\ninclude conf.d/*.conf\n"
        "include local.conf\n",
        "conf.d/10-listeners.conf": "stomp.listeners.tcp.1 = 127.0.0.1:61613\nstomp.listeners.tcp.2 = 10.0.0.7:61613\n",
        "conf.d/20-users.conf": "include ../users/stomp.conf\n",
        "conf.d/.30-hidden.conf": "stomp.login_timeout = 20000\n",
        "users/stomp.conf": "stomp.default_user = app\nstomp.default_pass = $(<passcode)\nstomp.default_vhost = shop\n",
        "users/passcode": "from a file\n",
    },
    arguments=["rabbitmq.conf"],
    listeners=["127.0.0.1:61613", "10.0.0.7:61613"],
    code=1,
    said=["rabbitmq.conf:4 include: There is no local.conf here, and RabbitMQ passes over what is not there."],
    lines=["login: app", 'passcode: "from a file"', "default_vhost: shop", "login_timeout: 20s"],
    judged=True,
)

_HARDENED = BrokerFiles(
    texts={
        "rabbitmq.conf": f"""\
listeners.tcp = none
listeners.ssl.default = 5671
{_TLS}\
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_options.versions.1 = tlsv1.2
ssl_options.honor_cipher_order = true
ssl_options.ciphers.1 = ECDHE-ECDSA-AES256-GCM-SHA384
ssl_options.ciphers.2 = ECDHE-RSA-AES256-GCM-SHA384
ssl_options.ciphers.3 = ECDHE-RSA-AES128-GCM-SHA256
stomp.listeners.tcp = none
stomp.listeners.ssl.1 = 61614
"""
    },
    arguments=["rabbitmq.conf"],
    listeners=["0.0.0.0:61614", "[::]:61614"],
    lines=[
        'min_version: "1.2"',
        'max_version: "1.2"',
        "ciphers: ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-AES128-GCM-SHA256",
    ],
    unsaid=["ssl_options.ciphers"],
    upstream="amqps://127.0.0.1:5671",
)

_NEWEST_TLS = BrokerFiles(
    texts={
        "rabbitmq.conf": f"""\
{_TLS}\
ssl_options.versions.1 = tlsv1.3
ssl_options.versions.2 = tlsv1.2
ssl_options.ciphers.1 = TLS_AES_256_GCM_SHA384
ssl_options.ciphers.2 = ECDHE-RSA-AES256-GCM-SHA384
ssl_options.ciphers.3 = DHE-RSA-AES256-GCM-SHA384
stomp.listeners.ssl.1 = 127.0.0.1:61614
web_stomp.ssl.port       = 15673
web_stomp.ssl.certfile   = FOLDER/broker.pem
web_stomp.ssl.keyfile    = FOLDER/broker.key
web_stomp.ssl.ciphers.1  = TLS_AES_256_GCM_SHA384
web_stomp.ssl.ciphers.2  = TLS_AES_128_GCM_SHA256
web_stomp.ssl.ciphers.3  = TLS_CHACHA20_POLY1305_SHA256
""",
        "enabled_plugins": "[rabbitmq_management,rabbitmq_prometheus,rabbitmq_stomp,rabbitmq_web_stomp].\n",
    },
    arguments=["rabbitmq.conf", "enabled_plugins"],
    listeners=["0.0.0.0:61613", "[::]:61613", "127.0.0.1:61614", "0.0.0.0:15674", "0.0.0.0:15673"],
    code=1,
    said=[
        "rabbitmq.conf:6 ssl_options.ciphers.1: The gateway cannot offer DHE-RSA-AES256-GCM-SHA384.",
        "rabbitmq.conf:6 ssl_options.ciphers.1: The ciphers of TLS 1.3 cannot be chosen; the gateway offers",
        "admin: The gateway's metrics are at http://127.0.0.1:15693/metrics",
    ],
    lines=["ciphers: ECDHE-RSA-AES256-GCM-SHA384", 'min_version: "1.3"', "admin: 127.0.0.1:15693"],
    unsaid=["web_stomp.ssl.ciphers"],
    judged=True,
)

_OVERRIDDEN = BrokerFiles(
    texts={
        "rabbitmq.conf": "stomp.listeners.tcp.1 = 61613\nstomp.listeners.tcp.2 = 61620\nstomp.default_vhost = a\n",
        "advanced.config": '[{rabbitmq_stomp,\n  [{tcp_listeners, [{"127.0.0.1", 61700}, 61701]},\n'
        '   {default_vhost, <<"b">>}]},\n {rabbit, [{tcp_listeners, [5673]}]}].\n',
    },
    arguments=["advanced.config", "rabbitmq.conf"],
    listeners=["127.0.0.1:61700", "0.0.0.0:61701", "[::]:61701"],
    said=[
        "advanced.config:2 rabbitmq_stomp.tcp_listeners: It replaces rabbitmq.conf:1 stomp.listeners.tcp.1 and 1 more",
        "advanced.config:3 rabbitmq_stomp.default_vhost: It replaces rabbitmq.conf:3 stomp.default_vhost, as in the",
    ],
    lines=["default_vhost: b"],
    upstream="amqp://127.0.0.1:5673",
    judged=True,
)

_TLS_OVERRIDDEN = BrokerFiles(
    texts={
        "rabbitmq.conf": f"{_TLS}ssl_options.verify = verify_peer\nstomp.listeners.ssl.1 = 61614\n",
        "advanced.config": "[{rabbit, [{ssl_options,\n  [{versions, ['tlsv1.2']},\n"
        "   {ciphers, [{ecdhe_rsa,aes_256_gcm,null,sha384}, {ecdhe_rsa,aes_256_cbc,sha384,sha384},\n"
        "    #{key_exchange => rsa, cipher => aes_128_cbc, mac => sha, prf => default_prf},\n"
        '    "ECDHE-RSA-RC4-SHA"]}]}]}].\n',
    },
    arguments=["rabbitmq.conf", "advanced.config"],
    listeners=["0.0.0.0:61613", "[::]:61613", "0.0.0.0:61614", "[::]:61614"],
    code=1,
    said=[
        "advanced.config:1 rabbit.ssl_options: In the broker it replaces all options of rabbitmq.conf, and without a "
        "certificate no TLS listener starts. The gateway takes these as well: rabbitmq.conf:1 ssl_options.cacertfile,",
        "The gateway cannot offer ECDHE-RSA-RC4-SHA. Clients that know no other cipher would fail.",
    ],
    lines=[
        "verify: optional",
        "ciphers: ECDHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-SHA384:AES128-SHA",
        'max_version: "1.2"',
    ],
)

_CLASSIC = BrokerFiles(
    texts={
        "rabbitmq.config": """\
%% Made for 3.6, and never touched since.
[
 {rabbit,
  [{tcp_listeners, [{"127.0.0.1", 5672}]},
   {ssl_options, [{cacertfile, "FOLDER/ca.pem"},
                  {certfile,   "FOLDER/broker.pem"},
                  {keyfile,    "FOLDER/broker.key"},
                  {verify, verify_peer},
                  {fail_if_no_peer_cert, true},
                  {versions, ['tlsv1.2', 'tlsv1.1']},
                  {ciphers, "ECDHE-RSA-AES256-GCM-SHA384:AES256-SHA"}]},
   {loopback_users, []}]},
 {rabbitmq_stomp,
  [{tcp_listeners, []},
   {ssl_listeners, [61614]},
   {default_user, [{login, "app"}, {passcode, "secret"}]},
   {implicit_connect, true}]}
].
"""
    },
    arguments=["rabbitmq.config"],
    listeners=["0.0.0.0:61614", "[::]:61614"],
    code=1,
    said=[
        "rabbitmq.config:10 rabbit.ssl_options.versions: The gateway speaks TLS 1.2 and 1.3 only.",
        "rabbitmqctl list_stomp_connections conn_name ssl_protocol",
    ],
    lines=[
        'max_version: "1.2"',
        "ciphers: ECDHE-RSA-AES256-GCM-SHA384:AES256-SHA",
        "verify: required",
        "implicit_connect: true",
        "loopback_users: []",
    ],
)

_CONTAINER = BrokerFiles(
    texts={
        "rabbitmq.conf": "stomp.listeners.tcp.1 = 61613\nstomp.default_vhost = $(SHOP_VHOST)\n",
        "broker.env": """\
PATH=/opt/rabbitmq/sbin:/usr/bin
# docker exec mq env > broker.env
RABBITMQ_DEFAULT_USER=admin
RABBITMQ_DEFAULT_PASS=correct horse battery
RABBITMQ_DEFAULT_VHOST=shop
RABBITMQ_NODE_PORT=5682
RABBITMQ_ENABLED_PLUGINS=rabbitmq_stomp,rabbitmq_prometheus
RABBITMQ_CONFIG_FILES=/etc/rabbitmq/conf.d
RABBITMQ_ADVANCED_CONFIG_FILE=/etc/rabbitmq/more.config
RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-rabbit log_levels [] -rabbitmq_stomp tcp_listeners [1]
RABBITMQ_LOGS=-
SHOP_VHOST=shop
""",
    },
    arguments=["broker.env", "rabbitmq.conf"],
    listeners=["0.0.0.0:61613", "[::]:61613"],
    code=1,
    said=[
        "broker.env:8 RABBITMQ_CONFIG_FILES: The broker reads /etc/rabbitmq/conf.d, which is not among these files.",
        "broker.env:9 RABBITMQ_ADVANCED_CONFIG_FILE: The broker reads /etc/rabbitmq/more.config",
        "broker.env:10 RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: It has settings on Erlang's command line",
        "broker.env:3 RABBITMQ_DEFAULT_USER: It names the first user in place of guest.",
        "these variables say nothing about the plugins: RABBITMQ_LOGS.",
    ],
    lines=["default_vhost: shop", "admin: 127.0.0.1:15693"],
    unsaid=["correct horse battery"],
    upstream="amqp://127.0.0.1:5682",
)

_COMPOSE = BrokerFiles(
    texts={
        "compose.yaml": """\
services:
  mq:
    image: rabbitmq:3.8-management
    ports: ["5673:5673", "61613:61613"]
    environment:
      RABBITMQ_NODE_PORT: "5673"
      RABBITMQ_NODE_IP_ADDRESS: 10.0.0.7
      RABBITMQ_SSL_CERTFILE: /certs/broker.pem
      RABBITMQ_CONFIG_FILE: /etc/rabbitmq/rabbitmq
    volumes:
      - ./rabbitmq.conf:/etc/rabbitmq/rabbitmq.conf:ro
""",
        "run.sh": "docker run -e RABBITMQ_ENABLED_PLUGINS='rabbitmq_stomp' -e RABBITMQ_HIPE_COMPILE=1 rabbitmq:3.8\n",
        "rabbitmq.conf": "stomp.listeners.tcp.1 = 61613\n",
    },
    arguments=["rabbitmq.conf", "compose.yaml", "run.sh"],
    listeners=["0.0.0.0:61613", "[::]:61613"],
    code=1,
    said=[
        "compose.yaml:8 RABBITMQ_SSL_CERTFILE: Older images make ssl_options of rabbitmq.conf of it",
        "these variables say nothing about the plugins: RABBITMQ_HIPE_COMPILE.",
    ],
    unsaid=["RABBITMQ_CONFIG_FILE:"],
    upstream="amqp://10.0.0.7:5673",
)

_MISPLACED = BrokerFiles(
    texts={
        "rabbitmq.conf": "stomp.listeners.tcp.1 = 61613\n",
        "advanced.config": '[{rabbit, [{implicit_connect, true}, {default_vhost, <<"/">>}]},\n'
        ' {rabbitmq_stomp, [{loopback_users, []},\n  {ws_path, "/x"}]},\n {stomp, [{trailing_lf, false}]}].\n',
    },
    arguments=["rabbitmq.conf", "advanced.config"],
    options=["--lenient"],
    listeners=["0.0.0.0:61613", "[::]:61613"],
    said=[
        "advanced.config:1 rabbit.implicit_connect: It has no effect here: it belongs into {rabbitmq_stomp, [...]}.",
        "advanced.config:2 rabbitmq_stomp.loopback_users: It has no effect here: it belongs into {rabbit, [...]}.",
        "advanced.config:3 rabbitmq_stomp.ws_path: It has no effect here: it belongs into {rabbitmq_web_stomp, [...]}.",
        "advanced.config:4 stomp: It has no effect here: it belongs into {rabbitmq_stomp, [...]}.",
    ],
    lines=["implicit_connect: false"],
    unsaid=["default_vhost: It"],
)

BROKERS = {
    "drop-ins": _DROP_INS,
    "hardened": _HARDENED,
    "newest TLS": _NEWEST_TLS,
    "overridden": _OVERRIDDEN,
    "TLS overridden": _TLS_OVERRIDDEN,
    "classic": _CLASSIC,
    "container": _CONTAINER,
    "compose": _COMPOSE,
    "misplaced": _MISPLACED,
}

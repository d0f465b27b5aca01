"""The whole configuration as frozen, validated values, and its JSON Schema.

A file is validated once, into a `GatewayConfig`. Pydantic records which fields an entry of `virtual_hosts` was given,
so an entry overrides in `defaults` exactly what it mentions. The merged results are kept by every name that a client
may use, and `GatewayConfig.virtual_host` is a dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal, Self, cast

from pydantic import Field, PrivateAttr, model_validator
from pydantic.json_schema import JsonSchemaValue

from gateway.config.addresses import Network, SocketAddress
from gateway.config.base_models import MergeableModel, VirtualHostName, fits_short_string, merge
from gateway.config.listener_settings import AdminSettings, Listener
from gateway.config.scalars import VARIABLE_PATTERN, Count, Duration, Flag, Number, Seconds, SecondsAboveZero
from gateway.config.tls_settings import ServerTls
from gateway.config.virtual_host import Upstream, VirtualHost, VirtualHostEntry, VirtualHostSettings
from gateway.config.worker_count import WorkerCount
from gateway.errors import Mistake

PASS_THROUGH = "*"  # noqa: S105 - no password
"""The key of `virtual_hosts` that stands for every host that is not configured."""


class Logging(MergeableModel):
    """What is logged, and how. Log lines go to standard error."""

    format: Literal["console", "json"] = "console"
    """console is for people, json writes one object per line."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged."""
    lines_per_address: Number | None = 10_000
    """Log lines about the clients of one address in ten seconds. Further ones are counted. null: without limit."""
    repeat_interval: Seconds = 60.0
    """An ERROR that one session gets again is logged once in this time, with the number of times. 0: each time."""


class FailedLoginLimits(MergeableModel):
    """What happens when the broker refuses logins from an address, in windows of time."""

    window: SecondsAboveZero = 60.0
    """How long refused logins count, beginning with the first."""
    delay_after: Annotated[int, Count(least=0)] = 5
    """So many refusals of a login from one address are answered at once."""
    delay: Seconds = 1.0
    """Later ones are answered after this time."""
    per_login: Number | None = 20
    """After so many refusals of a login from one address the broker is not asked about it. null: it always is."""
    per_address: Number | None = 200
    """The same for all logins from one address. null: without limit."""
    lock_out_after: Number | None = None
    """After so many failed logins from one address, those that the broker was not asked about included, the address is
    locked out: its connections are closed as soon as they come. null: never."""
    lock_out_for: SecondsAboveZero = 600.0
    """For how long."""
    lock_out_except: tuple[Network, ...] = (IPv4Network("127.0.0.0/8"), IPv6Network("::1"))
    """Networks that are never locked out, such as those of proxies whose clients all have their address."""


class GatewayConfig(MergeableModel):
    """A whole configuration. `gateway.config.load` reads one from a file, with the checks across keys besides."""

    listeners: tuple[Listener, ...] = Field(
        default_factory=lambda: (Listener(tcp=SocketAddress("127.0.0.1", 61613)),),
        min_length=1,
        json_schema_extra={"type": ["array", "null"]},
    )
    """Where STOMP clients connect."""
    upstream: Upstream = Field(default_factory=Upstream)
    """The broker of all virtual hosts without an own."""
    defaults: VirtualHostSettings = Field(default_factory=VirtualHostSettings)
    """For every virtual host, unless it says otherwise."""
    default_vhost: VirtualHostName = "/"
    """The virtual host of a client whose CONNECT has no host header."""
    local_aliases: Flag = True
    """localhost, 127.0.0.1, ::1 and the machine's own names mean default_vhost, where no virtual host has that name or
    alias, and there is none with the name "*"."""
    virtual_hosts: Mapping[VirtualHostName, VirtualHostEntry] = Field(
        default_factory=lambda: {"/": VirtualHostEntry()}, json_schema_extra={"type": ["object", "null"]}
    )
    """Virtual hosts by the name that clients give in CONNECT's host header. The key "*" stands for every other name,
    which is passed to the broker as it is."""
    failed_logins: FailedLoginLimits = Field(default_factory=FailedLoginLimits)
    """What slows down who guesses passcodes."""
    admin: AdminSettings = Field(default_factory=AdminSettings)
    """Metrics, health, the API and the status page: an address, or more, or off."""
    logging: Logging = Field(default_factory=Logging)
    """What is logged, and how."""
    drain_delay: Seconds = 0.0
    """On SIGTERM, how long the gateway goes on as before, except that /readyz is 503, for load balancers."""
    drain_spread: Seconds = 10.0
    """After that, the time over which sessions are ended: a hundred a second, or more if this would be too short. At
    most half of drain_timeout."""
    drain_timeout: Seconds = 30.0
    """After drain_delay, how long sessions may take to end in good order, drain_spread included."""
    workers: Annotated[int, WorkerCount()] = 1
    """Processes that serve clients, each on a core of its own. auto: one for each core that the gateway may use, also
    under a CPU limit of its container. More than one need Linux."""
    worker_timeout: Annotated[float, Duration(least=2.0)] = 30.0
    """With several workers, how long one may show no sign of life: one that hangs is killed, and another takes its
    place. At least 2 seconds."""

    _warnings: tuple[Mistake, ...] = PrivateAttr(())
    _by_name: dict[str, VirtualHost] = PrivateAttr(default_factory=dict)
    _by_host: dict[str, VirtualHost] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _lists_left_empty(cls, value: object) -> object:
        """A key with nothing under it, as after commenting its lines out, counts as absent."""
        if not isinstance(value, dict):
            return value
        return {k: v for k, v in value.items() if v is not None or k not in ("listeners", "virtual_hosts")}

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        for name, entry in self.virtual_hosts.items():
            resolved = self._by_name[name] = self._merged(name, entry)
            if name != PASS_THROUGH:
                self._by_host[name] = resolved
            for alias in entry.aliases:
                self._by_host.setdefault(alias, resolved)
        return self

    def _merged(self, name: str, entry: VirtualHostEntry) -> VirtualHost:
        settings = merge(self.defaults, entry)
        return VirtualHost.model_construct(
            name=name,
            amqp_vhost=entry.amqp_vhost or name,
            upstream=merge(self.upstream, entry.upstream) if entry.upstream else self.upstream,
            **{field: getattr(settings, field) for field in VirtualHostSettings.model_fields},
        )

    @property
    def warnings(self) -> tuple[Mistake, ...]:
        """What the file says that counts, but cannot work or does nothing."""
        return self._warnings

    def with_warnings(self, warnings: Iterable[Mistake]) -> Self:
        """The same, with these warnings."""
        self._warnings = tuple(warnings)
        return self

    def virtual_host(self, host: str | None) -> VirtualHost | None:
        """The virtual host that a CONNECT frame's `host` header, unescaped, means; without one `default_vhost`.

        This is the configured one of that name or alias (names are compared exactly), else with the key `"*"` one of
        that very name, else None: the client is to be refused.
        """
        wanted = self.default_vhost if host is None else host
        # Each login asks. As an attribute pydantic looks it up in Python, past an exception.
        by_host: dict[str, VirtualHost] = (self.__pydantic_private__ or {})["_by_host"]
        found = by_host.get(wanted)
        return found if found is not None else self._pass_through(wanted)

    def _pass_through(self, host: str) -> VirtualHost | None:
        model = self._by_name.get(PASS_THROUGH)
        if model is None or not host or not fits_short_string(host):
            return None
        amqp_vhost = host if model.amqp_vhost == PASS_THROUGH else model.amqp_vhost
        return model.model_copy(update={"name": host, "amqp_vhost": amqp_vhost})

    def server_tls(self) -> Iterator[tuple[tuple[str | int, ...], ServerTls]]:
        """The TLS settings toward clients and operators, each with its place."""
        for position, listener in enumerate(self.listeners):
            if listener.tls is not None:
                yield ("listeners", position, "tls"), listener.tls
        if self.admin.tls is not None:
            yield ("admin", "tls"), self.admin.tls

    def resolved_virtual_hosts(self) -> Iterator[VirtualHost]:
        """Every entry of `virtual_hosts` with the defaults merged in; `"*"` under that name."""
        yield from self._by_name.values()


def json_schema() -> JsonSchemaValue:
    """The schema as JSON-ready values (JSON Schema 2020-12)."""
    schema = cast(JsonSchemaValue, _adapted(GatewayConfig.model_json_schema(mode="validation")))
    entry = schema["$defs"][VirtualHostEntry.__name__]
    for name, field in entry["properties"].items():
        # What a virtual host does not say comes from `defaults`, not from the built-in value.
        if name not in VirtualHostEntry.__annotations__:
            field.pop("default", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "stomp-gateway configuration"}


def _adapted(node: object) -> object:
    """Let a variable stand for a word from a fixed list, and drop the titles that only repeat a key."""
    if isinstance(node, list):
        return [_adapted(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    adapted = {key: _adapted(value) for key, value in node.items() if key != "title" or not isinstance(value, str)}
    if isinstance(description := adapted.get("description"), str):
        adapted["description"] = " ".join(description.split())  # without the line breaks of docstrings
    if "enum" in adapted:
        words = cast(list[object], adapted.pop("enum"))
        # YAML 1.1, and Helm with it, reads a bare off as false.
        choices = {"enum": [*words, False] if "off" in words else words}
        adapted.pop("type", None)
        adapted["anyOf"] = [choices, {"type": "string", "pattern": VARIABLE_PATTERN}]
    return adapted

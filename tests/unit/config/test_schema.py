"""The JSON Schema for editors says about a file what the loader says."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.config.loader import parse
from gateway.config.model import json_schema
from gateway.errors import ConfigError

CONFIG_FILES = sorted((Path(__file__).parents[3] / "config").glob("*.yaml"))

GOOD = [
    "",
    "listeners:\nvirtual_hosts:\ndefaults:\nupstream:\nlogging:",
    "listeners: [{tcp: '[::1]:1', login_timeout: 500ms, max_header_length: 1KiB}, {tcp: a:0, login_timeout: 0.5}]",
    "upstream: {urls: [amqp://a, amqps://b:1], heartbeat: 0, connect_timeout: 1h, tls: {ca_file: null, verify: true}}",
    "upstream: {heartbeat: 1min, tls: }",
    "defaults: {default_user: null, links: dedicated, max_frame_size: 1, client_buffer: 1.5KiB}",
    "defaults: {default_user: {login: a, passcode: b, passcode_file: null}}",
    "defaults: {confirm_window: , transactions: {max_age: 10min, max_bytes: 64MiB}, auto_ack_window: 65535}",
    "virtual_hosts: {/: , orders: {aliases: [a, b], amqp_vhost: /o, upstream: {urls: [amqp://x]}, login_cache: 0}}",
    "virtual_hosts: {/: {upstream: null, amqp_vhost: null, default_user: {login: a, passcode: b}}, '*': {}}",
    "logging: {format: json, level: debug}\ndrain_timeout: 0",
    "listeners: [{tcp: a:1, allowed_networks: [10.0.0.0/8, 192.0.2.7, '::1'], denied_networks: ['${NETWORK}']}]",
    "admin: 0.0.0.0:1",
    "admin: off",
    "admin: 'off'",
    "admin: ",
    "admin: {address: null, users: [{login: a, passcode: b}], allowed_hosts: [a]}",
    "listeners: [{websocket: a:1, path: /stomp, frame: binary, allowed_origins: ['https://a']}]",
    "defaults: {prefetch: {default: 1, max: null}, limits: {user: {sessions: 1, bytes_per_second: 1MiB}}}",
    "logging: {format: '${FORMAT}'}\ndrain_timeout: ${SECONDS}\ndefaults: {default_nack_requeue: '${SWITCH}'}",
    "listeners: [{tcp: '${HOST}:${SECONDS}', backlog: '${SECONDS}'}]\nupstream: {urls: ['${URL}']}",
]
SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
ENVIRONMENT = {"FORMAT": "json", "SECONDS": "5", "SWITCH": "false", "HOST": "h", "URL": "amqp://h", "NETWORK": "::/0"}

BAD = [
    "- a",
    "listeners: []",
    "listeners: {tcp: a:1}",
    "listeners: [{}]",
    "listeners: [{tcp: 61613}]",
    "listeners: [{tcp: ':1'}]",
    "listeners: [{tcp: a:1, backlog: 0}]",
    "listeners: [{tcp: a:1, backlog: 1.5}]",
    "listeners: [{tcp: a:1, allowed_networks: 10.0.0.0/8}]",
    "listeners: [{tcp: a:1, allowed_networks: [example.org]}]",
    "listeners: [{tcp: a:1, denied_networks: [10]}]",
    "upstream: {urls: []}",
    "upstream: {urls: amqp://a}",
    "upstream: {urls: ['amqp://a:b@c']}",
    "upstream: {urls: [amqp://a/b]}",
    "upstream: {urls: [http://a]}",
    "upstream: {heartbeat: 1.5}",
    "upstream: {heartbeat: 65536}",
    "upstream: {connect_timeout: 0}",
    "upstream: {tls: {verify: maybe}}",
    "upstream: {nonsense: 1}",
    "defaults: {links: both}",
    "defaults: {default_user: guest}",
    "defaults: {default_user: {login: a}}",
    "defaults: {default_user: {login: a, passcode: }}",
    "defaults: {default_user: {login: '', passcode: a}}",
    "defaults: {default_user: {login: a, passcode: 5}}",
    "defaults: {default_user: {login: a, passcode: b, passcode_file: c}}",
    "defaults: {max_frame_size: 4MB}",
    "defaults: {max_frame_size: true}",
    "defaults: {auto_ack_window: 0}",
    "defaults: {default_nack_requeue: 1}",
    "defaults: {transactions: {max_age: 10mins}}",
    "defaults: {aliases: []}",
    "default_vhost: ",
    "default_vhost: ''",
    "virtual_hosts: []",
    "virtual_hosts: {/: {aliases: [1]}}",
    "virtual_hosts: {/: {aliases: a}}",
    "virtual_hosts: {/: 5}",
    "logging: {level: loud}",
    "admin: on",
    "admin: somewhere",
    "admin: {address: a}",
    "defaults: {prefetch: {max: 0}}",
    "drain_timeout: -1",
    "drain_timeout: soon",
]


def document(text: str) -> Any:  # noqa: ANN401 - whatever YAML holds
    return yaml.safe_load(text)


@pytest.mark.parametrize("text", GOOD)
def test_what_the_loader_accepts_the_schema_accepts(text: str) -> None:
    parse(text, environment=ENVIRONMENT)
    assert VALIDATOR.is_valid(document(text))


@pytest.mark.parametrize("text", BAD)
def test_what_has_the_wrong_shape_both_refuse(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text)
    assert not VALIDATOR.is_valid(document(text))


@pytest.mark.parametrize("file", CONFIG_FILES, ids=lambda file: str(os.path.basename(file)))
def test_the_schema_accepts_the_files_that_we_ship(file: Path) -> None:
    assert VALIDATOR.is_valid(document(file.read_text()))


def test_every_key_is_described() -> None:
    schema = json_schema()
    parts = [schema, *schema["$defs"].values()]
    bare = [name for part in parts for name, shape in part["properties"].items() if not shape.get("description")]
    assert bare == []


def test_the_schema_claims_no_default_where_the_defaults_section_decides() -> None:
    entry = json_schema()["$defs"]["VirtualHostEntry"]["properties"]
    assert "default" not in entry["links"]
    assert json_schema()["$defs"]["VirtualHostSettings"]["properties"]["links"]["default"] == "shared"

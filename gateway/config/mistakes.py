"""Mistakes while they are collected, and pydantic's errors in plain words."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.addresses import without_passcodes
from gateway.config.base_models import MergeableModel
from gateway.config.model import GatewayConfig

Trail = tuple[str | int, ...]
"""The way to a place in the file: keys and list positions from the top."""

_OTHER_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "ssl": ("tls",), "address": ("tcp",), "bind": ("tcp", "address"), "port": ("tcp", "address"),
    "host": ("tcp", "address", "urls", "virtual_hosts"), "hosts": ("virtual_hosts", "urls"), "url": ("urls",),
    "broker": ("upstream",), "brokers": ("upstream", "urls"), "rabbitmq": ("upstream",), "servers": ("urls",),
    "vhost": ("amqp_vhost", "virtual_hosts"), "vhosts": ("virtual_hosts",), "user": ("login", "default_user"),
    "username": ("login",), "password": ("passcode",), "password_file": ("passcode_file",), "cert": ("cert_file",),
    "certfile": ("cert_file",), "certificate": ("cert_file",), "key": ("key_file",), "keyfile": ("key_file",),
    "ca": ("ca_file",), "cacertfile": ("ca_file",), "rules": ("destination_rules",),
    "exchange": ("default_topic_exchange",), "from": ("destination",),
}  # fmt: skip
"""Our keys by the names that other servers' configurations have for them."""

_EXAMPLES: Final[Mapping[str, str]] = {
    "listeners": "- tcp: 127.0.0.1:61613",
    "upstream.tls": "tls: {ca_file: broker-ca.pem}",
    "tls": "tls: {cert_file: gateway.pem, key_file: gateway.key}",
    "certificate_login": "certificate_login: {name: common_name}",
    "upstream": "upstream: {urls: [amqp://127.0.0.1:5672]}",
    "logging": "logging: {level: info}",
    "default_user": 'default_user: {login: app, passcode: "${PASSCODE}"}; null if there is none',
    "certificate_users.users": 'users: {app.example.org: {login: app, passcode: "${PASSCODE}"}}',
    "admin.users": '- {login: app, passcode: "${PASSCODE}"}',
    "everyone": 'everyone: {login: app, passcode: "${PASSCODE}"}',
    "journal": "journal: {level: off}",
    "ship": "ship: {to: /srv/journals}",
    "virtual_hosts": "virtual_hosts: {/: {aliases: [stomp.example.org]}}",
    "defaults": "defaults: {links: shared}",
    "prefetch": "prefetch: {default: 20}",
    "limits.user": "user: {sessions: 200}",
    "limits.address": "address: {sessions: 50}",
    "failed_logins": "failed_logins: {per_login: 20, per_address: null}",
    "confirm_window": "confirm_window: {messages: 10000}",
    "transactions": "transactions: {max_open: 100}",
    "limits": "limits: {sessions: 5000}",
    "destination_rules": "- {action: deny, destination: /topic/*}",
    "archives.user": "user: {login: operator, passcode_file: FILE}",
    "archives": "- {stream: orders, destinations: [/topic/orders.#], user: {login: operator, passcode_file: FILE}}",
    "queue_arguments": "- {destination: /queue/*, arguments: {x-queue-type: quorum}}",
    "arguments": "arguments: {x-queue-type: quorum}",
    "": "upstream: {urls: [amqp://127.0.0.1:5672]}",
}
"""What a mapping looks like, by the end of the path of its key; the first that fits counts."""

BRACES_ADVICE: Final = 'For a variable write "${NAME}", and put text with a comma or braces in quotes.'
"""For text in braces that is not meant as a mapping."""

# How like two words are: from 0 to 1.
_SIMILAR: Final = 0.6
_SAME_WORD: Final = 0.85

_PLAIN_STEP = re.compile(r"[^\s.\[\]\"']+")


@dataclass(frozen=True)
class Finding:
    """A mistake before its place is turned into text."""

    trail: Trail
    sentence: str
    suggestion: str | None = None
    about: tuple[Trail, ...] = ()
    """Other places that it follows from. If one of them cannot be used, the finding says nothing."""


def mapping(value: object) -> dict[str, Any]:
    """A part of a file's tree if it is a mapping, else an empty one: validation reports what has the wrong shape."""
    return value if isinstance(value, dict) else {}


def path_text(trail: Trail) -> str:
    """A trail as users read it, `virtual_hosts.orders.upstream.urls[0]`; without the passcode of a URL as a key."""
    text = ""
    for step in trail:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_STEP.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return without_passcodes(text)


def meant_key(key: str, known: Collection[str], likeness: float = _SIMILAR) -> str | None:
    """The known key that an unknown one probably stands for, by its spelling or by what other servers call it."""
    near = closest(key, known, likeness)
    others = _OTHER_WORDS.get(key.lower().replace("-", "_"), ())
    return near or next((other for other in others if other in known), None)


def closest(word: str, choices: Iterable[str], likeness: float = _SIMILAR) -> str | None:
    """The choice that `word` probably misspells, if any is near enough."""
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), list(choices), n=1, cutoff=likeness)
    return matches[0] if matches else None


def model_at(trail: Trail) -> type[BaseModel] | None:
    """The model whose keys may stand at a place in the file; None where no mapping of known keys belongs."""
    annotation = _annotation_at(trail)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def may_stand_alone(trail: Trail) -> bool:
    """Whether a key in braces without a colon, as in `{/, orders}`, may be meant as a key without a value.

    Where no mapping belongs, validation says so.
    """
    around, model = model_at(trail[:-1]), model_at(trail)
    if around is not None:
        return trail[-1] in around.model_fields
    is_named_freely = get_origin(_annotation_at(trail[:-1])) is Mapping
    return not is_named_freely or (model is not None and issubclass(model, MergeableModel))


def _annotation_at(trail: Trail) -> object:
    annotation: object = GatewayConfig
    for step in trail:
        annotation = _annotation_below(annotation, step)
    return annotation


def all_keys(model: type[BaseModel] = GatewayConfig, prefix: str = "") -> Iterator[str]:
    """Every key that a file may hold, as paths: `listeners[].tcp`, `virtual_hosts.*.aliases` and so on."""
    for name, field in model.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        yield path
        annotation = _bare(field.annotation)
        if get_origin(annotation) is tuple:
            annotation, path = _annotation_below(annotation, 0), f"{path}[]"
        elif get_origin(annotation) is Mapping:
            annotation, path = _annotation_below(annotation, "*"), f"{path}.*"
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from all_keys(annotation, path)


def _annotation_below(annotation: object, step: str | int) -> object:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(step))
        return _bare(field.annotation) if field else None
    arguments = get_args(annotation)
    return _bare(arguments[0 if isinstance(step, int) else -1]) if arguments else None


def _bare(annotation: object) -> object:
    """Without `Annotated` and without `| None`."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _bare(next(option for option in get_args(annotation) if option is not type(None)))
    return annotation


def findings_of(error: ValidationError, tree: object) -> Iterator[Finding]:
    """Pydantic's errors about a file's tree as findings. No sentence repeats a value from the file."""
    for detail in error.errors(include_url=False, include_input=True):
        trail: Trail = tuple(step for step in detail["loc"] if step != "[key]")
        if detail["type"] == "too_short" and detail["input"]:
            continue  # pydantic counts valid entries only; each invalid one has a mistake of its own
        if detail["type"] == "extra_forbidden":
            yield _unknown_key(trail, mapping(value_at(tree, trail[:-1])))
        else:
            yield _finding(trail, detail)


def value_at(tree: object, trail: Trail) -> object:
    """What a file's tree holds at a place; None if nothing is there."""
    for step in trail:
        if isinstance(tree, dict):
            tree = tree.get(step)
        elif isinstance(tree, list) and isinstance(step, int) and step < len(tree):
            tree = tree[step]
        else:
            return None
    return tree


def _finding(trail: Trail, detail: ErrorDetails) -> Finding:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "missing":
        return _missing_key(trail)
    if detail["input"] is None and kind in ("stomp_gateway", "literal_error", "string_type"):
        return Finding(trail, "This key has no value.", "Give it one, or delete the line to have the default.")
    if kind == "stomp_gateway":
        return Finding(trail, detail["msg"], context.get("suggestion"))
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        value = detail["input"]
        near = closest(value, choices) if isinstance(value, str) and re.search("[A-Za-z]", value) else None
        return Finding(trail, f"This is one of {', '.join(choices)}.", f"Did you mean {near}?" if near else None)
    if kind in ("model_type", "model_attributes_type", "mapping_type", "dict_type"):
        return Finding(trail, "A mapping belongs here: lines of the form key: value.", _example(trail))
    return Finding(trail, *_shape_mistake(kind, detail))


def _example(trail: Trail) -> str | None:
    keys = ".".join(step for step in trail if isinstance(step, str))
    found = next((text for end, text in _EXAMPLES.items() if f".{keys}".endswith(f".{end}")), None)
    return f"For example {found}." if found else None


def _shape_mistake(kind: str, detail: ErrorDetails) -> tuple[str, str | None]:
    if kind in ("tuple_type", "list_type"):
        return _list_mistake(detail["input"])
    if kind == "too_short" and isinstance(detail["input"], list):
        return "This list needs at least one entry.", None
    if kind in ("too_short", "string_too_short"):
        return "This must not be empty.", None
    if kind == "string_type":
        return _text_mistake(detail["input"])
    return f"{detail['msg']}.", None


def _list_mistake(value: object) -> tuple[str, str]:
    if value is None:
        return "A list belongs here, and this key has no value.", "For an empty list write []."
    if isinstance(value, dict) and any(key.startswith("-") for key in value):
        return "A list belongs here.", "Write a space after each dash."
    if not isinstance(value, dict) or all(inner is None for inner in value.values()):
        return "A list belongs here.", "Write it as [one, two], or one line for each, starting with a dash."
    return "A list belongs here, and this is a mapping.", "Write a dash and a space before the first key of each entry."


def _text_mistake(value: object) -> tuple[str, str | None]:
    if isinstance(value, (int, float, bool)):
        return "Text is needed here, and YAML reads this as a number or a switch.", "Put it in quotes."
    if isinstance(value, dict):
        return "Text is needed here, and this is a mapping.", BRACES_ADVICE
    return "Text is needed here.", None


def _unknown_key(trail: Trail, beside: Mapping[str, object]) -> Finding:
    """What is said of an unknown key with these keys beside it."""
    key, model = str(trail[-1]), model_at(trail[:-1])
    known = list(model.model_fields) if model else []
    near, homes = meant_here(key, known), _homes(key)
    if near:
        already = " That key stands here already." if near in beside else ""
        return Finding(trail, "There is no such key here.", f"Did you mean {near}?{already}")
    if homes:
        return Finding(trail, "There is no such key here.", f"It belongs {_home(homes)}.")
    return Finding(trail, "There is no such key here.", f"Keys that may stand here: {', '.join(known)}.")


def meant_here(key: str, known: Collection[str]) -> str | None:
    """The known key that an unknown one stands for; None if there is none, or if the unknown one belongs elsewhere."""
    return meant_key(key, known, _SAME_WORD if _homes(key) else _SIMILAR)


def _homes(key: str) -> list[str]:
    """Where a key may stand."""
    return [path.rpartition(".")[0] for path in all_keys() if path.rpartition(".")[2].removesuffix("[]") == key]


def _home(homes: list[str]) -> str:
    named = [home for home in homes if "*" not in home] or homes
    return " or ".join(f"under {home}" if home else "at the top of the file" for home in named)


def _missing_key(trail: Trail) -> Finding:
    if trail[-1] == "passcode":
        return Finding(trail[:-1], "A passcode is missing.", "Add passcode, or passcode_file and a file that holds it.")
    return Finding(trail[:-1], f"The key {trail[-1]} is missing.")

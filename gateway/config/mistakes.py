"""Mistakes while they are collected, and pydantic's errors in plain words."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.model import GatewayConfig

Trail = tuple[str | int, ...]
"""The way to a place in the file: keys and list positions from the top."""

_PLAIN_STEP = re.compile(r"[^\s.\[\]\"']+")


@dataclass(frozen=True)
class Finding:
    """A mistake before its place is turned into text."""

    trail: Trail
    sentence: str
    suggestion: str | None = None


def mapping(value: object) -> dict[str, Any]:
    """A part of a file's tree if it is a mapping, else an empty one: validation reports what has the wrong shape."""
    return value if isinstance(value, dict) else {}


def path_text(trail: Trail) -> str:
    """A trail as users read it: `virtual_hosts.orders.upstream.urls[0]`."""
    text = ""
    for step in trail:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_STEP.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


def closest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that `word` probably misspells, if any is near enough."""
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), list(choices), n=1, cutoff=0.6)
    return matches[0] if matches else None


def model_at(trail: Trail) -> type[BaseModel] | None:
    """The model whose keys may stand at a place in the file; None where no mapping of known keys belongs."""
    annotation: object = GatewayConfig
    for step in trail:
        annotation = _annotation_below(annotation, step)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


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


def findings_of(error: ValidationError) -> Iterator[Finding]:
    """Pydantic's errors as findings. No sentence repeats a value from the file."""
    for detail in error.errors(include_url=False, include_input=True):
        trail: Trail = tuple(step for step in detail["loc"] if step != "[key]")
        if detail["type"] == "too_short" and detail["input"]:
            continue  # pydantic counts valid entries only; each invalid one has a mistake of its own
        yield _finding(trail, detail)


def _finding(trail: Trail, detail: ErrorDetails) -> Finding:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(trail)
    if kind == "missing":
        return _missing_key(trail)
    if detail["input"] is None and kind in ("stomp_gateway", "literal_error", "string_type"):
        return Finding(trail, "This key has no value.", "Give it one, or delete the line to have the default.")
    if kind == "stomp_gateway":
        return Finding(trail, detail["msg"], context.get("suggestion"))
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        near = closest(detail["input"], choices) if isinstance(detail["input"], str) else None
        return Finding(trail, f"This is one of {', '.join(choices)}.", f"Did you mean {near}?" if near else None)
    return Finding(trail, *_shape_mistake(kind, detail))


def _shape_mistake(kind: str, detail: ErrorDetails) -> tuple[str, str | None]:
    if kind in ("model_type", "model_attributes_type", "mapping_type", "dict_type"):
        return "A mapping belongs here: lines of the form key: value.", None
    if kind in ("tuple_type", "list_type"):
        return "A list belongs here.", "Write it as [one, two], or one line for each, starting with a dash."
    if kind == "too_short" and isinstance(detail["input"], list):
        return "This list needs at least one entry.", None
    if kind in ("too_short", "string_too_short"):
        return "This must not be empty.", None
    if kind == "string_type":
        return _text_mistake(detail["input"])
    return f"{detail['msg']}.", None


def _text_mistake(value: object) -> tuple[str, str | None]:
    if isinstance(value, (int, float, bool)):
        return "Text is needed here, and YAML reads this as a number or a switch.", "Put it in quotes."
    return "Text is needed here.", None


def _unknown_key(trail: Trail) -> Finding:
    key, model = str(trail[-1]), model_at(trail[:-1])
    known = list(model.model_fields) if model else []
    near = closest(key, known)
    if near:
        return Finding(trail, "There is no such key here.", f"Did you mean {near}?")
    homes = [path.rpartition(".")[0] for path in all_keys() if path.rpartition(".")[2] == key]
    if homes:
        return Finding(trail, "There is no such key here.", f"It belongs {_home(homes)}.")
    return Finding(trail, "There is no such key here.", f"Keys that may stand here: {', '.join(known)}.")


def _home(homes: list[str]) -> str:
    named = [home for home in homes if "*" not in home] or homes
    return " or ".join(f"under {home}" if home else "at the top of the file" for home in named)


def _missing_key(trail: Trail) -> Finding:
    if trail[-1] == "passcode":
        return Finding(trail[:-1], "A passcode is missing.", "Add passcode, or passcode_file and a file that holds it.")
    return Finding(trail[:-1], f"The key {trail[-1]} is missing.")

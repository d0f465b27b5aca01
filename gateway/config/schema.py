"""The JSON Schema of configuration files, for editors.

It accepts what the loader accepts as far as a schema can tell: a value with a `${VARIABLE}` in it is taken on trust,
and the checks across keys and of files are the loader's alone.
"""

from __future__ import annotations

from typing import cast

from pydantic.json_schema import JsonSchemaValue

from gateway.config.model import GatewayConfig, VirtualHostEntry
from gateway.config.quantities import VARIABLE_PATTERN

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> JsonSchemaValue:
    """The schema as JSON-ready values (JSON Schema 2020-12)."""
    schema = cast(JsonSchemaValue, _adapted(GatewayConfig.model_json_schema(mode="validation")))
    entry = schema["$defs"][VirtualHostEntry.__name__]
    for name, field in entry["properties"].items():
        # What a virtual host does not say comes from `defaults`, not from the built-in value.
        if name not in VirtualHostEntry.__annotations__:
            field.pop("default", None)
    return {"$schema": _DIALECT, **schema, "title": "stomp-gateway configuration"}


def _adapted(node: object) -> object:
    """Let a variable stand for a word from a fixed list, and drop the titles that only repeat a key."""
    if isinstance(node, list):
        return [_adapted(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    adapted = {key: _adapted(value) for key, value in node.items() if key != "title" or not isinstance(value, str)}
    if "enum" in adapted:
        choices = {"enum": adapted.pop("enum")}
        adapted.pop("type", None)
        adapted["anyOf"] = [choices, {"type": "string", "pattern": VARIABLE_PATTERN}]
    return adapted

"""Enough of JSON Schema 2020-12 to judge documents by the configuration's schema.

A keyword that is not known here is an error, so a richer schema cannot pass unnoticed.
"""

import re
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
}
_REMARKS = {"$schema", "$defs", "title", "description", "default", "format", "writeOnly"}


def accepts(schema: Schema, value: object, root: Schema | None = None) -> bool:
    """Whether a value is valid under a schema."""
    top = schema if root is None else root
    return all(
        _keyword(keyword, argument, schema, value, top)
        for keyword, argument in schema.items()
        if keyword not in _REMARKS
    )


def _keyword(keyword: str, argument: Any, schema: Schema, value: Any, root: Schema) -> bool:  # noqa: ANN401, C901, PLR0911, PLR0912 - a table of cases
    match keyword:
        case "$ref":
            return accepts(root["$defs"][argument.removeprefix("#/$defs/")], value, root)
        case "type":
            return any(_TYPES[name](value) for name in ([argument] if isinstance(argument, str) else argument))
        case "enum":
            return value in argument
        case "anyOf":
            return any(accepts(option, value, root) for option in argument)
        case "oneOf":
            return sum(accepts(option, value, root) for option in argument) == 1
        case "pattern":
            return not isinstance(value, str) or re.search(argument, value) is not None
        case "minLength":
            return not isinstance(value, str) or len(value) >= argument
        case "minItems":
            return not isinstance(value, list) or len(value) >= argument
        case "minimum":
            return not _TYPES["number"](value) or value >= argument
        case "exclusiveMinimum":
            return not _TYPES["number"](value) or value > argument
        case "maximum":
            return not _TYPES["number"](value) or value <= argument
        case "items":
            return not isinstance(value, list) or all(accepts(argument, entry, root) for entry in value)
        case "required":
            return not isinstance(value, dict) or all(key in value for key in argument)
        case "properties":
            return not isinstance(value, dict) or all(
                accepts(argument[key], entry, root) for key, entry in value.items() if key in argument
            )
        case "propertyNames":
            return not isinstance(value, dict) or all(accepts(argument, key, root) for key in value)
        case "additionalProperties":
            known = schema.get("properties", {})
            extra = [entry for key, entry in value.items() if key not in known] if isinstance(value, dict) else []
            return not extra if argument is False else all(accepts(argument, entry, root) for entry in extra)
    raise NotImplementedError(keyword)

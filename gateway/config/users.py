"""A user of a broker, with the passcode."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, GetJsonSchemaHandler, SecretStr
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.config.parts import Part, Text


class User(Part):
    """A user of the broker, with the passcode."""

    login: Text = Field(description="The broker's user.")
    passcode: Annotated[SecretStr, Field(strict=True, min_length=1)] = Field(
        description="Its passcode. Better ${A_VARIABLE} than the passcode itself. This or passcode_file."
    )
    passcode_file: Path | None = Field(
        None,
        description="A file that holds the passcode; one line end after it is left out. "
        "Relative to this file's directory. This or passcode.",
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        shape = handler.resolve_ref_schema(handler(schema))
        shape["required"] = ["login"]
        given = {"type": "string"}
        # Either may be present as null, which counts as absent; never both with a value.
        shape["oneOf"] = [{"required": [key], "properties": {key: given}} for key in ("passcode", "passcode_file")]
        for key in ("passcode", "passcode_file"):
            described = shape["properties"][key]
            shape["properties"][key] = {
                "type": ["string", "null"],
                "minLength": 1,
                "description": described["description"],
            }
        return shape

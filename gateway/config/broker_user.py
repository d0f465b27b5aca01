"""A user of the broker, wherever a configuration names one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, GetJsonSchemaHandler, SecretStr
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.config.base_models import ConfigModel, Text


class User(ConfigModel):
    """A user of the broker, with the passcode."""

    login: Text
    """The broker's user."""
    passcode: Annotated[SecretStr, Field(strict=True, min_length=1)]
    """Its passcode. Better ${A_VARIABLE} than the passcode itself. This or passcode_file."""
    passcode_file: Path | None = None
    """A file that holds the passcode; one line end after it is left out. Relative to this file's directory. This or
    passcode."""

    @property
    def credentials(self) -> tuple[bytes, bytes]:
        """Login and passcode as STOMP and AMQP carry them (UTF-8)."""
        return self.login.encode(), self.passcode.get_secret_value().encode()

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        shape = handler.resolve_ref_schema(handler(schema))
        shape["required"] = ["login"]
        # Either may be present as null, which counts as absent; never both with a value.
        keys = ("passcode", "passcode_file")
        shape["oneOf"] = [{"required": [key], "properties": {key: {"type": "string"}}} for key in keys]
        for key in keys:
            description = shape["properties"][key]["description"]
            shape["properties"][key] = {"type": ["string", "null"], "minLength": 1, "description": description}
        return shape

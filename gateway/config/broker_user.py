"""Users: of the broker, wherever a configuration names one, and of the admin listener."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, SecretStr, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.config.base_models import ConfigModel, Text
from gateway.config.scalars import mistake

# What htpasswd -B and other tools make with bcrypt: a version, the cost as a power of two, salt and hash.
_BCRYPT: Final = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
# With more, one wrong passcode would keep a core busy for seconds.
_HIGHEST_COST: Final = 15


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
        return _one_of(super().__get_pydantic_json_schema__(schema, handler), "passcode", "passcode_file")


def _bcrypt_hash(value: SecretStr) -> SecretStr:
    found = _BCRYPT.fullmatch(value.get_secret_value())
    if found is None:
        raise mistake("This is no hash of bcrypt.", "htpasswd -nB LOGIN asks for the passcode, and prints LOGIN:HASH.")
    if int(found[1]) > _HIGHEST_COST:
        raise mistake(
            f"The cost of this hash is above {_HIGHEST_COST}.", "Make it anew, with htpasswd -nB -C 10 LOGIN."
        )
    return value


class AdminUser(ConfigModel):
    """A user of the admin listener."""

    login: Text
    """The user's name. It is the gateway's own, not RabbitMQ's."""
    passcode: Annotated[SecretStr, Field(strict=True, min_length=1)] | None = None
    """The passcode. Better a hash of it. This, passcode_file or passcode_hash."""
    passcode_file: Path | None = None
    """A file that holds the passcode; one line end after it is left out. Relative to this file's directory."""
    passcode_hash: Annotated[SecretStr, Field(strict=True), AfterValidator(_bcrypt_hash)] | None = None
    """A hash of the passcode by bcrypt, as htpasswd -nB prints it after the colon."""
    role: Literal["full", "read_only", "metrics"] = "full"
    """full: everything. read_only: look at everything and change nothing, also no trace. metrics: /metrics only, for
    Prometheus."""

    @model_validator(mode="before")
    @classmethod
    def _has_one_passcode(cls, value: object) -> object:
        if isinstance(value, dict):
            given = [key for key in ("passcode", "passcode_hash") if value.get(key) is not None]
            if len(given) > 1:
                raise mistake("There are two passcodes here, and only one can count.", "Delete one of them.")
            if not given and "login" in value:
                raise mistake("A passcode is missing.", "Add passcode_hash, passcode_file or passcode.")
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        keys = ("passcode", "passcode_file", "passcode_hash")
        return _one_of(super().__get_pydantic_json_schema__(schema, handler), *keys)


def _one_of(shape: JsonSchemaValue, *keys: str) -> JsonSchemaValue:
    """The schema of a user who has exactly one of these keys. The others may be present as null."""
    shape["required"] = ["login"]
    shape["oneOf"] = [{"required": [key], "properties": {key: {"type": "string"}}} for key in keys]
    for key in keys:
        description = shape["properties"][key]["description"]
        shape["properties"][key] = {"type": ["string", "null"], "minLength": 1, "description": description}
    return shape

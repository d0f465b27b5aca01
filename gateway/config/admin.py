"""The admin listener's configuration: metrics, health, the API and the status page."""

from __future__ import annotations

from pydantic import Field, GetJsonSchemaHandler, TypeAdapter, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.config.addresses import SocketAddress
from gateway.config.listeners import ServerTls
from gateway.config.parts import Group, Text
from gateway.config.users import User

DEFAULT_ADDRESS = SocketAddress("127.0.0.1", 15692)


class Admin(Group):
    """Where operators look in: only an address, or more than that, or `off`."""

    address: SocketAddress | None = Field(
        DEFAULT_ADDRESS, description="Address and port, host:port. Port 0 takes a free one. null: no admin listener."
    )
    users: tuple[User, ...] = Field(
        (),
        description="Who may look in and close sessions, by HTTP Basic. Empty: everybody who can connect may look in, "
        "and close sessions only from this machine itself.",
    )
    tls: ServerTls | None = Field(None, description="Speak HTTPS. null: plain HTTP.")
    allowed_hosts: tuple[Text, ...] = Field(
        (),
        description="Names by which browsers may reach it, besides IP addresses and localhost. "
        "Any other Host header is refused, so that no foreign web page can look in.",
    )

    @model_validator(mode="before")
    @classmethod
    def _only_an_address(cls, value: object) -> object:
        if value is False or value == "off":  # YAML reads a bare off as false
            return {"address": None}
        return {"address": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        shape = super().__get_pydantic_json_schema__(schema, handler)
        shape["type"] = ["object", "null", "string", "boolean"]
        shape["pattern"] = f"^off$|{TypeAdapter(SocketAddress).json_schema()['pattern']}"
        shape["not"] = {"const": True}
        return shape

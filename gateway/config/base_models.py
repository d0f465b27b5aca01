"""The base classes of the configuration's models, and the kinds of text that they have in common.

Neither these nor the models touch a disk: validation asks the `ConfigFiles` in its context about files.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    GetPydanticSchema,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from gateway.config.scalars import mistake

if TYPE_CHECKING:
    from gateway.config.config_files import ConfigFiles

MAX_SHORT_STRING = 255
"""Bytes in an AMQP short string, which is how a virtual host's name travels (AMQP 0-9-1, 4.2.5.3)."""


T = TypeVar("T")
ModelT = TypeVar("ModelT", bound="MergeableModel")


class ConfigModel(BaseModel):
    """Base of all models: frozen, and strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def changed_keys(self) -> list[str]:
        """The keys that a file gives another value than the built-in one, in a fixed order."""
        fields = type(self).model_fields
        return [
            key
            for key in sorted(self.model_fields_set)
            if getattr(self, key) != fields[key].get_default(call_default_factory=True, validated_data={})
        ]

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Docstrings of attributes are the descriptions. Pydantic itself would read them at each start."""
        shape = handler.resolve_ref_schema(handler(schema))
        for owner in cls.__mro__[: cls.__mro__.index(ConfigModel)]:
            for name, text in _attribute_docstrings(owner):
                shape["properties"][name].setdefault("description", text)
        return shape


def _attribute_docstrings(owner: type) -> Iterator[tuple[str, str]]:
    definition = cast("ast.ClassDef", ast.parse(inspect.getsource(owner)).body[0])
    for attribute, text in pairwise(definition.body):
        match attribute, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                yield name, inspect.cleandoc(docstring)


class MergeableModel(ConfigModel):
    """A model whose keys are all optional. An empty one (`null` in YAML) sets nothing; see `merge`."""

    @model_validator(mode="before")
    @classmethod
    def _null_sets_nothing(cls, value: object) -> object:
        return {} if value is None else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        shape = super().__get_pydantic_json_schema__(schema, handler)
        shape["type"] = ["object", "null"]
        return shape


def merge(below: ModelT, above: MergeableModel) -> ModelT:
    """`below` with every key that `above` sets, if it has that key too; models inside are merged in turn."""
    changes: dict[str, object] = {}
    for name in above.model_fields_set & type(below).model_fields.keys():
        new, old = getattr(above, name), getattr(below, name)
        both = isinstance(new, MergeableModel) and isinstance(old, MergeableModel)
        changes[name] = merge(old, new) if both else new
    return below.model_copy(update=changes)


def fits_short_string(name: str) -> bool:
    """Whether a name can travel as an AMQP short string."""
    try:
        return len(name.encode()) <= MAX_SHORT_STRING
    except UnicodeEncodeError:  # a lone surrogate, from bytes that were not UTF-8
        return False


def _virtual_host_name(name: str) -> str:
    if not fits_short_string(name):
        raise mistake(f"A virtual host's name has at most {MAX_SHORT_STRING} bytes.")
    return name


def made_from_text(kind: type[T], make: Callable[[str], T], text_of: Callable[[T], str]) -> GetPydanticSchema:
    """Marks a field whose value is of another type than the file's text. A value of that type is taken as it is.

    ``make`` gets a text that is not empty, and raises `mistake` for one that does not fit. ``text_of`` is for JSON.
    """

    def read(value: object, text: core_schema.ValidatorFunctionWrapHandler) -> T:
        return value if isinstance(value, kind) else make(text(value))

    def schema(_source: object, handler: Callable[[object], CoreSchema]) -> CoreSchema:
        as_text = core_schema.plain_serializer_function_ser_schema(text_of, when_used="json")
        return core_schema.no_info_wrap_validator_function(read, handler(Text), serialization=as_text)

    return GetPydanticSchema(schema)


def _name(value: object, kind: str = "file") -> str:
    if not isinstance(value, str) or not value:
        raise mistake(f"The name of a {kind} is needed here.")
    return value


def _files(info: ValidationInfo) -> ConfigFiles:
    return cast("ConfigFiles", info.context)


def directory_of(value: object, info: ValidationInfo) -> Path:
    """The path of a directory that a file names; relative ones begin at the file."""
    return _files(info).path(_name(value, "directory"))


def socket_file(value: object, info: ValidationInfo) -> Path:
    """The path of a Unix-domain socket that a file names."""
    return _files(info).socket(_name(value))


def _file_by(check: Callable[[ConfigFiles, str], Path]) -> BeforeValidator:
    def checked(value: object, info: ValidationInfo) -> Path:
        return check(_files(info), _name(value))

    return BeforeValidator(checked, json_schema_input_type=str)


def _key_file(value: object, info: ValidationInfo) -> Path:
    files, certificate = _files(info), info.data.get("cert_file")
    file = files.key(_name(value))
    # Without a certificate beside it, `merged_contradictions` compares the key with the one in `upstream.tls`.
    if certificate is not None:
        files.check_pair(certificate, file)
    return file


Text = Annotated[str, Field(strict=True, min_length=1)]
EncodedText = Annotated[bytes, made_from_text(bytes, str.encode, bytes.decode)]
"""A text that STOMP and AMQP carry as UTF-8: the value is those bytes."""
VirtualHostName = Annotated[Text, AfterValidator(_virtual_host_name)]

Directory = Annotated[Path, BeforeValidator(directory_of, json_schema_input_type=str)]
"""A directory, which need not exist."""
ReadableFile = Annotated[Path, _file_by(lambda files, name: files.readable(name))]
CertificateFile = Annotated[Path, _file_by(lambda files, name: files.certificates(name))]
RevocationFile = Annotated[Path, _file_by(lambda files, name: files.revocations(name))]
KeyFile = Annotated[Path, BeforeValidator(_key_file, json_schema_input_type=str)]
"""The private key of the field `cert_file`, which must come before this one."""

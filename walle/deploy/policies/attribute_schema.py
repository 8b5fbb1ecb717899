"""Attributes of devices that rules may name, with their types, as the cloud's owner declares them in a small file.

    [attributes]
    os = "string"
    memory_mb = "int"
    battery = "double"
    is_member = "bool"

    [uploaded]
    age_group = "string"

A profile carries the values of the first section, of the device (its system, its memory) and of its user (a group, an
age). Those of the second are uploaded to the cloud (`walle.deploy.policies.uploaded_attributes`): a rule names them
`uploaded.age_group`, and what a profile says by such a name is ignored. A value of another type than the declared one
counts as missing, and so does a text of more than MAX_VALUE_CHARS characters.
"""

import dataclasses
import enum
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.errors import DeployError
from walle.protocol import Attribute, Profile

APP_VERSION = "app_version"  # a column of every rule, of type string
UPLOADED = "uploaded."  # begins the names of columns that the cloud knows, whatever a profile says
MAX_ATTRIBUTES = 200
MAX_TEXT_BYTES = 1 << 16
MAX_VALUE_CHARS = 512  # limit of a text that rules compare: it bounds what a rule's evaluation costs
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Words that CEL's grammar reserves: they cannot be names of columns.
_RESERVED = re.compile(
    "as|break|const|continue|else|false|for|function|if|import|in|let|loop|namespace|null|package|return|true|var|void"
    "|while"
)
_SECTIONS = {"attributes": "", "uploaded": UPLOADED}  # sections of the file; the prefix of their columns' names


class SchemaError(DeployError):
    """A file of attributes that cannot be used. `where` is the file, `what` is wrong with it."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)
        self.where = where
        self.what = what

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class ColumnType(enum.StrEnum):
    """Type of an attribute; `double` takes whole numbers of a profile too."""

    STRING = "string"
    INT = "int"
    DOUBLE = "double"
    BOOL = "bool"

    @property
    def words(self) -> str:
        """The type in words, with the bound of its values."""
        return f"string with at most {MAX_VALUE_CHARS} characters" if self is ColumnType.STRING else self.value

    def take(self, value: object) -> Attribute | None:
        """Return a profile's value as one of this type, None where it is of another or cannot be one."""
        match self:
            case ColumnType.STRING:
                return value if isinstance(value, str) and _is_text(value) else None
            case ColumnType.INT:
                return value if type(value) is int and -(1 << 63) <= value < 1 << 63 else None
            case ColumnType.BOOL:
                return value if isinstance(value, bool) else None
            case ColumnType.DOUBLE:
                if type(value) is int:
                    return float(value) if abs(value) < 1 << 1000 else None
                return value if isinstance(value, float) and math.isfinite(value) else None


def _is_text(value: str) -> bool:
    """Return whether a text is not too long, and has no lone surrogates, which JSON can carry and CEL cannot."""
    if len(value) > MAX_VALUE_CHARS:
        return False
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


type Columns = tuple[tuple[str, ColumnType], ...]
"""Columns that a rule names, by name, with their types; without `app_version`."""

type Schema = Mapping[str, ColumnType]
"""Declared columns by name: an attribute of profiles by its own, an uploaded one with `UPLOADED` before it."""


@dataclasses.dataclass(frozen=True)
class JoinedProfile(Profile):
    """A profile with what was uploaded of its device or user, by the names of columns.

    `sources` says by which id, `device_id` or an attribute of the profile, where that was asked for.
    """

    uploaded: Mapping[str, Attribute] = dataclasses.field(default_factory=dict)
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)


def attributes_of(profile: Profile) -> tuple[Mapping[str, Attribute], Mapping[str, Attribute]]:
    """Return the attributes that a profile says, and those that were uploaded: none for a profile without them."""
    return profile.attributes, profile.uploaded if isinstance(profile, JoinedProfile) else {}


def value_of(profile: Profile, column: str) -> object:
    """Return the value of a column, of any type; None where it is missing."""
    if column == APP_VERSION:
        return profile.app_version
    said, uploaded = attributes_of(profile)
    return (uploaded if column.startswith(UPLOADED) else said).get(column)


def uploaded_columns(schema: Schema) -> dict[str, ColumnType]:
    """Return the declared attributes that are uploaded, by their names in a table."""
    return {name.removeprefix(UPLOADED): kind for name, kind in schema.items() if name.startswith(UPLOADED)}


def parse_schema(text: str, where: str = "attributes.toml") -> Schema:
    """Return the declared attributes.

    Raises:
        SchemaError: the text is not such a file; the message names the attribute.
    """
    try:
        table = tomllib.loads(text)
    except ValueError as error:
        raise SchemaError(where, f"is not TOML: {error}") from error
    unknown = sorted(table.keys() - _SECTIONS.keys())
    if unknown:
        what = f"has {unknown[0]!r}; attributes are declared in the sections [attributes] and [uploaded]"
        raise SchemaError(where, what)
    schema: dict[str, ColumnType] = {}
    for section, prefix in _SECTIONS.items():
        declared: Any = table.get(section, {})
        if not isinstance(declared, dict):
            raise SchemaError(where, f'[{section}] must be a section, with a line such as: os = "string"')
        for name, kind in declared.items():
            if not is_attribute_name(name):
                what = "is not a name (letters, digits and _, not __ first, 64 at most, no word of CEL)"
                raise SchemaError(where, f"{name[:100]!r} {what}")
            if name == APP_VERSION:
                raise SchemaError(where, f"{name} is declared always: it is the profile's app version, a string")
            if name == UPLOADED[:-1]:
                raise SchemaError(where, f"{name} is the prefix of uploaded attributes, and cannot be an attribute")
            if kind not in list(ColumnType):
                types = ", ".join(f'"{one}"' for one in ColumnType)
                raise SchemaError(where, f"{name} is of type {str(kind)[:100]!r}; the types are {types}")
            schema[prefix + name] = ColumnType(kind)
    if len(schema) > MAX_ATTRIBUTES:
        raise SchemaError(where, f"declares {len(schema)} attributes; {MAX_ATTRIBUTES} is the limit")
    return schema


def is_attribute_name(name: str) -> bool:
    """Return whether `name` may name an attribute."""
    return _NAME.fullmatch(name) is not None and not name.startswith("__") and not _RESERVED.fullmatch(name)


def read_schema(path: Path) -> Schema:
    """Return the attributes that a file declares; none where there is no file.

    Raises:
        SchemaError: the file cannot be read or used.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SchemaError(path.name, f"cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_TEXT_BYTES:
        raise SchemaError(path.name, f"is of {len(data)} bytes; {MAX_TEXT_BYTES} is the limit")
    try:
        return parse_schema(data.decode(), path.name)
    except UnicodeDecodeError as error:
        raise SchemaError(path.name, "is not UTF-8") from error

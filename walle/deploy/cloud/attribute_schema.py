"""Attributes of devices that rules may name, with their types, as the cloud's owner declares them in a small file.

    [attributes]
    os = "string"
    memory_mb = "int"
    battery = "double"
    is_member = "bool"

A profile carries the values, of the device (its system, its memory) and of its user (a group, an age). A value of
another type than the declared one counts as missing.
"""

import enum
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.errors import DeployError
from walle.protocol import Attribute

APP_VERSION = "app_version"  # a column of every rule, of type string
MAX_ATTRIBUTES = 200
MAX_TEXT_BYTES = 1 << 16
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Words that CEL's grammar reserves: they cannot be names of columns.
_RESERVED = re.compile(
    "as|break|const|continue|else|false|for|function|if|import|in|let|loop|namespace|null|package|return|true|var|void"
    "|while"
)


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

    def take(self, value: object) -> Attribute | None:
        """Return a profile's value as one of this type, None where it is of another or cannot be one."""
        match self:
            case ColumnType.STRING:
                return value if isinstance(value, str) and (value.isascii() or _is_text(value)) else None
            case ColumnType.INT:
                return value if type(value) is int and -(1 << 63) <= value < 1 << 63 else None
            case ColumnType.BOOL:
                return value if isinstance(value, bool) else None
            case ColumnType.DOUBLE:
                if type(value) is int:
                    return float(value) if abs(value) < 1 << 1000 else None
                return value if isinstance(value, float) and math.isfinite(value) else None


def _is_text(value: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON can carry and CEL cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


type Columns = tuple[tuple[str, ColumnType], ...]
"""Columns that a rule names, by name, with their types; without `app_version`."""

type Schema = Mapping[str, ColumnType]


def parse_schema(text: str, where: str = "attributes.toml") -> Schema:
    """Return the declared attributes.

    Raises:
        SchemaError: the text is not such a file; the message names the attribute.
    """
    try:
        table = tomllib.loads(text)
    except ValueError as error:
        raise SchemaError(where, f"is not TOML: {error}") from error
    unknown = sorted(table.keys() - {"attributes"})
    if unknown:
        raise SchemaError(where, f"has {unknown[0]!r}; attributes are declared in the section [attributes]")
    declared: Any = table.get("attributes", {})
    if not isinstance(declared, dict):
        raise SchemaError(where, '[attributes] must be a section, with a line such as: os = "string"')
    if len(declared) > MAX_ATTRIBUTES:
        raise SchemaError(where, f"declares {len(declared)} attributes; {MAX_ATTRIBUTES} is the most")
    schema = {}
    for name, kind in declared.items():
        if not _NAME.fullmatch(name) or name.startswith("__") or _RESERVED.fullmatch(name):
            raise SchemaError(
                where, f"{name[:100]!r} is not a name (letters, digits and _, not __ first, 64 at most, no word of CEL)"
            )
        if name == APP_VERSION:
            raise SchemaError(where, f"{APP_VERSION} is declared always: it is the profile's app version, a string")
        if kind not in list(ColumnType):
            types = ", ".join(f'"{one}"' for one in ColumnType)
            raise SchemaError(where, f"{name} is of type {str(kind)[:100]!r}; the types are {types}")
        schema[name] = ColumnType(kind)
    return schema


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
        raise SchemaError(path.name, f"is of {len(data)} bytes; {MAX_TEXT_BYTES} is the most")
    try:
        return parse_schema(data.decode(), path.name)
    except UnicodeDecodeError as error:
        raise SchemaError(path.name, "is not UTF-8") from error

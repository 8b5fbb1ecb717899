"""Columns of features in a table: the fields of their payloads, flattened.

A field of a table in a payload is a column, `payload.item.price` of {"item": {"price": 5}}; a dot or backslash in a key
has a backslash before it. Lists, and tables without fields, are JSON text. Any other payload is the column
`payload`. Beyond MAX_COLUMNS, fields are together in one more column, `more`, as a JSON object by column name.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from walle.base.plain_json import BYTES_KEY, FLOAT_KEY, dumps

FIXED: "Mapping[str, Kind]" = {
    "position": "int",
    "time": "text",
    "device": "text",
    "task": "text",
    "version": "text",
    "topic": "text",
    "page": "text",
    "sent_ms": "int",
    "received_ms": "int",
    "error": "text",
}
DISTINCT = ("position", "time", "sent_ms", "received_ms")  # columns of FIXED whose values seldom repeat
MAX_COLUMNS = 1_000  # columns of payloads
OTHERS = "more"
PREFIX = "payload"
MAX_WHOLE = 2**53  # a float has each integer up to it
MAX_INT = 2**63
_NOT_FINITE = ("nan", "inf", "-inf")

type Kind = Literal["bool", "int", "float", "text"]


class Columns:
    """The columns of features, and the kind of each: that of all its values, else text.

    `see` each feature first, then get each one's `row`.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, Kind] = {}
        self._has_large_ints: set[str] = set()
        self._has_others = False

    def see(self, feature: Mapping[str, Any]) -> None:
        """Take a feature's fields into account."""
        for name, value in _fields(feature["payload"]):
            if name not in self._kinds and len(self._kinds) == MAX_COLUMNS:
                self._has_others = True
            elif value is not None:
                self._see_value(name, value)

    def _see_value(self, name: str, value: Any) -> None:
        kind = kind_of(value)
        if kind == "int" and abs(value) > MAX_WHOLE:
            self._has_large_ints.add(name)
        before = self._kinds.get(name, kind)
        if {before, kind} == {"int", "float"}:
            self._kinds[name] = "text" if name in self._has_large_ints else "float"
        else:
            self._kinds[name] = kind if before == kind else "text"
        if self._kinds[name] == "float" and name in self._has_large_ints:
            self._kinds[name] = "text"

    @property
    def kinds(self) -> dict[str, Kind]:
        """The name and kind of each column, in order."""
        return {**FIXED, **self._kinds, **({OTHERS: "text"} if self._has_others else {})}

    def row(
        self, feature: Mapping[str, Any], text: Callable[[str], str] = str, json: Callable[[str], str] = str
    ) -> dict[str, Any]:
        """Return the values of a feature by column; columns without one are absent.

        `text` maps each value that is a text, `json` the JSON of other values in columns of text.
        """
        found = {name: feature[name] for name in FIXED if name in feature}
        found = {name: text(value) if isinstance(value, str) else value for name, value in found.items()}
        others = {}
        for name, value in _fields(feature["payload"]):
            kind = self._kinds.get(name)
            if value is None:
                continue
            if kind is None:
                others[name] = value
            elif kind == "text" and not isinstance(value, str):
                found[name] = json(dumps(value))
            elif isinstance(value, str):
                found[name] = text(value)
            else:
                found[name] = float_of(value) if kind == "float" else value
        return {**found, OTHERS: json(dumps(others))} if others else found


def _fields(value: Any, name: str = PREFIX) -> Iterator[tuple[str, Any]]:
    """Yield the column and value of each field; an object that stands for bytes or a float is a value."""
    if not isinstance(value, dict) or not value or is_scalar(value):
        yield name, value
        return
    for key, item in value.items():
        yield from _fields(item, subcolumn(name, key))


def subcolumn(name: str, key: str) -> str:
    """Return the name of the column of a key of the tables in column `name`."""
    escaped = key.replace("\\", "\\\\").replace(".", "\\.")
    return f"{name}.{escaped}"


def is_scalar(value: Mapping[str, Any]) -> bool:
    """Return whether an object stands for bytes or a float that is not finite (`walle.base.plain_json`)."""
    if len(value) != 1:
        return False
    ((key, part),) = value.items()
    # A task may make a table with such a key.
    return (key == BYTES_KEY and isinstance(part, str)) or (key == FLOAT_KEY and part in _NOT_FINITE)


def kind_of(value: Any) -> Kind:
    """Return the kind of a value of JSON that is not None."""
    match value:
        case bool():
            return "bool"
        case int():
            return "int" if -MAX_INT <= value < MAX_INT else "text"
        case float():
            return "float"
        case dict() if is_scalar(value) and FLOAT_KEY in value:
            return "float"
        case _:
            return "text"


def float_of(value: Any) -> float:
    """Return a number of JSON as a float."""
    return float(value[FLOAT_KEY] if isinstance(value, dict) else value)

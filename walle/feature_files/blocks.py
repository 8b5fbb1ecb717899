"""Features in columns, a page at a time: from values to Arrow in a few steps for each column, not for each value.

A block has the features of one page. A column's kind in a block is that of its values there; what a column is in the
file depends on all blocks, so each keeps its values in a form from which any other can be made.
"""

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from walle.base.plain_json import dumps, to_json
from walle.feature_files.columns import (
    FIXED,
    MAX_COLUMNS,
    MAX_INT,
    MAX_WHOLE,
    OTHERS,
    PREFIX,
    Kind,
    float_of,
    is_scalar,
    kind_of,
    subcolumn,
)

if TYPE_CHECKING:
    import pyarrow as pa

_NONE = type(None)
_STATE = b"walle"  # the key in a field's metadata: the kind of its column in this block, and whether an int is large
_NUMBER = "number"  # integers and floats together, as JSON

type Column = list[Any]


def columns_of(payloads: Sequence[Any]) -> dict[str, Column]:
    """Return the columns of payloads, each with a value or None for each payload; see `walle.feature_files.columns`."""
    found: dict[str, Column] = {}
    _flatten(PREFIX, range(len(payloads)), payloads, found, len(payloads))
    return found


def _flatten(name: str, rows: Sequence[int], values: Sequence[Any], found: dict[str, Column], count: int) -> None:
    types = set(map(type, values))
    if dict not in types:
        _put(name, rows, values, found, count)
        return
    if len(types) == 1 and (same := _columns_of_same_keys(values)):
        for key, of_key in same.items():
            _flatten(subcolumn(name, key), rows, of_key, found, count)
        return
    tables: dict[tuple[str, ...], tuple[list[int], list[Any]]] = {}  # by their keys
    others: tuple[list[int], list[Any]] = ([], [])
    for row, value in zip(rows, values, strict=True):
        is_table = type(value) is dict and value and not is_scalar(value)
        of_rows, of_values = tables.setdefault(tuple(value), ([], [])) if is_table else others
        of_rows.append(row)
        of_values.append(value)
    if others[0]:
        _put(name, *others, found, count)
    for keys, (of_rows, of_values) in tables.items():
        for key, column in zip(keys, zip(*map(dict.values, of_values), strict=True), strict=True):
            _flatten(subcolumn(name, key), of_rows, column, found, count)


def _columns_of_same_keys(tables: Sequence[dict[str, Any]]) -> dict[str, Column]:
    """Return the columns of tables that have the same keys, as on most pages; else nothing.

    Nothing too for one key: such a table may be a value (`is_scalar`).
    """
    if len(tables[0]) > 1 and len(set(map(len, tables))) == 1:
        with contextlib.suppress(KeyError):
            return {key: [table[key] for table in tables] for key in tables[0]}
    return {}


def _put(name: str, rows: Sequence[int], values: Sequence[Any], found: dict[str, Column], count: int) -> None:
    column = found.get(name)
    if column is None and len(rows) == count:
        found[name] = list(values)
        return
    if column is None:
        column = found[name] = [None] * count
    for row, value in zip(rows, values, strict=True):
        column[row] = value


class BlockColumns:
    """The columns of all blocks so far: their names in the order of their first values, and what they can become."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[Kind, bool]] = {}  # the kind, and whether an integer is above MAX_WHOLE
        self._has_others = False

    @property
    def kinds(self) -> dict[str, Kind]:
        """The name and kind of each column of the file, in order."""
        kinds = {name: kind for name, (kind, _) in self._states.items()}
        return {**FIXED, **kinds, **({OTHERS: "text"} if self._has_others else {})}

    def batch(self, fixed: Mapping[str, Sequence[Any]], payloads: Sequence[Any]) -> "pa.RecordBatch":
        """Return a block of features: the columns FIXED, those of the payloads, and OTHERS where there are too many."""
        import pyarrow as pa

        columns = columns_of(payloads)
        fields, arrays = [], []
        for name, values in fixed.items():
            fields.append(pa.field(name, _arrow_type(FIXED[name])))
            arrays.append(pa.array(values, fields[-1].type))
        new = [name for name in columns if name not in self._states]
        firsts = {name: _first_row(columns[name]) for name in new}
        new = sorted((name for name in new if firsts[name] is not None), key=lambda name: firsts[name] or 0)
        kept = MAX_COLUMNS - len(self._states)
        names = [name for name in self._states if name in columns] + new[:kept]
        for name in names:
            kind, is_large, array = _encoded(columns[name])
            if kind is None:
                continue  # no value in this block
            state = f"{kind} {int(is_large)}".encode()
            fields.append(pa.field(name, array.type, metadata={_STATE: state}))
            arrays.append(array)
        if rest := new[kept:]:
            fields.append(pa.field(OTHERS, pa.string(), metadata={_STATE: b"text 0"}))
            arrays.append(pa.array(_as_objects({name: columns[name] for name in rest}, len(payloads)), pa.string()))
        block = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        self.see(block.schema)
        return block

    def see(self, schema: "pa.Schema") -> None:
        """Take a block's columns into account."""
        for field in schema:
            if field.name == OTHERS:
                self._has_others = True
            elif field.name not in FIXED:
                kind, is_large = _state_of(field)
                known = self._states.get(field.name)
                self._states[field.name] = _merged(known, ("float" if kind == _NUMBER else kind, is_large))

    def converted(self, block: "pa.RecordBatch") -> list["pa.Array"]:
        """Return a block's columns as those of the file."""
        import pyarrow as pa

        fields = {field.name: (field, column) for field, column in zip(block.schema, block.columns, strict=True)}
        arrays = []
        for name, kind in self.kinds.items():
            if name not in fields:
                arrays.append(pa.nulls(block.num_rows, _arrow_type(kind)))
            elif name in FIXED:
                arrays.append(fields[name][1])
            else:
                field, column = fields[name]
                arrays.append(_converted(column, _state_of(field)[0], kind))
        return arrays

    @property
    def schema(self) -> "pa.Schema":
        """The schema of the file."""
        import pyarrow as pa

        return pa.schema([(name, _arrow_type(kind)) for name, kind in self.kinds.items()])


def _first_row(column: Column) -> int | None:
    return next((row for row, value in enumerate(column) if value is not None), None)


def _merged(first: tuple[Kind, bool] | None, second: tuple[Kind, bool]) -> tuple[Kind, bool]:
    """Return the kind of values of both."""
    if first is None:
        first = second
    is_large = first[1] or second[1]
    kinds = {first[0], second[0]}
    if kinds <= {"int", "float"}:
        kind: Kind = "int" if kinds == {"int"} else "text" if is_large else "float"
    else:
        kind = first[0] if len(kinds) == 1 else "text"
    return kind, is_large


def _state_of(field: "pa.Field") -> tuple[Any, bool]:
    kind, is_large = field.metadata[_STATE].decode().split(" ")
    return kind, is_large == "1"


def _arrow_type(kind: str) -> "pa.DataType":
    import pyarrow as pa

    types = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64()}
    return types.get(kind, pa.string())


def _encoded(column: Column) -> tuple[str | None, bool, "pa.Array"]:
    """Return a column's kind in its block, None without a value, whether an int is above MAX_WHOLE, and its array."""
    import pyarrow as pa

    types = set(map(type, column)) - {_NONE}
    if types == {str}:
        return "text", False, pa.array(column, pa.string())
    if types == {float}:
        return "float", False, pa.array(column, pa.float64(), from_pandas=False)
    if types == {bool}:
        return "bool", False, pa.array(column, pa.bool_())
    if types == {int}:
        ints = [value for value in column if value is not None] if None in column else column
        low, high = min(ints), max(ints)
        if low >= -MAX_INT and high < MAX_INT:
            return "int", low < -MAX_WHOLE or high > MAX_WHOLE, pa.array(column, pa.int64())
    if not types:
        return None, False, pa.nulls(len(column))
    if types == {list}:
        return "text", False, pa.array([value if value is None else _json_of(value) for value in column], pa.string())
    values = [value if value is None else to_json(value) for value in column]
    kinds = {kind_of(value) for value in values if value is not None}
    is_large = any(type(value) is int and abs(value) > MAX_WHOLE for value in values)
    if kinds in ({"float"}, {"int", "float"}):
        return _NUMBER, is_large, pa.array([value if value is None else dumps(value) for value in values], pa.string())
    texts = [value if value is None or isinstance(value, str) else dumps(value) for value in values]
    return "text", is_large, pa.array(texts, pa.string())


def _json_of(value: Any) -> str:
    """Return `dumps(to_json(value))`, of which most values need only the first."""
    try:
        return dumps(value)
    except (TypeError, ValueError):  # bytes, an array, a float that is not finite
        return dumps(to_json(value))


def _converted(column: "pa.Array", kind: str, wanted: Kind) -> "pa.Array":
    import json

    import pyarrow as pa

    if kind == wanted:
        return column
    if wanted == "float" and kind == "int":
        return column.cast(pa.float64())
    values: Iterable[Any] = column.to_pylist()
    if wanted == "float":  # numbers as JSON
        return pa.array([value if value is None else float_of(json.loads(value)) for value in values], pa.float64())
    if kind == _NUMBER:
        return column
    return pa.array([value if value is None else dumps(to_json(value)) for value in values], pa.string())


def _as_objects(columns: Mapping[str, Column], count: int) -> list[str | None]:
    """Return the values of each row as a JSON object by column, None where there are none."""
    found: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, column in columns.items():
        for row, value in zip(itertools.count(), column):
            if value is not None:
                found[row][name] = to_json(value)
    return [dumps(row) if row else None for row in found]

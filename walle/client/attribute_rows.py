"""Rows of a table of attributes in a file (.csv, .parquet or .jsonl), as the JSON lines that a cloud takes."""

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from walle.base.extras import install_hint
from walle.errors import DeployError

_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_PIECE_BYTES = 256 << 10


class AttributeRowsError(DeployError):
    """A file of rows that cannot be read; it names file and line."""


def read_rows(path: Path, key: str, columns: Mapping[str, str]) -> Iterator[bytes]:
    """Yield pieces of JSON lines: an object for each row, with its id under `key`.

    `columns` are the declared ones with their types, by which the texts of a CSV file are read; an empty cell has no
    value, and "true", "yes" and "1" are true. The file is read in parts, so that its size does not matter.

    Raises:
        AttributeRowsError: a row cannot be read, or the file has an unknown ending.
    """
    readers = {".csv": _csv_rows, ".jsonl": _json_rows, ".ndjson": _json_rows, ".parquet": _parquet_rows}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise AttributeRowsError(f"{path}: its ending is unknown; a table is .csv, .parquet or .jsonl")
    piece = bytearray()
    try:
        for line in reader(path, key, columns):
            piece += line + b"\n"
            if len(piece) >= _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    except UnicodeDecodeError as error:
        raise AttributeRowsError(f"{path}: is not UTF-8") from error
    yield bytes(piece)


def _json_rows(path: Path, _key: str, _columns: Mapping[str, str]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:  # checked by the cloud, which names the line
            yield line.rstrip(b"\r\n")


def _csv_rows(path: Path, key: str, columns: Mapping[str, str]) -> Iterator[bytes]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            names = next(reader, [])
            _check_names(path, names, key, columns)
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(names):
                    what = f"has {len(cells)} cells, and the first line {len(names)}"
                    raise AttributeRowsError(f"{path}, line {reader.line_num}: {what}")
                row: dict[str, Any] = {}
                for name, cell in zip(names, cells, strict=True):
                    if name == key:
                        row[name] = cell
                    elif cell:
                        row[name] = _typed(path, reader.line_num, name, columns[name], cell)
                yield _line(row)
        except csv.Error as error:
            raise AttributeRowsError(f"{path}, line {reader.line_num}: {error}") from error


def _parquet_rows(path: Path, key: str, columns: Mapping[str, str]) -> Iterator[bytes]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        what = f"a Parquet file needs pyarrow; give a .csv, or install it with: {install_hint('parquet')}"
        raise AttributeRowsError(f"{path}: {what}") from error
    try:
        with parquet.ParquetFile(path) as file:
            _check_names(path, file.schema_arrow.names, key, columns)
            for batch in file.iter_batches(batch_size=10_000):
                for row in batch.to_pylist():
                    yield _line({name: value for name, value in row.items() if value is not None})
    except pa.ArrowException as error:
        raise AttributeRowsError(f"{path}: {str(error)[:300]}") from error


def _check_names(path: Path, names: list[str], key: str, columns: Mapping[str, str]) -> None:
    if key not in names:
        raise AttributeRowsError(f"{path}: has no column {key!r}, with the id of each row; name another with --key")
    unknown = [name for name in names if name != key and name not in columns]
    if unknown:
        declared = ", ".join(columns) or "none"
        what = f"column {unknown[0][:100]!r} is not declared in [uploaded] of the cloud's attributes.toml"
        raise AttributeRowsError(f"{path}: {what}; declared are: {declared[:500]}")
    if len(set(names)) < len(names):
        raise AttributeRowsError(f"{path}: two columns have the same name")


def _typed(path: Path, number: int, name: str, kind: str, cell: str) -> str | int | float | bool:
    try:
        match kind:
            case "int":
                return int(cell)
            case "double":
                return float(cell)
            case "bool":
                return _TRUTH[cell.strip().lower()]
            case _:
                return cell
    except (ValueError, KeyError) as error:
        what = f"{name} is {cell[:80]!r}, which is not of type {kind}"
        raise AttributeRowsError(f"{path}, line {number}: {what}") from error


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, default=str).encode(errors="surrogatepass")

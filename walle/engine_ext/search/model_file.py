"""File of a performance model: a zip archive with `model.json` (metadata, and the arrays' names, shapes and dtypes)
and `arrays.bin` (their little-endian numbers, one after another).

A matrix of dtype int8 has a column's numbers as multiples of its greatest magnitude / 127; these float32 steps precede
the int8 numbers.
"""

import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.base.durable_file import write_file
from walle.engine_ext import np
from walle.errors import ConfigError

WEIGHTS = ("float32", "int8")
_FORMAT = "walle performance model 1"
_METADATA, _ARRAYS = "model.json", "arrays.bin"
_MOST_BYTES = 256 << 20  # limit of both members: a small archive may unpack to anything
_DAMAGES = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, LookupError, TypeError, ValueError,
    AttributeError,
)  # fmt: skip
_SIZES = {"int8": 1, "float32": 4, "float64": 8}
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # equal models give equal files


def write(path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray], weights: str) -> None:
    """Write a model; a reader sees the old file or the new one, whole.

    With `weights="float32"` all numbers are stored unchanged; with "int8" arrays named "weight ..." become int8 and the
    others float32.

    Raises:
        ConfigError: `weights` is unknown.
        OSError: the file cannot be written.
    """
    if weights not in WEIGHTS:
        raise ConfigError(f"weights={weights!r}; give one of {', '.join(WEIGHTS)}")
    table, parts = [], []
    for name, array in arrays.items():
        exact = "float32" if weights == "int8" else array.dtype.name
        stored = weights if name.startswith("weight") else exact
        table.append({"name": name, "shape": list(array.shape), "dtype": stored})
        parts.append(quantised(array) if stored == "int8" else array.astype(stored).tobytes())
    text = json.dumps({"format": _FORMAT, **metadata, "arrays": table}, indent=1)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(_METADATA, _EARLIEST), text, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(_ARRAYS, _EARLIEST), b"".join(parts), zipfile.ZIP_DEFLATED)
    write_file(path, buffer.getvalue(), mode=0o644)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return metadata and arrays (float32 or float64) of a model.

    Raises:
        ConfigError: the file is not a performance model, is damaged, or has another format.
        OSError: the file cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            metadata, data = json.loads(_member(archive, _METADATA)), _member(archive, _ARRAYS)
        return metadata, _unpacked(metadata, data)
    except _DAMAGES as error:
        reason = f"it has no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{os.fspath(path)} is not a performance model, or is damaged: {reason}; fit and save it again"
        ) from error


def _unpacked(metadata: Any, data: bytes) -> dict[str, np.ndarray]:
    """Return the arrays by name.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: metadata and data do not fit each other.
    """
    if not isinstance(metadata, dict) or metadata.get("format") != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT!r}")
    arrays, at = dict[str, np.ndarray](), 0
    for row in metadata["arrays"]:
        name, shape, dtype = str(row["name"]), tuple(int(size) for size in row["shape"]), row["dtype"]
        if dtype not in _SIZES or any(size < 0 for size in shape) or (dtype == "int8" and len(shape) != 2):
            raise ValueError(f"array {name!r} has dtype {dtype!r} and shape {shape}")
        size_bytes = math.prod(shape) * _SIZES[dtype] + (4 * shape[1] if dtype == "int8" else 0)
        piece = data[at : at + size_bytes]
        if len(piece) != size_bytes:
            raise ValueError(f"array {name!r} is cut off")
        arrays[name] = _dequantised(piece, shape) if dtype == "int8" else _numbers(piece, dtype, shape)
        at += size_bytes
    if at != len(data):
        raise ValueError(f"{_ARRAYS} has {len(data) - at} bytes too many")
    return arrays


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > _MOST_BYTES:
        raise ValueError(f"{name} unpacks to {info.file_size:,} bytes; the limit is {_MOST_BYTES:,}")
    return archive.read(info)


def quantised(matrix: np.ndarray) -> bytes:
    """Return the float32 steps of the columns, then the int8 multiples of them, row by row."""
    steps = np.maximum(np.abs(matrix).max(axis=0), 1e-30).astype("float32") / 127
    return bytes(steps.tobytes()) + np.rint(matrix / steps).astype("int8").tobytes()


def _dequantised(data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    head = 4 * shape[1]
    return _numbers(data[head:], "int8", shape).astype("float32") * _numbers(data[:head], "float32", (shape[1],))


def _numbers(data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(data, dtype).reshape(shape).copy() if data else np.zeros(shape, dtype)

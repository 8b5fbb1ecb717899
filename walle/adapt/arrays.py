"""Arrays in `.npz` files, which NumPy reads too (NEP 1)."""

from __future__ import annotations

import ast
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle import np
from walle.base.durable_file import write_file
from walle.errors import ConfigError

_MAGIC = b"\x93NUMPY"
_MAX_BYTES = 4 << 30  # limit of a file's arrays, uncompressed
_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool"}


def read_arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of a file by name, in its order.

    Raises:
        ConfigError: the file does not exist, is damaged, or has something else or too much.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            if (size := sum(archive.getinfo(name).file_size for name in names)) > _MAX_BYTES:
                raise ConfigError(f"{path} has {size} bytes of arrays; at most {_MAX_BYTES} are read")
            return {name.removesuffix(".npy"): _array(archive.read(name), f"{path}, {name}") for name in names}
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise ConfigError(f"{path}: {error}") from error


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name; the file is whole or as before.

    Raises:
        OSError: it cannot be written.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, given in arrays.items():
            array = np.asarray(given)
            kind = str(array.dtype).rstrip("0123456789")
            bits = str(array.dtype).removeprefix(kind) or "8"
            code = next(code for code, name in _KINDS.items() if name == kind)
            descr = f"{'|' if bits == '8' else '<'}{code}{int(bits) // 8}"
            header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(array.shape)!r}, }}"
            header += " " * (-(len(header) + 11) % 64) + "\n"
            start = _MAGIC + b"\x01\x00" + struct.pack("<H", len(header)) + header.encode("latin1")
            archive.writestr(f"{name}.npy", start + array.tobytes())
    write_file(path, made.getvalue())


def _array(data: bytes, where: str) -> Any:
    try:
        return _parsed(data)
    except (ValueError, KeyError, IndexError, SyntaxError, struct.error, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _parsed(data: bytes) -> Any:
    """Return the array of a `.npy` file."""
    if data[:6] != _MAGIC:
        raise ValueError("no .npy file")
    wide = data[6] > 1
    (length,) = struct.unpack_from("<I" if wide else "<H", data, 8)
    first = 12 if wide else 10
    header = ast.literal_eval(data[first : first + length].decode("latin1"))
    dtype, shape = header["descr"], tuple(int(one) for one in header["shape"])
    if not isinstance(dtype, str) or dtype[0] == ">" or header["fortran_order"] or dtype[1] not in _KINDS:
        raise ValueError(f"{dtype}, or Fortran's order, is not read")
    kind, size = _KINDS[dtype[1]], int(dtype[2:])
    name = "bool" if kind == "bool" else f"{kind}{8 * size}"
    count = math.prod(shape)
    if any(one < 0 for one in shape) or count * size > _MAX_BYTES or len(data) < first + length + count * size:
        raise ValueError(f"shape {shape} does not fit the file")
    return np.array(np.frombuffer(data, name, count, first + length)).reshape(shape)

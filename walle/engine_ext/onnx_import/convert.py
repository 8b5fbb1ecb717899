"""Conversion of a model from ONNX to `.walle`."""

import atexit
import contextlib
import functools
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from walle.base.durable_file import fill_file, write_all
from walle.engine_ext.errors import ModelError
from walle.engine_ext.onnx_import.converter import Converter, has_onnx
from walle.engine_ext.onnx_import.limits import ConvertLimits

if TYPE_CHECKING:
    import onnx


def convert(onnx_path: str | Path, out_path: str | Path, *, limits: ConvertLimits | None = None) -> None:
    """Write the `.walle` file of an ONNX model; a reader of `out_path` sees the old file or the new one, whole.

    The conversion runs in a process apart, within `limits`. Weights are not held in memory.

    Raises:
        ModelError: the file is not a valid ONNX model, or its conversion exceeds a limit.
        UnsupportedError: it has an operator, an attribute, a type or an opset that the engine does not have; the
            message names the node.
    """
    with _opened(onnx_path) as source, Converter(limits) as converter:
        fill_file(
            Path(out_path),
            lambda out: converter.convert(source, out, name=str(onnx_path), folder=_folder(onnx_path)),
            mode=0o644,
        )


@contextlib.contextmanager
def converted(onnx_path: str | Path, *, limits: ConvertLimits | None = None) -> Iterator[str]:
    """Yield the path of the converted model, a file in memory that has no other name. Raises as `convert` does."""
    with _opened(onnx_path) as source, Converter(limits) as converter, _memory_file() as out:
        converter.convert(source, out.fileno(), name=str(onnx_path), folder=_folder(onnx_path))
        yield f"/proc/self/fd/{out.fileno()}"


def convert_bytes(model: "onnx.ModelProto | bytes") -> bytes:
    """Return the `.walle` file of an ONNX model in memory, its external weights loaded. Raises as `convert` does."""
    _check_onnx("the model")
    data = model if isinstance(model, bytes) else model.SerializeToString()
    with _memory_file() as source, _memory_file() as out:
        write_all(source.fileno(), data)
        _shared().convert(source.fileno(), out.fileno())
        out.seek(0)
        return out.read()


@functools.cache
def _shared() -> Converter:
    """Return the converter of models in memory, of which there are often many."""
    converter = Converter()
    atexit.register(converter.close)
    return converter


def _memory_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("walle-model"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    _check_onnx(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ModelError(f"cannot read {path}: it is not a file")
        yield handle
    finally:
        os.close(handle)


def _check_onnx(what: object) -> None:
    if not has_onnx():
        raise ModelError(
            f"{what} needs the package onnx, which is not installed; convert the file where it is: walle model convert"
        )


def _folder(path: str | Path) -> str:
    return str(Path(path).absolute().parent)

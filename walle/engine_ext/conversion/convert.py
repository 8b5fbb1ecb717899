"""Conversion of a model to `.walle`, from ONNX or TFLite."""

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
from walle.engine_ext.conversion.converter import Converter, has_package
from walle.engine_ext.conversion.job import ConvertLimits
from walle.engine_ext.errors import ModelError

if TYPE_CHECKING:
    import onnx


def convert(source_path: str | Path, out_path: str | Path, *, limits: ConvertLimits | None = None) -> None:
    """Write the `.walle` file of a model; a reader of `out_path` sees the old file or the new one, whole.

    A file whose name ends in `.tflite`, in any case, is a TFLite model (`walle.engine_ext.tflite_import` has what is
    supported), every other one an ONNX model. The conversion runs in a process apart, within `limits`. The weights of
    an ONNX model are not held in memory.

    Raises:
        ModelError: the file is not a valid model of its format, or its conversion exceeds a limit.
        UnsupportedError: it has an operator, an attribute, a type or an opset that is not supported; the message names
            the node.
    """
    kind = _kind(source_path)
    with _opened(source_path) as source, Converter(limits, kind=kind) as converter:
        fill_file(
            Path(out_path),
            lambda out: converter.convert(source, out, name=str(source_path), folder=_folder(source_path)),
            mode=0o644,
        )


@contextlib.contextmanager
def converted(onnx_path: str | Path, *, limits: ConvertLimits | None = None) -> Iterator[str]:
    """Yield the path of the converted ONNX model, a file in memory without another name. Raises as `convert` does."""
    with _opened(onnx_path) as source, Converter(limits) as converter, _memory_file() as out:
        converter.convert(source, out.fileno(), name=str(onnx_path), folder=_folder(onnx_path))
        yield f"/proc/self/fd/{out.fileno()}"


def convert_bytes(model: "onnx.ModelProto | bytes") -> bytes:
    """Return the `.walle` file of an ONNX model in memory, its external weights loaded. Raises as `convert` does."""
    _check_package("the model", "onnx")
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
    _check_package(path, "numpy" if _kind(path) == "tflite" else "onnx")
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


def _kind(path: str | Path) -> str:
    return "tflite" if Path(path).suffix.lower() == ".tflite" else "onnx"


def _check_package(what: object, name: str) -> None:
    if not has_package(name):
        raise ModelError(
            f"{what} needs the package {name}, which is not installed;"
            " convert the file where it is: walle model convert"
        )


def _folder(path: str | Path) -> str:
    return str(Path(path).absolute().parent)

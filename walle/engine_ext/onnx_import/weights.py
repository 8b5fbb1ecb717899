"""Values of an ONNX model's tensors, as arrays in the mapped file of the model and in files beside it."""

import mmap
import os
import stat
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.onnx_import.graph import Array
from walle.engine_ext.onnx_import.wire import SPAN, Span, skeleton

_MAX_ELEMENTS = 1 << 62
_BITS = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}  # several elements in a byte
_UNPACKED_BYTES = 1 << 20
# Fields that have the elements where raw_data has not, and how many elements one of their numbers has.
_PER_NUMBER = {"int4": 2, "uint4": 2, "float4_e2m1fn": 2, "int2": 4, "uint2": 4}


class Weights:
    """The open file of a model, and the files in `folder` that have its external data ("": none is read).

    Arrays are views of the mapped files and must not be written to.
    """

    def __init__(self, handle: int, folder: str) -> None:
        self._folder = folder
        self._maps: dict[str, mmap.mmap] = {}
        self._model = self._map("", handle)
        self._spans: list[Span] = []

    def read_model(self) -> onnx.ModelProto:
        """Return the model without the bytes of its large tensors.

        Raises:
            ModelError: the file is not an ONNX model.
        """
        try:
            message, self._spans = skeleton(memoryview(self._model) if self._model is not None else memoryview(b""))
            model: onnx.ModelProto = onnx.ModelProto.FromString(message)
        except MemoryError:
            raise
        except Exception as error:  # the skeleton's, and protobuf's own family
            raise ModelError(f"it is not a valid ONNX model: {error}") from error
        return model

    def external_bytes(self) -> int:
        """Return the size of the files that were mapped beside the model's own."""
        return sum(len(one) for name, one in self._maps.items() if name)

    def release(self) -> None:
        """Release the memory of what was read; it is read again where it is needed again."""
        for one in self._maps.values():
            one.madvise(mmap.MADV_DONTNEED)

    def array(self, proto: onnx.TensorProto, name: str) -> Array:
        """Return the value of a tensor.

        Raises:
            ModelError: its type or dimensions are unknown, or its data are missing or of another size.
            UnsupportedError: the installed package onnx does not have its element type.
        """
        where, dims = f"tensor {name!r}", tuple(proto.dims)
        data = self._checked(proto, where)
        if proto.data_type == onnx.TensorProto.STRING:
            return _texts(proto, dims, where)
        if data is None:
            return _decoded(proto, where)
        kind = _numpy_type(proto.data_type, where)
        if str(kind) in _BITS:
            return _unpacked(data, kind, prod(dims)).reshape(dims)
        if not data:
            return np.zeros(dims, dtype=kind)
        return np.frombuffer(data, dtype=kind).reshape(dims)

    def check(self, proto: onnx.TensorProto, name: str) -> None:
        """Check what `array` does, without reading the value; raises the same."""
        self._checked(proto, f"tensor {name!r}")

    def _checked(self, proto: onnx.TensorProto, where: str) -> bytes | memoryview | None:
        """Return the bytes of a tensor, None where its elements are in one of the message's typed fields."""
        dims = tuple(proto.dims)
        if any(dim < 0 for dim in dims) or prod(dims) > _MAX_ELEMENTS:
            raise ModelError(
                f"{where} has the dimensions {list(dims)}; each must be 0 or more, with"
                f" {_MAX_ELEMENTS} elements at most"
            )
        if proto.data_type == onnx.TensorProto.UNDEFINED:
            raise ModelError(f"{where} has no element type")
        if proto.data_type == onnx.TensorProto.STRING:
            if len(proto.string_data) != prod(dims):
                raise ModelError(f"{where} has {len(proto.string_data)} texts; its dimensions need {prod(dims)}")
            return None
        kind = _numpy_type(proto.data_type, where)
        data = self._data(proto, _size(kind, dims), where)
        if data is None:
            _check_count(proto, str(kind), dims, where)
        return data

    def _data(self, proto: onnx.TensorProto, size: int, where: str) -> bytes | memoryview | None:
        """Return the `size` bytes of a tensor that is not in the message's typed fields."""
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            data: bytes | memoryview = self._external(proto, size, where)
        elif proto.HasField("raw_data"):
            data = proto.raw_data
        else:
            return None
        if len(data) != size:
            raise ModelError(f"{where}: its data has {len(data)} bytes; its type and dimensions need {size}")
        return data

    def _external(self, proto: onnx.TensorProto, size: int, where: str) -> memoryview:
        entries = {one.key: one.value for one in proto.external_data}
        if SPAN in entries:
            number = _whole(entries, SPAN, 0, where)
            if number >= len(self._spans) or self._model is None:
                raise ModelError(f"{where}: its data is missing")
            span = self._spans[number]
            return memoryview(self._model)[span.offset : span.offset + span.size]
        mapped = self._file(entries.get("location", ""), where)
        offset = _whole(entries, "offset", 0, where)
        length = _whole(entries, "length", size, where)
        if offset + length > len(mapped):
            raise ModelError(
                f"{where}: bytes {offset} to {offset + length} of {entries['location']!r} are its data, and the file"
                f" has {len(mapped)}; is it cut off, or of another model?"
            )
        return mapped[offset : offset + length]

    def _file(self, location: str, where: str) -> memoryview:
        """Return the content of a file of external data."""
        if not self._folder:
            raise ModelError(f"{where} is in the file {location!r}; give the model by its path, not its bytes")
        parts = location.split("/")
        if not location or "\0" in location or "\\" in location or any(part in {"", ".", ".."} for part in parts):
            raise ModelError(f"{where}: its data's location {location!r} is not a path below the model's folder")
        if location not in self._maps:
            try:
                handle = _open_below(self._folder, parts)
            except OSError as error:
                raise ModelError(
                    f"{where}: its data cannot be read from {location!r}: {error.strerror or error}; external data must"
                    " be a file below the model's folder, without links"
                ) from error
            try:
                self._map(location, handle)
            finally:
                os.close(handle)
        mapped = self._maps.get(location)
        return memoryview(b"") if mapped is None else memoryview(mapped)

    def _map(self, location: str, handle: int) -> mmap.mmap | None:
        if os.fstat(handle).st_size == 0:
            return None
        mapped = self._maps[location] = mmap.mmap(handle, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        return mapped


def dtype_name(elem_type: int, where: str) -> str | None:
    """Return NumPy's (or ml_dtypes') name of TensorProto's element type, "string" for text; None for none.

    Raises:
        UnsupportedError: the type is unknown to the installed package onnx.
    """
    if elem_type == onnx.TensorProto.UNDEFINED:
        return None
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    return str(_numpy_type(elem_type, where))


def _numpy_type(elem_type: int, where: str = "a tensor") -> "np.dtype[Any]":
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError:
        raise UnsupportedError(
            f"{where} has the element type {elem_type}, which onnx {onnx.__version__} has not"
        ) from None


def _size(dtype: "np.dtype[Any]", dims: tuple[int, ...]) -> int:
    """Return the size of raw_data in bytes."""
    return -(-prod(dims) * _BITS.get(str(dtype), 8 * dtype.itemsize) // 8)


def _unpacked(data: bytes | memoryview, kind: "np.dtype[Any]", count: int) -> Array:
    """Return `count` elements, of which a byte has several, the first in its lowest bits. Works in pieces."""
    bits = _BITS[str(kind)]
    each = 8 // bits
    found = np.empty(len(data) * each, dtype=np.uint8)
    for start in range(0, len(data), _UNPACKED_BYTES):
        packed = np.frombuffer(data[start : start + _UNPACKED_BYTES], dtype=np.uint8)
        for place in range(each):
            part = found[start * each + place : (start + len(packed)) * each : each]
            np.right_shift(packed, place * bits, out=part)
            part &= (1 << bits) - 1
    return found[:count].view(kind)


def _texts(proto: onnx.TensorProto, dims: tuple[int, ...], where: str) -> Array:
    try:
        texts = [one.decode() for one in proto.string_data]
    except UnicodeDecodeError as error:
        raise ModelError(f"{where} has a text that is not UTF-8: {error}") from error
    found = np.empty(len(texts), dtype=object)
    found[:] = texts
    return found.reshape(dims)


def _check_count(proto: onnx.TensorProto, dtype: str, dims: tuple[int, ...], where: str) -> None:
    """Check the number of elements in the typed field of the element type."""
    field = helper.tensor_dtype_to_field(proto.data_type)
    numbers = len(getattr(proto, field))
    needed = -(-prod(dims) // _PER_NUMBER.get(dtype, 1)) * (2 if dtype.startswith("complex") else 1)
    if numbers != needed:
        raise ModelError(f"{where}: its {field} has {numbers} numbers; its type and dimensions need {needed}")


def _decoded(proto: onnx.TensorProto, where: str) -> Array:
    """Return the value of a tensor from the typed field of its element type."""
    try:
        return np.asarray(numpy_helper.to_array(proto))
    except MemoryError:
        raise
    except Exception as error:  # numpy's and protobuf's own families
        raise ModelError(f"{where} cannot be read: {error}") from error


def _whole(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ModelError(f"{where}: {key} of its external data is {text[:40]!r}, not a whole number")
    return int(text)


def _open_below(folder: str, parts: list[str]) -> int:
    """Return the open file; refuse links, and files that are not regular."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for index, part in enumerate(parts):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            inner = os.open(part, flags if index == len(parts) - 1 else flags | os.O_DIRECTORY, dir_fd=handle)
        finally:
            os.close(handle)
        handle = inner
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(handle)
        raise OSError("it is not a regular file, or has several names")
    return handle

"""Files beside a log of events that its contents name, for simulations: images and arrays.

In the contents of a line, `{"$image": "frame_1.jpg"}` stands for a JPEG or PNG file, decoded to uint8
[height, width, 3], BGR as `cv.imdecode` gives it, and `{"$npy": "sound_1.npy"}` for an array in NumPy's format. Paths
are relative to the folder of the log and do not leave it.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from walle.base import plain
from walle.engine_ext import _core
from walle.engine_ext.cv import files as image_files
from walle.errors import EngineError
from walle.pipeline.events.event import MAX_CONTENTS_DEPTH, Event, EventError
from walle.pipeline.events.transient_events import MAX_ARRAY_BYTES

IMAGE_KEY = "$image"
ARRAY_KEY = "$npy"
_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 4096
_FORMATS: dict[str, Any] = {  # NumPy's type codes: those of the buffer protocol
    "|b1": "?", "|u1": "B", "|i1": "b", "<u2": "H", "<i2": "h", "<u4": "I", "<i4": "i", "<u8": "Q", "<i8": "q",
    "<f2": "e", "<f4": "f", "<f8": "d",
}  # fmt: skip

type DecodeImage = Callable[[bytes], _core.ndarray]


class EventFiles:
    """The files that events may name. `read` returns the bytes of one by its path, None if it does not exist."""

    def __init__(self, read: Callable[[str], bytes | None]) -> None:
        self._read = read

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> EventFiles:
        """Return files in memory, by their paths relative to the log's folder."""
        return cls(files.get)

    @classmethod
    def beside(cls, log: Path) -> EventFiles:
        """Return the files in the folder of a log. A link that leaves the folder is a file that does not exist."""
        folder = log.parent.resolve()

        def read(path: str) -> bytes | None:
            file = (folder / path).resolve()
            if not file.is_relative_to(folder) or not file.is_file() or file.stat().st_size > MAX_ARRAY_BYTES:
                return None
            return file.read_bytes()

        return cls(read)

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file, None if it does not exist."""
        return self._read(path)

    def has_any(self, event: Event) -> bool:
        """Return whether the event names a file."""
        return _names_file(event.contents, 0)

    def resolved(
        self, event: Event, decode_image: DecodeImage | None = None, *, max_bytes: int = MAX_ARRAY_BYTES
    ) -> Event:
        """Return the event with arrays in the place of the files that it names, itself if it names none.

        The arrays have at most `max_bytes` together.

        `decode_image` returns the image of a file's bytes or raises ValueError; without it that is done here, by
        libraries in C, which is not for files of strangers.

        Raises:
            EventError: a file does not exist or cannot be decoded, or its path is wrong; it names the place.
        """
        if not self.has_any(event):
            return event
        resolver = _Resolver(self._read, decode_image or functools.partial(_image, max_bytes), max_bytes)
        contents = resolver.resolve(event.contents, "contents", 0)
        return Event(event.event_id, event.page_id, event.ts_ms, contents)


class _Resolver:
    """Loading of the files that one event names, within the bound on its arrays: a few bytes may name a file often."""

    def __init__(self, read: Callable[[str], bytes | None], decode_image: DecodeImage, max_bytes: int) -> None:
        self._read = read
        self._max_bytes = max_bytes
        self._loads = ((IMAGE_KEY, decode_image), (ARRAY_KEY, _array))
        self._array_bytes = 0

    def resolve(self, value: Any, place: str, depth: int) -> Any:
        if isinstance(value, dict | list) and depth > MAX_CONTENTS_DEPTH:
            raise EventError("contents", f"are nested deeper than {MAX_CONTENTS_DEPTH} levels; flatten them")
        if isinstance(value, dict):
            for key, load in self._loads:
                if key in value:
                    return self._load(value, place, key, load)
            return {key: self.resolve(item, place + plain.place_step(key), depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            steps = enumerate(value)
            return [self.resolve(item, place + plain.place_step(index), depth + 1) for index, item in steps]
        return value

    def _load(self, value: dict[str, Any], place: str, key: str, load: Callable[[bytes], _core.ndarray]) -> Any:
        path = value[key]
        if len(value) > 1 or not isinstance(path, str):
            raise EventError(place, f'must be {{"{key}": "path of a file"}} and nothing else')
        parts = path.split("/")
        if "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise EventError(place, f"{path!r} is not a path below the folder of the events")
        try:
            data = self._read(path)
        except OSError as error:
            raise EventError(place, f"file {path!r} cannot be read: {error.strerror}") from error
        if data is None:
            raise EventError(
                place,
                f"file {path!r} does not exist in the folder of the events, or has more than {MAX_ARRAY_BYTES} bytes",
            )
        try:
            array = load(data)
        except (ValueError, EngineError) as error:
            raise EventError(place, f"file {path!r} {error}") from error
        self._array_bytes += array.nbytes
        if self._array_bytes > self._max_bytes:
            what = f"file {path!r} makes the event's arrays larger than {self._max_bytes} bytes; name fewer files"
            raise EventError(place, what)
        return array


def _names_file(value: Any, depth: int) -> bool:
    if depth > MAX_CONTENTS_DEPTH:
        return False  # refused where it is taken
    if isinstance(value, dict):
        return IMAGE_KEY in value or ARRAY_KEY in value or any(_names_file(item, depth + 1) for item in value.values())
    return isinstance(value, list) and any(_names_file(item, depth + 1) for item in value)


def _image(max_bytes: int, data: bytes) -> _core.ndarray:
    found = image_files.decode(data, max_pixels=max_bytes // 3)
    if found is None:
        raise ValueError(f"is not a JPEG or PNG image of at most {max_bytes // 3} pixels, or is damaged")
    return found


def _is_size(size: object) -> bool:
    return type(size) is int and 0 <= size <= MAX_ARRAY_BYTES


def _array(data: bytes) -> _core.ndarray:
    """Return the array of a file in NumPy's format, versions 1 to 3, of numbers in little-endian order.

    Source: numpy.lib.format.
    """
    if not data.startswith(_MAGIC) or len(data) < 12:
        raise ValueError("is not in NumPy's format (.npy)")
    width = 2 if data[6] == 1 else 4
    start = 8 + width
    end = start + int.from_bytes(data[8:start], "little")
    if end > min(len(data), _MAX_HEADER_BYTES):
        raise ValueError("has a header that is cut, or too long")
    try:
        header = ast.literal_eval(data[start:end].decode("latin-1").strip())
        code, is_columns, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, RecursionError, MemoryError, LookupError, TypeError) as error:
        raise ValueError("has a header that cannot be read") from error
    format_ = _FORMATS.get(code) if isinstance(code, str) else None
    if format_ is None:
        raise ValueError(f"has elements of type {str(code)[:40]!r}; known are {', '.join(_FORMATS)}")
    if not isinstance(shape, tuple) or len(shape) > 32 or not all(map(_is_size, shape)):
        raise ValueError("has a wrong shape")
    if math.prod(shape) * int(code[2:]) != len(data) - end:
        raise ValueError(f"has {len(data) - end} bytes of elements, which its shape {shape} and type {code} do not")
    elements = memoryview(data[end:])  # a copy, which is aligned
    flat = _core.asarray(elements) != 0 if format_ == "?" else _core.asarray(elements.cast(format_))
    return flat.reshape(shape[::-1]).T if is_columns else flat.reshape(shape)

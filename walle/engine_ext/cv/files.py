"""JPEG and PNG files, if the engine was built with libjpeg-turbo and libpng (docs/adr/0017-walle-cv.md)."""

from __future__ import annotations

from pathlib import Path

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.cv.color import cvtColor
from walle.engine_ext.cv.images import ImageLike, as_image
from walle.engine_ext.errors import UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_SIGNATURES = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png"}
_SUFFIXES = {".jpg": "jpeg", ".jpeg": "jpeg", ".jpe": "jpeg", ".png": "png"}
_MISSING = "the engine was built without {}: install {} and build it again"
_PACKAGES = {"jpeg": "libjpeg-turbo's headers (Debian: libjpeg-dev)", "png": "libpng's headers (Debian: libpng-dev)"}


def imdecode(buf: Any, flags: int = constants.IMREAD_COLOR) -> ndarray | None:
    """Return the decoded image: BGR, grey or (IMREAD_UNCHANGED) as stored; None if the bytes are not a JPEG or PNG."""
    data = (
        as_image(buf).astype("uint8").tobytes() if not isinstance(buf, (bytes, bytearray, memoryview)) else bytes(buf)
    )
    return decode(data, flags)


def decode(data: bytes, flags: int = constants.IMREAD_COLOR, max_pixels: int = 1 << 28) -> ndarray | None:
    """Return the image of a file's bytes as `imdecode`; None also for one of more than `max_pixels`."""
    kind = next((kind for sign, kind in _SIGNATURES.items() if data.startswith(sign)), None)
    if kind is None:
        return None
    if kind not in _core.image_formats():
        raise UnsupportedError(_MISSING.format(kind, _PACKAGES[kind]))
    grey = flags != constants.IMREAD_UNCHANGED and not flags & constants.IMREAD_COLOR
    try:
        found = _core.decode_image(kind, data, grey and kind == "jpeg", max_pixels)
    except ValueError:
        return None
    return found if flags == constants.IMREAD_UNCHANGED else _apply_flags(found, flags, grey=grey)


def _apply_flags(found: ndarray, flags: int, *, grey: bool) -> ndarray:
    if found.dtype == "uint16" and not flags & constants.IMREAD_ANYDEPTH:
        found = (found // 256).astype("uint8")
    channels = found.shape[2] if found.ndim == 3 else 1
    if channels == 4:
        found = cvtColor(found, constants.COLOR_BGRA2BGR)
    if grey:
        return found if channels == 1 else cvtColor(found, constants.COLOR_BGR2GRAY)
    if channels == 1:
        return cvtColor(found, constants.COLOR_GRAY2BGR)
    return cvtColor(found, constants.COLOR_BGR2RGB) if flags == constants.IMREAD_COLOR_RGB else found


def imencode(ext: str, img: ImageLike, params: Sequence[int] = ()) -> tuple[bool, ndarray]:
    """Return True and the bytes of an image file; `params` are pairs of an IMWRITE_ constant and its value."""
    kind = _SUFFIXES.get(ext.lower())
    if kind is None:
        raise UnsupportedError(f"imencode to suffix {ext!r}; known are {', '.join(_SUFFIXES)}")
    if kind not in _core.image_formats():
        raise UnsupportedError(_MISSING.format(kind, _PACKAGES[kind]))
    settings = dict(zip(params[::2], params[1::2], strict=True))
    level = (
        settings.get(constants.IMWRITE_JPEG_QUALITY, 95)
        if kind == "jpeg"
        else settings.get(constants.IMWRITE_PNG_COMPRESSION, 1)
    )
    return True, _core.asarray(_core.encode_image(kind, as_image(img), int(level)))


def haveImageReader(filename: str) -> bool:
    """Return whether files of this suffix can be read."""
    return _SUFFIXES.get(Path(filename).suffix.lower()) in _core.image_formats()


def haveImageWriter(filename: str) -> bool:
    """Return whether files of this suffix can be written."""
    return haveImageReader(filename)

"""Conversion of arguments that the modules of `walle.cv` share: images, results, borders, depths, scalars."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.errors import DTypeError, UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

type ImageLike = Any  # an ndarray, or any object with the buffer protocol

BORDERS = ("constant", "replicate", "reflect", "wrap", "reflect101", "transparent")
DEPTHS = {
    constants.CV_8U: "uint8",
    constants.CV_8S: "int8",
    constants.CV_16U: "uint16",
    constants.CV_16S: "int16",
    constants.CV_32S: "int32",
    constants.CV_32F: "float32",
    constants.CV_64F: "float64",
}


def as_image(value: ImageLike) -> ndarray:
    """Return the value as an array; arrays and buffers are not copied."""
    return value if type(value) is ndarray else _core.asarray(value)


def evaluate(op: str, inputs: list[Any], attributes: dict[str, Any]) -> ndarray:
    """Return the output of an operator that has one output."""
    return _core.evaluate(op, inputs, attributes)[0]


def into_dst(result: ndarray, dst: ImageLike | None) -> ndarray:
    """Return the result; if `dst` is given, `dst` with the result written into it."""
    if dst is None:
        return result
    target = as_image(dst)
    target[...] = result
    return target


def border_name(border: int) -> str:
    kind = border & ~constants.BORDER_ISOLATED
    if not 0 <= kind < len(BORDERS):
        raise UnsupportedError(f"unknown border {border}; use one of the BORDER_ constants")
    return BORDERS[kind]


def depth_name(depth: int, source: str) -> str:
    """Return the dtype of a CV_ depth; -1 is the dtype of the source."""
    if depth < 0:
        return source
    if depth not in DEPTHS:
        raise DTypeError(f"unknown depth {depth}; use one of the CV_ constants")
    return DEPTHS[depth]


def scalar(value: float | Sequence[float]) -> list[float]:
    """Return OpenCV's Scalar: four numbers, padded with 0."""
    numbers = [float(value)] if isinstance(value, (int, float)) else [float(number) for number in value]
    return (numbers + [0.0] * 4)[:4]


def pair(value: Any) -> tuple[int, int]:
    """Return a size or a point as two ints."""
    first, second = value
    return int(first), int(second)


_SAMPLED = ("uint8", "uint16", "float32")


def to_sampling_dtype(given: ndarray) -> ndarray:
    """Return the image in a dtype that sampling kernels support: its own, or float32."""
    return given if given.dtype in _SAMPLED else given.astype("float32")


def to_dtype_of(result: ndarray, given: ndarray) -> ndarray:
    """Return the result in the dtype of `given`; integers are rounded half to even and saturated."""
    if result.dtype == given.dtype:
        return result
    if given.dtype in {"float32", "float64"}:
        return result.astype(given.dtype)
    return _core.unary("Round", result).astype(given.dtype)

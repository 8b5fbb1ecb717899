"""What every part of `walle.cv` does with its arguments: arrays in, arrays out, borders by number."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.cv import constants
from walle.engine_ext.errors import DTypeError, UnsupportedError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

type ImageLike = Any  # an ndarray, or anything that has the buffer protocol

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


def image(value: ImageLike) -> ndarray:
    """Return the value as an array; what is an array or a buffer already is not copied."""
    return value if type(value) is ndarray else _core.asarray(value)


def one(op: str, inputs: list[Any], attributes: dict[str, Any]) -> ndarray:
    """Return the one output of an operator."""
    return _core.evaluate(op, inputs, attributes)[0]


def give(result: ndarray, dst: ImageLike | None) -> ndarray:
    """Return the result, or `dst` with the result written into it where there is one."""
    if dst is None:
        return result
    target = image(dst)
    target[...] = result
    return target


def border_name(border: int) -> str:
    kind = border & ~constants.BORDER_ISOLATED
    if not 0 <= kind < len(BORDERS):
        raise UnsupportedError(f"no border of number {border}; use one of the BORDER_ constants")
    return BORDERS[kind]


def depth_name(depth: int, source: str) -> str:
    """Return the dtype of a CV_ depth; -1 is the source's."""
    if depth < 0:
        return source
    if depth not in DEPTHS:
        raise DTypeError(f"no depth of number {depth}; use one of the CV_ constants")
    return DEPTHS[depth]


def scalar(value: float | Sequence[float]) -> list[float]:
    """Return OpenCV's Scalar: four numbers, those not given 0."""
    numbers = [float(value)] if isinstance(value, (int, float)) else [float(number) for number in value]
    return (numbers + [0.0] * 4)[:4]


def pair(value: Any) -> tuple[int, int]:
    """Return two whole numbers, as sizes and points are given."""
    first, second = value
    return int(first), int(second)


_SAMPLED = ("uint8", "uint16", "float32")


def sampled(given: ndarray) -> ndarray:
    """Return the image in a dtype that sampling kernels take: float32 for the others."""
    return given if given.dtype in _SAMPLED else given.astype("float32")


def restored(result: ndarray, given: ndarray) -> ndarray:
    """Return the result in the dtype of what was given: whole numbers rounded half to even and saturated."""
    if result.dtype == given.dtype:
        return result
    if given.dtype in {"float32", "float64"}:
        return result.astype(given.dtype)
    return _core.unary("Round", result).astype(given.dtype)

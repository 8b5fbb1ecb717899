"""Similarity of vectors, unit vectors and indicator vectors."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext._core import operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = ["cosine_similarity", "normalize", "one_hot"]


def cosine_similarity(x1: Values, x2: Values, dim: int = 1, eps: float = 1e-8) -> ndarray:
    """Return the cosine of the angle between vectors along an axis, which the result lacks; shapes are broadcast.

    Lengths count as at least eps.
    """
    left, right = _length(x1, dim, eps), _length(x2, dim, eps)
    return np.sum(np.multiply(x1 / left, x2 / right), axis=dim)


def normalize(input: Values, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> ndarray:
    """Return the vectors along an axis divided by their p-norm, which counts as at least eps."""
    if p == 2:
        return np.divide(input, _length(input, dim, eps))
    norm = np.power(np.sum(np.power(np.abs(input), p), axis=dim, keepdims=True), 1 / p)
    return np.divide(input, np.maximum(norm, eps))


def one_hot(tensor: Values, num_classes: int = -1) -> ndarray:
    """Return int64 of shape (..., classes) with 1 at each index; -1 takes the greatest index of an array plus one."""
    classes = num_classes if num_classes >= 0 else int(np.max(tensor)) + 1
    is_class: ndarray = np.expand_dims(tensor, -1) == np.arange(classes)
    return operator("Cast", [is_class], to="int64")


def _length(x: Values, dim: int, eps: float) -> ndarray:
    # The square is limited, not the root: the root's derivative at 0 is infinite.
    return np.sqrt(np.maximum(np.sum(np.square(x), axis=dim, keepdims=True), eps * eps))

"""Reduction of losses: one number an element, their sum or their mean."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext.errors import ShapeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values


def reduce_loss(loss: ndarray, reduction: str, function: str) -> ndarray:
    """Return the losses (`"none"`), their sum or their mean.

    Raises:
        ShapeError: the reduction is unknown.
    """
    check_reduction(reduction, function)
    return loss if reduction == "none" else np.sum(loss) if reduction == "sum" else np.mean(loss)


def check_reduction(reduction: str, function: str, allowed: tuple[str, ...] = ("none", "mean", "sum")) -> None:
    """Check the name of a reduction.

    Raises:
        ShapeError: it is unknown.
    """
    if reduction not in allowed:
        raise ShapeError(f"{function}: reduction {reduction!r}; it takes {', '.join(map(repr, allowed))}")


def check_equal_shapes(input: Values, target: Values, function: str) -> None:
    """Check that the target has the input's shape, or is one number.

    Raises:
        ShapeError: the shapes differ; a broadcast target would give a loss that nobody meant.
    """
    shape = np.shape(target)
    if shape and tuple(input.shape) != tuple(shape):
        raise ShapeError(f"{function}: input of shape {tuple(input.shape)}, target of shape {tuple(shape)}; equal ones")

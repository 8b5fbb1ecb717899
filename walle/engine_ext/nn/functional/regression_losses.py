"""Losses between numbers of equal shapes."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.nn.functional.reduction import check_equal_shapes, reduce_loss

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = ["huber", "huber_loss", "l1", "l1_loss", "mse", "mse_loss", "smooth_l1", "smooth_l1_loss"]


def mse_loss(input: Values, target: Values, *, reduction: str = "mean", weight: Values | None = None) -> ndarray:
    """Return the mean of (input - target)², each number weighted by `weight` of the input's shape.

    Raises:
        ShapeError: the shapes differ, or the reduction is unknown.
    """
    check_equal_shapes(input, target, "mse_loss")
    return _weighted(np.square(np.subtract(input, target)), weight, reduction, "mse_loss")


def l1_loss(input: Values, target: Values, *, reduction: str = "mean", weight: Values | None = None) -> ndarray:
    """Return the mean of |input - target|, each number weighted by `weight` of the input's shape.

    Raises:
        ShapeError: the shapes differ, or the reduction is unknown.
    """
    check_equal_shapes(input, target, "l1_loss")
    return _weighted(np.abs(np.subtract(input, target)), weight, reduction, "l1_loss")


def smooth_l1_loss(input: Values, target: Values, *, reduction: str = "mean", beta: float = 1.0) -> ndarray:
    """Return the mean of d² / (2 beta) where d = |input - target| is below beta, else of d - beta / 2.

    Raises:
        ShapeError: the shapes differ, the reduction is unknown, or beta is negative.
    """
    if beta < 0:
        raise ShapeError(f"smooth_l1_loss: beta {beta}; it must not be negative")
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    check_equal_shapes(input, target, "smooth_l1_loss")
    difference = np.subtract(input, target)
    distance = np.abs(difference)
    loss = np.where(distance < beta, np.square(difference) * (0.5 / beta), distance - 0.5 * beta)
    return reduce_loss(loss, reduction, "smooth_l1_loss")


def huber_loss(input: Values, target: Values, *, reduction: str = "mean", delta: float = 1.0,
               weight: Values | None = None) -> ndarray:  # fmt: skip
    """Return the mean of d² / 2 where d = |input - target| is at most delta, else of delta (d - delta / 2).

    Each number is weighted by `weight` of the input's shape.

    Raises:
        ShapeError: the shapes differ, the reduction is unknown, or delta is not positive.
    """
    if delta <= 0:
        raise ShapeError(f"huber_loss: delta {delta}; it must be positive")
    check_equal_shapes(input, target, "huber_loss")
    difference = np.subtract(input, target)
    distance = np.abs(difference)
    loss = np.where(distance <= delta, np.square(difference) * 0.5, (distance - 0.5 * delta) * delta)
    return _weighted(loss, weight, reduction, "huber_loss")


def _weighted(loss: ndarray, weight: Values | None, reduction: str, function: str) -> ndarray:
    if weight is None:
        return reduce_loss(loss, reduction, function)
    if tuple(weight.shape) != loss.shape:
        raise ShapeError(f"{function}: weight of shape {tuple(weight.shape)}; it takes {loss.shape}")
    weighted = np.multiply(loss, weight)
    return np.sum(weighted) / np.sum(weight) if reduction == "mean" else reduce_loss(weighted, reduction, function)


mse, l1, smooth_l1, huber = mse_loss, l1_loss, smooth_l1_loss, huber_loss

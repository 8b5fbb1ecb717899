"""Limits of the gradients of one step."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext._core import operator
from walle.engine_ext.errors import ShapeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = ["clip_grad_norm", "clip_grad_value"]


def clip_grad_norm(gradients: list[Values], max_norm: float, norm_type: float = 2.0) -> tuple[list[ndarray], ndarray]:
    """Return the gradients scaled down so that their common norm is at most `max_norm`, and that norm before.

    The norm is that of all numbers of all gradients; `norm_type` inf takes the greatest magnitude.

    Raises:
        ShapeError: there are no gradients, or `norm_type` is not positive.
    """
    if not gradients or norm_type <= 0:
        raise ShapeError(
            f"clip_grad_norm: {len(gradients)} gradients, norm_type {norm_type}; it takes at least one gradient and a "
            "positive norm_type"
        )
    total: ndarray
    if norm_type == float("inf"):
        parts = [np.max(np.abs(gradient)) for gradient in gradients]
        total = parts[0]
        for part in parts[1:]:
            total = np.maximum(total, part)
    else:
        parts = [np.sum(_power(gradient, norm_type)) for gradient in gradients]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        total = np.sqrt(total) if norm_type == 2 else np.power(total, 1 / norm_type)
    scale = np.minimum(max_norm / (total + 1e-6), 1.0)
    return [np.multiply(gradient, operator("Cast", [scale], to=str(gradient.dtype))) for gradient in gradients], total


def clip_grad_value(gradients: list[Values], clip_value: float) -> list[ndarray]:
    """Return the gradients with each number limited to [-clip_value, clip_value]."""
    return [operator("Clip", [gradient], min=-clip_value, max=clip_value) for gradient in gradients]


def _power(gradient: Values, exponent: float) -> ndarray:
    if exponent == 2:
        return np.square(gradient)
    magnitude = np.abs(gradient)
    return magnitude if exponent == 1 else np.power(magnitude, exponent)

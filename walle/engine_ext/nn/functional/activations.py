"""Activations, elementwise or along one axis."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext._core import operator
from walle.engine_ext.errors import ShapeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = [
    "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_softmax", "logsigmoid", "mish", "prelu",
    "relu", "relu6", "selu", "sigmoid", "silu", "softmax", "softplus", "tanh",
]  # fmt: skip


def relu(input: Values) -> ndarray:
    """Return max(x, 0)."""
    return operator("Relu", [input])


def relu6(input: Values) -> ndarray:
    """Return x limited to [0, 6]."""
    return operator("Clip", [input], min=0.0, max=6.0)


def hardtanh(input: Values, min_val: float = -1.0, max_val: float = 1.0) -> ndarray:
    """Return x limited to [min_val, max_val]."""
    return operator("Clip", [input], min=min_val, max=max_val)


def leaky_relu(input: Values, negative_slope: float = 0.01) -> ndarray:
    """Return x, negative numbers times the slope."""
    return operator("LeakyRelu", [input], alpha=negative_slope)


def prelu(input: Values, weight: Values) -> ndarray:
    """Return x, negative numbers times a slope: one for all, or one a channel (axis 1).

    Raises:
        ShapeError: `weight` has another number of slopes.
    """
    slopes = weight.shape[0] if len(weight.shape) else 1
    channels = input.shape[1] if len(input.shape) > 1 else 1
    if len(weight.shape) > 1 or slopes not in (1, channels):
        raise ShapeError(f"prelu: {slopes} slopes for an input of shape {tuple(input.shape)}; it takes 1 or {channels}")
    trailing = max(len(input.shape) - 2, 0) if slopes > 1 else 0
    return operator("PRelu", [input, np.reshape(weight, (slopes, *(1,) * trailing))])


def elu(input: Values, alpha: float = 1.0) -> ndarray:
    """Return x where it is positive, else alpha * (exp(x) - 1)."""
    return operator("Elu", [input], alpha=alpha)


def selu(input: Values) -> ndarray:
    """Return the scaled ELU that keeps mean and variance (Klambauer et al. 2017)."""
    return operator("Selu", [input], alpha=1.6732632423543772, gamma=1.0507009873554805)


def gelu(input: Values, approximate: str = "none") -> ndarray:
    """Return x times the normal distribution function of x; approximate="tanh" is the approximation by tanh."""
    return operator("Gelu", [input], approximate=approximate)


def silu(input: Values) -> ndarray:
    """Return x * sigmoid(x)."""
    return operator("Swish", [input])


def mish(input: Values) -> ndarray:
    """Return x * tanh(softplus(x))."""
    return operator("Mish", [input])


def sigmoid(input: Values) -> ndarray:
    """Return 1 / (1 + exp(-x))."""
    return operator("Sigmoid", [input])


def logsigmoid(input: Values) -> ndarray:
    """Return log(sigmoid(x)), without overflow."""
    return operator("Neg", [operator("Softplus", [operator("Neg", [input])])])


def tanh(input: Values) -> ndarray:
    """Return the hyperbolic tangent."""
    return operator("Tanh", [input])


def softplus(input: Values, beta: float = 1.0, threshold: float = 20.0) -> ndarray:
    """Return log(1 + exp(beta * x)) / beta, and x itself where beta * x exceeds the threshold."""
    scaled = input if beta == 1 else np.multiply(input, beta)
    smooth: ndarray = operator("Softplus", [scaled]) if beta == 1 else operator("Softplus", [scaled]) / beta
    if threshold >= 20 and input.dtype == "float32":
        return smooth  # equal to x in float32 from there on
    result: ndarray = np.where(scaled > threshold, input, smooth)
    return result


def hardswish(input: Values) -> ndarray:
    """Return x * min(max(x + 3, 0), 6) / 6."""
    return operator("HardSwish", [input])


def hardsigmoid(input: Values) -> ndarray:
    """Return min(max(x / 6 + 1/2, 0), 1)."""
    return operator("HardSigmoid", [input], alpha=1 / 6, beta=0.5)


def softmax(input: Values, dim: int | None = None) -> ndarray:
    """Return exp(x) / sum(exp(x)) along an axis; without one, along the axis that PyTorch chooses."""
    return operator("Softmax", [input], axis=_softmax_axis(input, dim))


def log_softmax(input: Values, dim: int | None = None) -> ndarray:
    """Return log(softmax(x)) along an axis, without overflow."""
    return operator("LogSoftmax", [input], axis=_softmax_axis(input, dim))


def _softmax_axis(input: Values, dim: int | None) -> int:
    return dim if dim is not None else 0 if len(input.shape) in {0, 1, 3} else 1

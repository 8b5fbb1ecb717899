"""`walle.nn.init`: initialisers that fill a parameter or an array in place, with PyTorch's names and defaults.

Random ones take numbers of the generator that `nn.manual_seed` starts, or of another one. Each returns what it filled.
"""

from __future__ import annotations

import math

from walle.engine_ext import np
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.nn.generator import default_generator
from walle.engine_ext.np.base import product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext.nn.tracing import Parameter
    from walle.engine_ext.np.random import Generator

__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_",
    "orthogonal_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip

_GAINS = {"tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4}
_LINEAR = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "sigmoid")


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor of the weights' deviation before an activation; `param` is leaky_relu's slope.

    Raises:
        ShapeError: the activation is unknown.
    """
    if nonlinearity in _LINEAR:
        return 1.0
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2 / (1 + slope * slope))
    if nonlinearity not in _GAINS:
        raise ShapeError(f"calculate_gain: nonlinearity {nonlinearity!r}; it takes {', '.join((*_LINEAR, *_GAINS))}")
    return _GAINS[nonlinearity]


def uniform_[T: (ndarray, Parameter)](tensor: T, a: float = 0.0, b: float = 1.0,
                                      generator: Generator | None = None) -> T:  # fmt: skip
    """Fill with uniform numbers of [a, b)."""
    data = _data(tensor)
    return _fill(tensor, _generator(generator).uniform(a, b, data.shape, _float_of(data)))


def normal_[T: (ndarray, Parameter)](tensor: T, mean: float = 0.0, std: float = 1.0,
                                     generator: Generator | None = None) -> T:  # fmt: skip
    """Fill with normal numbers."""
    data = _data(tensor)
    return _fill(tensor, _generator(generator).normal(mean, std, data.shape, _float_of(data)))


def trunc_normal_[T: (ndarray, Parameter)](tensor: T, mean: float = 0.0, std: float = 1.0, a: float = -2.0,
                                           b: float = 2.0, generator: Generator | None = None) -> T:  # fmt: skip
    """Fill with normal numbers, drawn again until each is within [a, b].

    Raises:
        ShapeError: fewer than one number in a thousand is within.
    """
    within = (math.erf((b - mean) / std / math.sqrt(2)) - math.erf((a - mean) / std / math.sqrt(2))) / 2
    if within < 1e-3:
        raise ShapeError(f"trunc_normal_: [{a}, {b}] has {within:.2g} of the numbers of mean {mean} and std {std}")
    data, source = _data(tensor), _generator(generator)
    values = source.normal(mean, std, data.shape, _float_of(data))
    outside = (values < a) | (values > b)
    while outside.any():
        values = np.where(outside, source.normal(mean, std, data.shape, _float_of(data)), values)
        outside = (values < a) | (values > b)
    return _fill(tensor, values)


def constant_[T: (ndarray, Parameter)](tensor: T, val: float) -> T:
    """Fill with one number."""
    return _fill(tensor, np.full(_data(tensor).shape, val, _data(tensor).dtype))


def ones_[T: (ndarray, Parameter)](tensor: T) -> T:
    """Fill with 1."""
    return constant_(tensor, 1.0)


def zeros_[T: (ndarray, Parameter)](tensor: T) -> T:
    """Fill with 0."""
    return constant_(tensor, 0.0)


def eye_[T: (ndarray, Parameter)](tensor: T) -> T:
    """Fill a matrix with 1 on the diagonal and 0 elsewhere.

    Raises:
        ShapeError: it is not a matrix.
    """
    shape = _data(tensor).shape
    if len(shape) != 2:
        raise ShapeError(f"eye_: shape {shape}; it takes a matrix")
    return _fill(tensor, np.eye(shape[0], shape[1]))


def dirac_[T: (ndarray, Parameter)](tensor: T, groups: int = 1) -> T:
    """Fill the weights of a convolution, (out, in / groups, ...), so that it returns its input's channels.

    Raises:
        ShapeError: the shape has fewer than 3 or more than 5 axes, or the groups do not divide the outputs.
    """
    shape = _data(tensor).shape
    if not 3 <= len(shape) <= 5 or shape[0] % groups:
        raise ShapeError(f"dirac_: shape {shape} in {groups} groups; it takes 3 to 5 axes, the groups divide the first")
    values = np.zeros(shape)
    outputs = shape[0] // groups
    middle: tuple[int, ...] = tuple(size // 2 for size in shape[2:])
    for group in range(groups):
        for channel in range(min(outputs, shape[1])):
            values[(group * outputs + channel, channel, *middle)] = 1.0
    return _fill(tensor, values)


def xavier_uniform_[T: (ndarray, Parameter)](tensor: T, gain: float = 1.0, generator: Generator | None = None) -> T:
    """Fill with uniform numbers of variance gain² · 2 / (fan_in + fan_out) (Glorot and Bengio 2010)."""
    bound = gain * math.sqrt(6 / sum(fans(_data(tensor).shape)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_[T: (ndarray, Parameter)](tensor: T, gain: float = 1.0, generator: Generator | None = None) -> T:
    """Fill with normal numbers of variance gain² · 2 / (fan_in + fan_out) (Glorot and Bengio 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(fans(_data(tensor).shape))), generator)


def kaiming_uniform_[T: (ndarray, Parameter)](tensor: T, a: float = 0.0, mode: str = "fan_in",
                                              nonlinearity: str = "leaky_relu",
                                              generator: Generator | None = None) -> T:  # fmt: skip
    """Fill with uniform numbers of variance gain² / fan (He et al. 2015); `a` is leaky_relu's slope."""
    bound = math.sqrt(3) * calculate_gain(nonlinearity, a) / math.sqrt(_fan(_data(tensor).shape, mode))
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_[T: (ndarray, Parameter)](tensor: T, a: float = 0.0, mode: str = "fan_in",
                                             nonlinearity: str = "leaky_relu",
                                             generator: Generator | None = None) -> T:  # fmt: skip
    """Fill with normal numbers of variance gain² / fan (He et al. 2015); `a` is leaky_relu's slope."""
    std = calculate_gain(nonlinearity, a) / math.sqrt(_fan(_data(tensor).shape, mode))
    return normal_(tensor, 0.0, std, generator)


def orthogonal_[T: (ndarray, Parameter)](tensor: T, gain: float = 1.0, generator: Generator | None = None) -> T:
    """Fill with a matrix of orthogonal rows or columns; later axes count as columns (Saxe et al. 2013).

    Raises:
        ShapeError: there are fewer than two axes.
    """
    shape = _data(tensor).shape
    if len(shape) < 2:
        raise ShapeError(f"orthogonal_: shape {shape}; it takes at least two axes")
    rows, columns = shape[0], product(shape[1:])
    flat = _generator(generator).normal(0.0, 1.0, (max(rows, columns), min(rows, columns)), "float64")
    orthogonal, triangle = np.linalg.qr(flat)
    orthogonal = orthogonal * np.sign(np.diagonal(triangle))
    return _fill(tensor, (orthogonal if rows >= columns else orthogonal.T).reshape(shape) * gain)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return inputs and outputs of one unit: (out, in, ...) → (in · window, out · window).

    Raises:
        ShapeError: there are fewer than two axes.
    """
    if len(shape) < 2:
        raise ShapeError(f"shape {shape} has no fan-in and fan-out; it takes at least two axes")
    window = product(shape[2:])
    return shape[1] * window, shape[0] * window


def _fan(shape: tuple[int, ...], mode: str) -> int:
    if mode not in {"fan_in", "fan_out"}:
        raise ShapeError(f"mode {mode!r}; it takes 'fan_in' or 'fan_out'")
    return fans(shape)[mode == "fan_out"]


def _data(tensor: ndarray | Parameter) -> ndarray:
    return tensor if isinstance(tensor, ndarray) else tensor.data


def _float_of(data: ndarray) -> str:
    return data.dtype if data.dtype in {"float32", "float64"} else "float32"


def _fill[T: (ndarray, Parameter)](tensor: T, values: ndarray) -> T:
    data = _data(tensor)
    data[...] = values.astype(data.dtype)
    return tensor


def _generator(generator: Generator | None) -> Generator:
    return default_generator() if generator is None else generator

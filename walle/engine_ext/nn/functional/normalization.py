"""Normalisation by mean and variance, and dropout."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext._core import evaluate, operator
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.nn.sizes import check_size
from walle.engine_ext.nn.tracing import random_state
from walle.engine_ext.np.base import product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Size, Values

__all__ = ["batch_norm", "dropout", "group_norm", "instance_norm", "layer_norm", "rms_norm"]


def batch_norm(input: Values, running_mean: Values | None, running_var: Values | None, weight: Values | None = None,
               bias: Values | None = None, training: bool = False, momentum: float = 0.1,
               eps: float = 1e-5) -> ndarray:  # fmt: skip
    """Return x normalised by channel (axis 1): in training by the batch's mean and variance, else by the running ones.

    The running statistics stay unchanged: `nn.BatchNorm2d` updates them.

    Raises:
        ShapeError: the input has no channels, or no running statistics are given outside of training.
    """
    _ = momentum  # an argument of PyTorch's function, which changes the running statistics in place
    if training:
        return normalized_batch(input, weight, bias, eps)[0]
    if running_mean is None or running_var is None:
        raise ShapeError("batch_norm: running_mean and running_var are needed outside of training")
    scale, shift = _affine(input, 1, weight, bias)
    return operator("BatchNormalization", [input, scale, shift, running_mean, running_var], epsilon=eps)


def normalized_batch(input: Values, weight: Values | None, bias: Values | None, eps: float) -> list[ndarray]:
    """Return x normalised by the batch's statistics, their mean and their biased variance, each (channels,).

    Raises:
        ShapeError: there is one number a channel.
    """
    shape = tuple(input.shape)
    if len(shape) < 2 or product(shape) == shape[1]:
        raise ShapeError(f"input of shape {shape} in training; it takes more than one number a channel")
    scale, shift = _affine(input, 1, weight, bias)
    zero, one = np.zeros(shape[1], dtype=input.dtype), np.ones(shape[1], dtype=input.dtype)
    return evaluate(
        "BatchNormalization",
        [input, scale, shift, zero, one],
        {"epsilon": eps, "momentum": 0.0, "training_mode": 1},  # outputs are the batch's own statistics
        3,
    )


def layer_norm(input: Values, normalized_shape: Size, weight: Values | None = None, bias: Values | None = None,
               eps: float = 1e-5) -> ndarray:  # fmt: skip
    """Return x normalised over its last axes, which are `normalized_shape`; the affine part has that shape.

    Raises:
        ShapeError: the last axes have other sizes.
    """
    shape = _last_axes(input, normalized_shape)
    scale = np.ones(shape, dtype=input.dtype) if weight is None else weight
    inputs = [input, scale] if bias is None else [input, scale, bias]
    return operator("LayerNormalization", inputs, axis=-len(shape), epsilon=eps)


def rms_norm(input: Values, normalized_shape: Size, weight: Values | None = None, eps: float | None = None) -> ndarray:
    """Return x divided by the root of its mean square over its last axes; eps is the dtype's by default.

    Raises:
        ShapeError: the last axes have other sizes.
    """
    shape = _last_axes(input, normalized_shape)
    scale = np.ones(shape, dtype=input.dtype) if weight is None else weight
    epsilon = _EPSILON[str(input.dtype)] if eps is None else eps
    return operator("RMSNormalization", [input, scale], axis=-len(shape), epsilon=epsilon)


_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def group_norm(input: Values, num_groups: int, weight: Values | None = None, bias: Values | None = None,
               eps: float = 1e-5) -> ndarray:  # fmt: skip
    """Return x normalised over groups of channels (axis 1) and all later axes; the affine part is by channel.

    Raises:
        ShapeError: the groups do not divide the channels.
    """
    shape = tuple(input.shape)
    if len(shape) < 2 or shape[1] % num_groups:
        raise ShapeError(f"group_norm: input of shape {shape}; {num_groups} groups do not divide its channels")
    scale, shift = _affine(input, 1, weight, bias)
    return operator("GroupNormalization", [input, scale, shift], num_groups=num_groups, epsilon=eps)


def instance_norm(input: Values, running_mean: Values | None = None, running_var: Values | None = None,
                  weight: Values | None = None, bias: Values | None = None, use_input_stats: bool = True,
                  momentum: float = 0.1, eps: float = 1e-5) -> ndarray:  # fmt: skip
    """Return x normalised over the axes after the channels, by sample; else by the running statistics.

    Raises:
        ShapeError: the input has no axes after the channels.
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if len(input.shape) < 3:
        raise ShapeError(f"instance_norm: input of shape {tuple(input.shape)}; it takes (batch, channels, ...)")
    scale, shift = _affine(input, 1, weight, bias)
    return operator("InstanceNormalization", [input, scale, shift], epsilon=eps)


def dropout(input: Values, p: float = 0.5, training: bool = True) -> ndarray:
    """Return x with each number set to 0 with probability p and the others divided by 1 - p; outside training, x.

    Raises:
        ShapeError: p is outside [0, 1].
    """
    if not 0 <= p <= 1:
        raise ShapeError(f"dropout: p {p}; it takes a probability from 0 to 1")
    given: ndarray = input
    if not training or p == 0:
        return given
    if p == 1:
        return np.multiply(input, np.zeros((), dtype=input.dtype))
    uniform = operator("RandomBits", [random_state()], shape=tuple(input.shape), to="float32")
    kept: ndarray = operator("Cast", [uniform >= p], to=str(input.dtype))
    return np.multiply(input, kept * (1 / (1 - p)))


def _affine(input: Values, axis: int, weight: Values | None, bias: Values | None) -> tuple[Values, Values]:
    channels = input.shape[axis]
    for part in (weight, bias):
        if part is not None:
            check_size(input, axis, part.shape[0], f"(batch, {part.shape[0]}, ...)")
    scale = np.ones(channels, dtype=input.dtype) if weight is None else weight
    return scale, np.zeros(channels, dtype=input.dtype) if bias is None else bias


def _last_axes(input: Values, normalized_shape: Size) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if tuple(input.shape[-len(shape) :]) != shape:
        raise ShapeError(f"input of shape {tuple(input.shape)}; its last axes must be {shape}")
    return shape

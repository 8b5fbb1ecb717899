"""Normalising layers."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext._core import operator
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.nn import functional, init
from walle.engine_ext.nn.functional.normalization import normalized_batch
from walle.engine_ext.nn.module import Module
from walle.engine_ext.nn.sizes import check_axes, check_size
from walle.engine_ext.nn.tracing import Parameter
from walle.engine_ext.np.base import as_shape, product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Size, Values

__all__ = ["BatchNorm1d", "BatchNorm2d", "GroupNorm", "InstanceNorm2d", "LayerNorm", "RMSNorm"]


class _RunningNorm(Module):
    """Affine part and running statistics by channel."""

    weight: Parameter | None
    bias: Parameter | None
    running_mean: ndarray | None
    running_var: ndarray | None
    num_batches_tracked: ndarray | None
    allowed_axes: tuple[int, ...] = (4,)
    layout = "(batch, {}, height, width)"

    def __init__(self, num_features: int, eps: float, momentum: float | None, affine: bool,
                 track_running_stats: bool, bias: bool, dtype: str) -> None:  # fmt: skip
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.register_parameter("weight", Parameter(np.ones(num_features, dtype=dtype)) if affine else None)
        has_bias = affine and bias
        self.register_parameter("bias", Parameter(np.zeros(num_features, dtype=dtype)) if has_bias else None)
        self.register_buffer("running_mean", np.zeros(num_features, dtype=dtype) if track_running_stats else None)
        self.register_buffer("running_var", np.ones(num_features, dtype=dtype) if track_running_stats else None)
        self.register_buffer("num_batches_tracked", np.array(0) if track_running_stats else None)

    def reset_running_stats(self) -> None:
        """Set the running statistics to mean 0 and variance 1."""
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean = np.zeros_like(self.running_mean)
            self.running_var = np.ones_like(self.running_var)
            self.num_batches_tracked = np.array(0)

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _check(self, input: Values) -> None:
        layout = self.layout.format(self.num_features)
        check_axes(input, self.allowed_axes, layout)
        check_size(input, 1, self.num_features, layout)

    def _track(self, mean: ndarray, variance: ndarray, count: int) -> None:
        """Move the running statistics towards those of a batch; `variance` is biased, of `count` numbers."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        share: Values = self.momentum
        if share is None:  # a plain mean of all batches
            share = 1.0 / operator("Cast", [self.num_batches_tracked], to=str(mean.dtype))
        unbiased = variance * (count / max(count - 1, 1))
        self.running_mean = self.running_mean * (1.0 - share) + mean * share
        self.running_var = self.running_var * (1.0 - share) + unbiased * share

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_RunningNorm):
    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, bias: bool = True, dtype: str = "float32") -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias, dtype)

    def forward(self, input: Values) -> ndarray:
        self._check(input)
        if not self.training and self.running_mean is not None:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        result, mean, variance = normalized_batch(input, self.weight, self.bias, self.eps)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked = np.add(self.num_batches_tracked, 1)
            self._track(mean, variance, product(input.shape) // self.num_features)
        return result


class BatchNorm1d(_BatchNorm):
    """Normalises each channel over the batch: (batch, channels) or (batch, channels, length), shape unchanged.

    In training mode the running mean and the running (unbiased) variance move by `momentum`; with None they are plain
    means. In the mode of inference they take the place of the batch's own.
    """

    allowed_axes = (2, 3)
    layout = "(batch, {0}) or (batch, {0}, length)"


class BatchNorm2d(_BatchNorm):
    """Normalises each channel over the batch: (batch, channels, height, width), shape unchanged; see BatchNorm1d."""


class InstanceNorm2d(_RunningNorm):
    """Normalises each channel of each sample: (batch, channels, height, width), shape unchanged."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
                 track_running_stats: bool = False, *, bias: bool = True, dtype: str = "float32") -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias, dtype)

    def forward(self, input: Values) -> ndarray:
        self._check(input)
        use_input = self.training or self.running_mean is None
        if self.training and self.running_mean is not None:
            mean = np.mean(input, axis=(2, 3))
            variance = np.mean(np.square(input - np.expand_dims(mean, (2, 3))), axis=(2, 3))
            count = input.shape[2] * input.shape[3]
            self._track(np.mean(mean, axis=0), np.mean(variance, axis=0), count)
        return functional.instance_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, use_input, 0.0, self.eps
        )


class LayerNorm(Module):
    """Normalises over the last axes, which are `normalized_shape`; shape unchanged."""

    weight: Parameter | None
    bias: Parameter | None

    def __init__(self, normalized_shape: Size, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
                 *, dtype: str = "float32") -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = as_shape(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        shape = self.normalized_shape
        self.register_parameter("weight", Parameter(np.ones(shape, dtype=dtype)) if elementwise_affine else None)
        has_bias = elementwise_affine and bias
        self.register_parameter("bias", Parameter(np.zeros(shape, dtype=dtype)) if has_bias else None)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Values) -> ndarray:
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(Module):
    """Divides by the root of the mean square over the last axes, which are `normalized_shape`; shape unchanged.

    `eps` is the smallest difference from 1 of the input's dtype by default.
    """

    weight: Parameter | None

    def __init__(self, normalized_shape: Size, eps: float | None = None, elementwise_affine: bool = True, *,
                 dtype: str = "float32") -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = as_shape(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        weight = Parameter(np.ones(self.normalized_shape, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", weight)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Values) -> ndarray:
        return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """Normalises over groups of channels of each sample: (batch, channels, ...), shape unchanged."""

    weight: Parameter | None
    bias: Parameter | None

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *,
                 bias: bool = True, dtype: str = "float32") -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ShapeError(f"GroupNorm: {num_groups} groups do not divide {num_channels} channels")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter("weight", Parameter(np.ones(num_channels, dtype=dtype)) if affine else None)
        has_bias = affine and bias
        self.register_parameter("bias", Parameter(np.zeros(num_channels, dtype=dtype)) if has_bias else None)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Values) -> ndarray:
        check_size(input, 1, self.num_channels, f"(batch, {self.num_channels}, ...)")
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        parts = f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
        return f"{parts}, bias={self.bias is not None}"

"""Pooling over windows, and over regions that divide an axis."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext._core import operator
from walle.engine_ext.errors import ShapeError, UnsupportedError
from walle.engine_ext.nn.sizes import check_axes, per_axis

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Size, Values

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool1d", "avg_pool2d", "max_pool1d",
    "max_pool2d",
]  # fmt: skip

_LAYOUTS = {1: "(batch, channels, length)", 2: "(batch, channels, height, width)"}


def max_pool1d(input: Values, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
               ceil_mode: bool = False, return_indices: bool = False) -> ndarray:  # fmt: skip
    """Return the greatest number of each window: (batch, channels, length) → (batch, channels, length').

    The stride is the kernel's size by default; the batch may be left out.

    Raises:
        UnsupportedError: indices are asked for.
    """
    return _max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, 1)


def max_pool2d(input: Values, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
               ceil_mode: bool = False, return_indices: bool = False) -> ndarray:  # fmt: skip
    """Return the greatest number of each window: (batch, channels, h, w) → (batch, channels, h', w').

    The stride is the kernel's size by default; the batch may be left out.

    Raises:
        UnsupportedError: indices are asked for.
    """
    return _max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, 2)


def avg_pool1d(input: Values, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
               ceil_mode: bool = False, count_include_pad: bool = True) -> ndarray:  # fmt: skip
    """Return the mean of each window: (batch, channels, length) → (batch, channels, length')."""
    return _avg_pool(input, kernel_size, stride, padding, ceil_mode, count_include_pad, None, 1)


def avg_pool2d(input: Values, kernel_size: Size, stride: Size | None = None, padding: Size = 0,
               ceil_mode: bool = False, count_include_pad: bool = True,
               divisor_override: int | None = None) -> ndarray:  # fmt: skip
    """Return the mean of each window: (batch, channels, h, w) → (batch, channels, h', w').

    Raises:
        UnsupportedError: a divisor is given.
    """
    return _avg_pool(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 2)


def adaptive_avg_pool1d(input: Values, output_size: Size) -> ndarray:
    """Return means of n regions: (..., length) → (..., n)."""
    return _adaptive_avg_pool(input, per_axis(output_size, 1, "output_size"))


def adaptive_avg_pool2d(input: Values, output_size: int | tuple[int | None, ...]) -> ndarray:
    """Return means of regions: (..., h, w) → (..., h', w'); None keeps the size of an axis.

    Region i of n takes the elements from floor(i * size / n) up to ceil((i + 1) * size / n).
    """
    wanted = (output_size, output_size) if isinstance(output_size, int) else output_size
    check_axes(input, (3, 4), _LAYOUTS[2])
    sizes = [input.shape[at - 2] if size is None else size for at, size in enumerate(wanted)]
    return _adaptive_avg_pool(input, tuple(sizes))


def adaptive_max_pool2d(input: Values, output_size: Size) -> ndarray:
    """Return the greatest numbers of regions: (..., h, w) → (..., h', w').

    Raises:
        UnsupportedError: the regions are not of one size.
    """
    check_axes(input, (3, 4), _LAYOUTS[2])
    sizes = per_axis(output_size, 2, "output_size")
    kernel = _equal_regions(tuple(input.shape[-2:]), sizes)
    if kernel is None:
        raise UnsupportedError(
            f"adaptive_max_pool2d: {sizes} regions of {tuple(input.shape[-2:])} elements; the sizes must divide"
        )
    return max_pool2d(input, kernel)


def _adaptive_avg_pool(input: Values, sizes: tuple[int, ...]) -> ndarray:
    axes = len(sizes)
    check_axes(input, (axes + 1, axes + 2), _LAYOUTS[axes])
    shape = tuple(input.shape[-axes:])
    if all(size == 1 for size in sizes):
        return np.mean(input, axis=tuple(range(-axes, 0)), keepdims=True)
    kernel = _equal_regions(shape, sizes)
    if kernel is not None:
        return _avg_pool(input, kernel, None, 0, False, True, None, axes)
    result = np.matmul(input, np.transpose(_region_weights(shape[-1], sizes[-1], input.dtype)))
    return result if axes == 1 else np.matmul(_region_weights(shape[0], sizes[0], input.dtype), result)


def _equal_regions(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the size of every region, None where they differ."""
    if any(size < 1 or whole % size for whole, size in zip(shape, sizes, strict=True)):
        return None
    return tuple(whole // size for whole, size in zip(shape, sizes, strict=True))


def _region_weights(size: int, count: int, dtype: str) -> ndarray:
    """Return the matrix (count, size) whose product with an axis is the mean of each region."""
    rows = []
    for at in range(count):
        start, end = at * size // count, -(-(at + 1) * size // count)
        rows.append([1 / (end - start) if start <= column < end else 0.0 for column in range(size)])
    return np.array(rows, dtype=dtype)


def _max_pool(input: Values, kernel_size: Size, stride: Size | None, padding: Size, dilation: Size, ceil_mode: bool,
              return_indices: bool, axes: int) -> ndarray:  # fmt: skip
    if return_indices:
        raise UnsupportedError(f"max_pool{axes}d: return_indices is not supported")
    attributes = _window(input, kernel_size, stride, padding, ceil_mode, axes)
    attributes["dilations"] = list(per_axis(dilation, axes, "dilation"))
    return _pooled("MaxPool", input, attributes, axes)


def _avg_pool(input: Values, kernel_size: Size, stride: Size | None, padding: Size, ceil_mode: bool,
              count_include_pad: bool, divisor_override: int | None, axes: int) -> ndarray:  # fmt: skip
    if divisor_override is not None:
        raise UnsupportedError("avg_pool2d: divisor_override is not supported; multiply the result instead")
    attributes = _window(input, kernel_size, stride, padding, ceil_mode, axes)
    return _pooled("AveragePool", input, {**attributes, "count_include_pad": int(count_include_pad)}, axes)


def _window(input: Values, kernel_size: Size, stride: Size | None, padding: Size, ceil_mode: bool,
            axes: int) -> dict[str, object]:  # fmt: skip
    check_axes(input, (axes + 1, axes + 2), _LAYOUTS[axes])
    kernel, pads = per_axis(kernel_size, axes, "kernel_size"), per_axis(padding, axes, "padding")
    if any(pad > size // 2 for pad, size in zip(pads, kernel, strict=True)):
        raise ShapeError(f"padding {pads} for a kernel of {kernel}; it takes at most half of the kernel's size")
    strides = kernel if stride is None else per_axis(stride, axes, "stride")
    return {
        "kernel_shape": list(kernel), "strides": list(strides), "pads": [*pads, *pads], "ceil_mode": int(ceil_mode),
    }  # fmt: skip


def _pooled(op: str, input: Values, attributes: dict[str, object], axes: int) -> ndarray:
    if len(input.shape) == axes + 2:
        return operator(op, [input], **attributes)
    return operator(op, [np.expand_dims(input, 0)], **attributes)[0]

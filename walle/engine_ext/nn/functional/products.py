"""Linear maps: dense products, convolutions and embeddings."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext._core import operator
from walle.engine_ext.errors import DTypeError, ShapeError
from walle.engine_ext.nn.sizes import per_axis
from walle.engine_ext.nn.tracing import stop_gradient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Size, Values

__all__ = ["conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "embedding", "linear"]


def linear(input: Values, weight: Values, bias: Values | None = None) -> ndarray:
    """Return x @ weight.T + bias: (..., in) and (out, in) → (..., out).

    Raises:
        ShapeError: the last axis of the input differs from that of the weight.
    """
    if not len(input.shape) or input.shape[-1] != weight.shape[-1]:
        raise ShapeError(
            f"linear: input of shape {tuple(input.shape)} with a weight of shape {tuple(weight.shape)}; the input's "
            f"last axis must be {weight.shape[-1]}"
        )
    product: ndarray = np.matmul(input, np.transpose(weight))
    return product if bias is None else np.add(product, bias)


def conv1d(input: Values, weight: Values, bias: Values | None = None, stride: Size = 1, padding: Size | str = 0,
           dilation: Size = 1, groups: int = 1) -> ndarray:  # fmt: skip
    """Return the cross-correlation: (batch, in, length) and (out, in / groups, kernel) → (batch, out, length').

    The batch may be left out. Padding is "valid", "same" (stride 1) or zeros on both sides.

    Raises:
        ShapeError: channels or sizes do not fit.
    """
    return _convolve(input, weight, bias, stride, padding, dilation, groups, 1)


def conv2d(input: Values, weight: Values, bias: Values | None = None, stride: Size = 1, padding: Size | str = 0,
           dilation: Size = 1, groups: int = 1) -> ndarray:  # fmt: skip
    """Return the cross-correlation: (batch, in, h, w) and (out, in / groups, kh, kw) → (batch, out, h', w').

    The batch may be left out. Padding is "valid", "same" (stride 1) or zeros on both sides.

    Raises:
        ShapeError: channels or sizes do not fit.
    """
    return _convolve(input, weight, bias, stride, padding, dilation, groups, 2)


def conv_transpose1d(input: Values, weight: Values, bias: Values | None = None, stride: Size = 1, padding: Size = 0,
                     output_padding: Size = 0, groups: int = 1, dilation: Size = 1) -> ndarray:  # fmt: skip
    """Return the transposed convolution: (batch, in, length) and (in, out / groups, kernel) → (batch, out, length').

    length' = (length - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1.

    Raises:
        ShapeError: channels or sizes do not fit.
    """
    return _convolve_transposed(input, weight, bias, stride, padding, output_padding, groups, dilation, 1)


def conv_transpose2d(input: Values, weight: Values, bias: Values | None = None, stride: Size = 1, padding: Size = 0,
                     output_padding: Size = 0, groups: int = 1, dilation: Size = 1) -> ndarray:  # fmt: skip
    """Return the transposed convolution: (batch, in, h, w) and (in, out / groups, kh, kw) → (batch, out, h', w').

    Sizes are those of conv_transpose1d.

    Raises:
        ShapeError: channels or sizes do not fit.
    """
    return _convolve_transposed(input, weight, bias, stride, padding, output_padding, groups, dilation, 2)


def embedding(input: Values, weight: Values, padding_idx: int | None = None) -> ndarray:
    """Return rows of the weight: indices of any shape and (rows, size) → (..., size).

    No gradient reaches the row `padding_idx`.

    Raises:
        DTypeError: the indices are not integers.
        ShapeError: an index is out of range.
    """
    if input.dtype not in _INDICES:
        raise DTypeError(f"embedding: indices of dtype {input.dtype}; it takes int32 or int64")
    index = np.where(input < 0, weight.shape[0], input)  # an index does not count from the end: the Gather refuses it
    rows: ndarray = operator("Gather", [weight, index], axis=0)
    if padding_idx is None:
        return rows
    is_padding: ndarray = np.expand_dims(input == padding_idx % weight.shape[0], -1)
    result: ndarray = np.where(is_padding, stop_gradient(rows), rows)
    return result


_INDICES = ("int64", "int32", "int16", "int8", "uint8")


def window_pads(padding: Size | str, kernel: tuple[int, ...], strides: tuple[int, ...],
                dilations: tuple[int, ...]) -> list[int]:  # fmt: skip
    """Return the zeros before each axis, then those after each axis.

    Raises:
        ShapeError: the padding is unknown, or "same" with a stride other than 1.
    """
    if not isinstance(padding, str):
        pads = per_axis(padding, len(kernel), "padding")
        return [*pads, *pads]
    if padding == "valid":
        return [0] * 2 * len(kernel)
    if padding != "same":
        raise ShapeError(f"padding {padding!r}; it takes 'valid', 'same' or numbers")
    if any(stride != 1 for stride in strides):
        raise ShapeError(f"padding 'same' with stride {strides}; it takes stride 1")
    total = [dilation * (size - 1) for size, dilation in zip(kernel, dilations, strict=True)]
    return [*(both // 2 for both in total), *(both - both // 2 for both in total)]


def _convolve(input: Values, weight: Values, bias: Values | None, stride: Size, padding: Size | str, dilation: Size,
              groups: int, axes: int) -> ndarray:  # fmt: skip
    layout = "(batch, channels, length)" if axes == 1 else "(batch, channels, height, width)"
    shape = tuple(input.shape)
    if len(shape) not in {axes + 1, axes + 2} or shape[-axes - 1] != weight.shape[1] * groups:
        raise ShapeError(
            f"conv{axes}d: input of shape {shape} with a weight of shape {tuple(weight.shape)} and {groups} groups; "
            f"it takes {layout} with {weight.shape[1] * groups} channels"
        )
    strides, dilations = per_axis(stride, axes, "stride"), per_axis(dilation, axes, "dilation")
    kernel = tuple(weight.shape[2:])
    pads = window_pads(padding, kernel, strides, dilations)
    batch = input if len(shape) == axes + 2 else np.expand_dims(input, 0)
    inputs = [batch, weight] if bias is None else [batch, weight, bias]
    result = operator("Conv", inputs, strides=list(strides), pads=pads, dilations=list(dilations), group=groups)
    return result if len(shape) == axes + 2 else result[0]


def _convolve_transposed(input: Values, weight: Values, bias: Values | None, stride: Size, padding: Size,
                         output_padding: Size, groups: int, dilation: Size, axes: int) -> ndarray:  # fmt: skip
    layout = "(batch, channels, length)" if axes == 1 else "(batch, channels, height, width)"
    shape = tuple(input.shape)
    if len(shape) not in {axes + 1, axes + 2} or shape[-axes - 1] != weight.shape[0]:
        raise ShapeError(
            f"conv_transpose{axes}d: input of shape {shape} with a weight of shape {tuple(weight.shape)}; it takes "
            f"{layout} with {weight.shape[0]} channels"
        )
    pads = per_axis(padding, axes, "padding")
    batch = input if len(shape) == axes + 2 else np.expand_dims(input, 0)
    result = operator(
        "ConvTranspose",
        [batch, weight] if bias is None else [batch, weight, bias],
        strides=list(per_axis(stride, axes, "stride")),
        pads=[*pads, *pads],
        output_padding=list(per_axis(output_padding, axes, "output_padding")),
        dilations=list(per_axis(dilation, axes, "dilation")),
        group=groups,
    )
    return result if len(shape) == axes + 2 else result[0]

"""Convolutions and transposed convolutions."""

from __future__ import annotations

import math

from walle.engine_ext import np
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.nn import functional, init
from walle.engine_ext.nn.functional.products import window_pads
from walle.engine_ext.nn.module import Module
from walle.engine_ext.nn.sizes import check_size, per_axis
from walle.engine_ext.nn.tracing import Parameter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Size, Values

__all__ = ["Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d"]

_PAD_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolution(Module):
    """Weights and arguments of a convolution over n axes."""

    bias: Parameter | None
    axes = 2

    def _set_up(self, channels: tuple[int, int], kernel_size: Size, stride: Size, padding: Size | str, dilation: Size,
                groups: int, bias: bool, padding_mode: str, dtype: str, transposed: bool) -> None:  # fmt: skip
        inputs, outputs = channels
        kind = type(self).__name__
        if inputs % groups or outputs % groups:
            raise ShapeError(f"{kind}: {groups} groups do not divide {inputs} input and {outputs} output channels")
        if padding_mode not in (_PAD_MODES[:1] if transposed else _PAD_MODES):
            raise ShapeError(f"{kind}: padding_mode {padding_mode!r}; it takes {', '.join(map(repr, _PAD_MODES))}")
        self.in_channels, self.out_channels, self.groups, self.padding_mode = inputs, outputs, groups, padding_mode
        self.kernel_size = per_axis(kernel_size, self.axes, "kernel_size")
        self.stride = per_axis(stride, self.axes, "stride")
        self.padding = padding if isinstance(padding, str) else per_axis(padding, self.axes, "padding")
        self.dilation = per_axis(dilation, self.axes, "dilation")
        first, second = (inputs, outputs) if transposed else (outputs, inputs)
        self.weight = Parameter(np.zeros((first, second // groups, *self.kernel_size), dtype=dtype))
        self.register_parameter("bias", Parameter(np.zeros(outputs, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.kaiming_uniform_(self.weight, math.sqrt(5))
        fan_in = init.fans(self.weight.shape)[0]
        if self.bias is not None and fan_in:
            init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def _check(self, input: Values) -> None:
        sizes = "length" if self.axes == 1 else "height, width"
        check_size(input, -self.axes - 1, self.in_channels, f"(batch, {self.in_channels}, {sizes})")

    def _padded(self, input: Values) -> tuple[Values, Size | str]:
        """Return the input and its zero padding; another padding mode is applied here."""
        if self.padding_mode == "zeros":
            return input, self.padding
        pads = window_pads(self.padding, self.kernel_size, self.stride, self.dilation)
        ends = [(pads[at], pads[at + self.axes]) for at in reversed(range(self.axes))]
        return functional.pad(input, [pad for pair in ends for pad in pair], self.padding_mode), 0

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}", f"kernel_size={self.kernel_size}", f"stride={self.stride}"]
        if self.padding != (0,) * self.axes:
            parts.append(f"padding={self.padding}")
        if self.dilation != (1,) * self.axes:
            parts.append(f"dilation={self.dilation}")
        output_padding = getattr(self, "output_padding", (0,) * self.axes)
        if output_padding != (0,) * self.axes:
            parts.append(f"output_padding={output_padding}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.padding_mode != "zeros":
            parts.append(f"padding_mode={self.padding_mode}")
        return ", ".join(parts)


class Conv1d(_Convolution):
    """Cross-correlation along one axis: (batch, in, length) → (batch, out, length').

    `weight` is (out, in / groups, kernel); weight and bias begin uniform within 1 / sqrt(in / groups · kernel).
    """

    axes = 1

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1,
                 padding: Size | str = 0, dilation: Size = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros", *, dtype: str = "float32") -> None:  # fmt: skip
        super().__init__()
        self._set_up((in_channels, out_channels), kernel_size, stride, padding, dilation, groups, bias, padding_mode,
                     dtype, transposed=False)  # fmt: skip

    def forward(self, input: Values) -> ndarray:
        self._check(input)
        padded, padding = self._padded(input)
        return functional.conv1d(padded, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv2d(_Convolution):
    """Cross-correlation of images: (batch, in, h, w) → (batch, out, h', w').

    `weight` is (out, in / groups, kh, kw); weight and bias begin uniform within 1 / sqrt(in / groups · kh · kw).
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1,
                 padding: Size | str = 0, dilation: Size = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros", *, dtype: str = "float32") -> None:  # fmt: skip
        super().__init__()
        self._set_up((in_channels, out_channels), kernel_size, stride, padding, dilation, groups, bias, padding_mode,
                     dtype, transposed=False)  # fmt: skip

    def forward(self, input: Values) -> ndarray:
        self._check(input)
        padded, padding = self._padded(input)
        return functional.conv2d(padded, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class ConvTranspose1d(_Convolution):
    """Transposed convolution along one axis: (batch, in, length) → (batch, out, length').

    `weight` is (in, out / groups, kernel).
    """

    axes = 1

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
                 output_padding: Size = 0, groups: int = 1, bias: bool = True, dilation: Size = 1,
                 padding_mode: str = "zeros", *, dtype: str = "float32") -> None:  # fmt: skip
        super().__init__()
        self.output_padding = per_axis(output_padding, 1, "output_padding")
        self._set_up((in_channels, out_channels), kernel_size, stride, padding, dilation, groups, bias, padding_mode,
                     dtype, transposed=True)  # fmt: skip

    def forward(self, input: Values) -> ndarray:
        self._check(input)
        assert not isinstance(self.padding, str)  # numbers only: see __init__
        return functional.conv_transpose1d(
            input, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )


class ConvTranspose2d(_Convolution):
    """Transposed convolution of images: (batch, in, h, w) → (batch, out, h', w').

    `weight` is (in, out / groups, kh, kw).
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
                 output_padding: Size = 0, groups: int = 1, bias: bool = True, dilation: Size = 1,
                 padding_mode: str = "zeros", *, dtype: str = "float32") -> None:  # fmt: skip
        super().__init__()
        self.output_padding = per_axis(output_padding, 2, "output_padding")
        self._set_up((in_channels, out_channels), kernel_size, stride, padding, dilation, groups, bias, padding_mode,
                     dtype, transposed=True)  # fmt: skip

    def forward(self, input: Values) -> ndarray:
        self._check(input)
        assert not isinstance(self.padding, str)  # numbers only: see __init__
        return functional.conv_transpose2d(
            input, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )

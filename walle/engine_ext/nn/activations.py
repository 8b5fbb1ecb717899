"""Activations as layers."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext.nn import functional, init
from walle.engine_ext.nn.module import Module
from walle.engine_ext.nn.tracing import Parameter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = [
    "ELU",
    "GELU",
    "SELU",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
]  # fmt: skip


class ReLU(Module):
    """max(x, 0); `inplace` is accepted and ignored: a new array is returned."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Values) -> ndarray:
        return functional.relu(input)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class ReLU6(ReLU):
    """x limited to [0, 6]."""

    def forward(self, input: Values) -> ndarray:
        return functional.relu6(input)


class SiLU(ReLU):
    """x * sigmoid(x)."""

    def forward(self, input: Values) -> ndarray:
        return functional.silu(input)


class Mish(ReLU):
    """x * tanh(softplus(x))."""

    def forward(self, input: Values) -> ndarray:
        return functional.mish(input)


class SELU(ReLU):
    """The scaled ELU that keeps mean and variance."""

    def forward(self, input: Values) -> ndarray:
        return functional.selu(input)


class Hardswish(ReLU):
    """x * min(max(x + 3, 0), 6) / 6."""

    def forward(self, input: Values) -> ndarray:
        return functional.hardswish(input)

    def extra_repr(self) -> str:
        return ""


class Hardsigmoid(Hardswish):
    """min(max(x / 6 + 1/2, 0), 1)."""

    def forward(self, input: Values) -> ndarray:
        return functional.hardsigmoid(input)


class Hardtanh(Module):
    """x limited to [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def forward(self, input: Values) -> ndarray:
        return functional.hardtanh(input, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}" + (", inplace=True" if self.inplace else "")


class LeakyReLU(Module):
    """x, negative numbers times a slope."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, input: Values) -> ndarray:
        return functional.leaky_relu(input, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}" + (", inplace=True" if self.inplace else "")


class PReLU(Module):
    """x, negative numbers times a trained slope: one for all, or one a channel (axis 1)."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: str = "float32") -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(np.full(num_parameters, init, dtype=dtype))

    def reset_parameters(self) -> None:
        init.constant_(self.weight, self.init)

    def forward(self, input: Values) -> ndarray:
        return functional.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class ELU(Module):
    """x where it is positive, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: Values) -> ndarray:
        return functional.elu(input, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}" + (", inplace=True" if self.inplace else "")


class GELU(Module):
    """x times the normal distribution function of x, or its approximation by tanh."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Values) -> ndarray:
        return functional.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, input: Values) -> ndarray:
        return functional.sigmoid(input)


class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, input: Values) -> ndarray:
        return functional.logsigmoid(input)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, input: Values) -> ndarray:
        return functional.tanh(input)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x exceeds the threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Values) -> ndarray:
        return functional.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Softmax(Module):
    """exp(x) / sum(exp(x)) along an axis."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Values) -> ndarray:
        return functional.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """log(softmax(x)) along an axis."""

    def forward(self, input: Values) -> ndarray:
        return functional.log_softmax(input, self.dim)

"""Dropout of numbers at random (Srivastava et al. 2014)."""

from __future__ import annotations

from walle.engine_ext.errors import ShapeError
from walle.engine_ext.nn import functional
from walle.engine_ext.nn.module import Module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

__all__ = ["Dropout"]


class Dropout(Module):
    """In training mode, sets each number to 0 with probability p and divides the others by 1 - p.

    `inplace` is accepted and ignored: a new array is returned.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ShapeError(f"Dropout: p {p}; it takes a probability from 0 to 1")
        self.p, self.inplace = p, inplace

    def forward(self, input: Values) -> ndarray:
        return functional.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"

"""Objects that stand for arrays: NumPy's operators and methods, on values that a trace records and on parameters."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext import np as _np

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from walle.engine_ext._core import ndarray

__all__ = ["Operand"]


def _binary(op: str) -> Any:
    return lambda self, other: _core.binary(op, self, other)


def _reversed(op: str) -> Any:
    return lambda self, other: _core.binary(op, other, self)


def _function(name: str) -> Any:
    def method(self: Operand, *arguments: Any, **options: Any) -> Any:
        return getattr(_np, name)(self, *arguments, **options)

    method.__name__ = name
    method.__doc__ = f"Return np.{name} of the array."
    return method


class Operand:
    """Base of what stands for an array. `array()` gives the array, where it is known."""

    __slots__ = ()

    def array(self) -> ndarray:
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def dtype(self) -> str:
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def itemsize(self) -> int:
        return _core.dtype(self.dtype).itemsize

    @property
    def T(self) -> Any:  # noqa: N802 -- NumPy's name
        return self.transpose()

    @property
    def mT(self) -> Any:  # noqa: N802 -- NumPy's name
        return self.swapaxes(-1, -2)

    @property
    def real(self) -> Any:
        """The array itself: floats have no imaginary part."""
        return self

    def conj(self) -> Any:
        """Return the array itself: floats are their own conjugates."""
        return self

    conjugate = conj

    __add__, __radd__ = _binary("Add"), _reversed("Add")
    __sub__, __rsub__ = _binary("Sub"), _reversed("Sub")
    __mul__, __rmul__ = _binary("Mul"), _reversed("Mul")
    __truediv__, __rtruediv__ = _binary("Div"), _reversed("Div")
    __floordiv__, __rfloordiv__ = _binary("FloorDiv"), _reversed("FloorDiv")
    __mod__, __rmod__ = _binary("FloorMod"), _reversed("FloorMod")
    __pow__, __rpow__ = _binary("Power"), _reversed("Power")
    __matmul__, __rmatmul__ = _binary("MatMul"), _reversed("MatMul")
    __and__, __rand__ = _binary("BitwiseAnd"), _reversed("BitwiseAnd")
    __or__, __ror__ = _binary("BitwiseOr"), _reversed("BitwiseOr")
    __xor__, __rxor__ = _binary("BitwiseXor"), _reversed("BitwiseXor")
    __lt__, __le__ = _binary("Less"), _binary("LessOrEqual")
    __gt__, __ge__ = _binary("Greater"), _binary("GreaterOrEqual")
    __eq__, __ne__ = _binary("Equal"), _binary("NotEqual")
    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return _core.unary("Neg", self)

    def __abs__(self) -> Any:
        return _core.unary("Abs", self)

    def __invert__(self) -> Any:
        return _core.unary("BitwiseNot", self)

    def __pos__(self) -> Any:
        return self

    def __getitem__(self, key: Any) -> Any:
        from walle.engine_ext.nn.recording import record

        return record("get_item", self, key)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self[place] for place in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.array())

    def __float__(self) -> float:
        return float(self.array())

    def __int__(self) -> int:
        return int(self.array())

    def __index__(self) -> int:
        return self.array().__index__()

    def item(self, *at: Any) -> Any:
        """Return the only element, or the one at that index, as a Python number."""
        return self.array().item(*at)

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self.array().tolist()

    def astype(self, dtype: Any) -> Any:
        """Return the elements in another dtype."""
        return _core.asarray(self, dtype)

    def copy(self) -> Any:
        """Return the values; what a trace records does not change."""
        return self

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """Return the elements in another shape, in row-major order; one dimension may be -1."""
        if order not in ("C", "A"):
            raise ValueError(f"reshape of a traced array in order {order!r}; it keeps row-major order")
        given = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        sizes = [int(size) for size in given]
        if sizes.count(-1) == 1:  # named here, so that a graph shows what it depends on
            rest = 1
            for size in sizes:
                rest *= 1 if size == -1 else size
            if rest > 0 and self.size % rest == 0:
                sizes[sizes.index(-1)] = self.size // rest
        return _core.operator("Reshape", [self], shape=sizes, allowzero=0 if -1 in sizes else 1)

    def ravel(self, order: str = "C") -> Any:
        """Return the elements as one dimension."""
        return self.reshape(-1, order=order)

    flatten = ravel

    def transpose(self, *axes: Any) -> Any:
        """Return the array with its axes in another order, reversed by default."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        rank = self.ndim
        perm = [int(axis) % rank for axis in order] if order else list(range(rank))[::-1]
        return _core.operator("Transpose", [self], perm=perm) if rank > 1 else self

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """Return the array with two axes swapped."""
        order = list(range(self.ndim))
        order[axis1], order[axis2] = order[axis2], order[axis1]
        return self.transpose(order)

    def dot(self, b: Any) -> Any:
        """Return the matrix product."""
        return _core.binary("MatMul", self, b)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        """Return the elements between two bounds."""
        return _core.clip(self, min, max)

    def squeeze(self, axis: Any = None) -> Any:
        """Return the array without axes of size 1."""
        squeezed: Any = _function("squeeze")(self, axis)
        return squeezed

    all, any, argmax, argmin = (_function(name) for name in ("all", "any", "argmax", "argmin"))
    cumprod, cumsum, max, mean = (_function(name) for name in ("cumprod", "cumsum", "max", "mean"))
    min, prod, repeat, round = (_function(name) for name in ("min", "prod", "repeat", "round"))
    std, sum, take, var = (_function(name) for name in ("std", "sum", "take", "var"))

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(
            "a traced array cannot be changed in place; make a new one with np.where, np.concatenate or np.pad"
        )

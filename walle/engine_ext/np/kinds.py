"""Kinds of dtypes (`np.floating`, `np.integer` ...), and how floating-point errors are handled, which is one way."""

from __future__ import annotations

import functools

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from walle.engine_ext.np.likes import DType

__all__ = [
    "complexfloating", "errstate", "floating", "generic", "geterr", "inexact", "integer", "isdtype",
    "issubdtype", "number", "seterr", "signedinteger", "unsignedinteger",
]  # fmt: skip


class _Kind(type):
    """Type of the kinds: a number of an array is an instance of the kinds of its dtype."""

    kinds: str

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, ndarray) and value.ndim == 0 and value.dtype.kind in cls.kinds


class generic(metaclass=_Kind):  # noqa: N801 -- NumPy's name
    kinds = "bfiuc"


class number(generic):  # noqa: N801
    kinds = "fiuc"


class inexact(number):  # noqa: N801
    kinds = "fc"


class floating(inexact):  # noqa: N801
    kinds = "f"


class complexfloating(inexact):  # noqa: N801
    kinds = "c"


class integer(number):  # noqa: N801
    kinds = "iu"


class signedinteger(integer):  # noqa: N801
    kinds = "i"


class unsignedinteger(integer):  # noqa: N801
    kinds = "u"


def issubdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype is of a kind, or is the same dtype; `float` and `int` as a kind are all of them."""
    if isinstance(kind, _Kind):
        return issubclass(dtype, kind) if isinstance(dtype, _Kind) else _core.dtype(dtype).kind in kind.kinds
    if isinstance(dtype, _Kind):
        return False
    return _core.dtype(dtype) == _core.dtype(kind)


_SETS = {
    "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
    "complex floating": "c", "numeric": "fiuc",
}  # fmt: skip


def isdtype(dtype: DType, kind: Any) -> bool:
    """Return whether a dtype is the dtype `kind`, of the kind of that name, or of any of a tuple of them."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str) and kind in _SETS:
        return _core.dtype(dtype).kind in _SETS[kind]
    return issubdtype(dtype, kind)


_WAYS = ("divide", "over", "under", "invalid")
_handling = dict.fromkeys(_WAYS, "ignore")


def geterr() -> dict[str, str]:
    """Return how floating-point errors are handled: they are ignored, and give inf or NaN."""
    return dict(_handling)


def seterr(all: str | None = None, divide: str | None = None, over: str | None = None,  # noqa: A002
           under: str | None = None, invalid: str | None = None) -> dict[str, str]:  # fmt: skip
    """Accept "ignore" and "warn", which are the same here, because a task has no standard error; return what was set.

    Raises:
        UnsupportedError: errors are to be raised, printed or handled by a call.
    """
    before = geterr()
    for name, how in zip(_WAYS, (divide, over, under, invalid), strict=True):
        chosen = how or all
        if chosen not in (None, "ignore", "warn"):
            raise UnsupportedError(
                f"{name}={chosen!r} is not supported: floating-point errors give inf or NaN; test with np.isfinite"
            )
        if chosen is not None:
            _handling[name] = chosen
    return before


class errstate:  # noqa: N801 -- NumPy's name
    """Context, or decorator of a function, with another handling of floating-point errors; see seterr."""

    def __init__(self, **ways: str | None) -> None:
        self._ways = {name: how for name, how in ways.items() if name != "call"}
        self._before: dict[str, str] = {}

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with errstate(**self._ways):
                return function(*args, **kwargs)

        return decorated

    def __enter__(self) -> None:
        self._before = seterr(**self._ways)

    def __exit__(self, *error: object) -> None:
        _handling.update(self._before)

"""numpy.testing for arrays of walle.np: what compares values gets NumPy's arrays; what expects errors is unchanged."""

from __future__ import annotations

import functools
from typing import Any

import numpy
import numpy.testing

import walle.np as walle_np

_COMPARE = (
    "assert_equal", "assert_almost_equal", "assert_approx_equal", "assert_array_equal", "assert_array_less",
    "assert_array_almost_equal", "assert_array_almost_equal_nulp", "assert_array_max_ulp", "assert_allclose",
    "assert_array_compare",
)  # fmt: skip


def to_numpy(value: Any) -> Any:
    """Return the value with NumPy's arrays and scalars in place of walle.np's."""
    if isinstance(value, walle_np.ndarray):
        array = numpy.asarray(value)
        return array[()] if array.ndim == 0 else array
    if type(value) in (list, tuple):
        return type(value)(to_numpy(one) for one in value)
    if isinstance(value, walle_np.dtype):
        return str(value)
    return value


def __getattr__(name: str) -> Any:
    found = getattr(numpy.testing, name)
    if name not in _COMPARE:
        return found

    @functools.wraps(found)
    def compare(*args: Any, **kwargs: Any) -> Any:
        return found(*(to_numpy(one) for one in args), **{key: to_numpy(one) for key, one in kwargs.items()})

    return compare

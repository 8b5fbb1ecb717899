"""Every function of walle.np against NumPy, over shapes, strides and dtypes, by the table in np_cases."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import walle.np as np
from tests.engine_ext.np_cases import CASES, Draw

DRAWS = st.builds(
    Draw,
    seed=st.integers(0, 2**20),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    dtype=st.integers(0, 29),
    strides=st.integers(0, 3),
)


def named(module: Any, name: str) -> Callable[..., Any]:
    for part in name.split("."):
        module = getattr(module, part)
    return module  # type: ignore[no-any-return]


def ours(value: Any) -> Any:
    """Return an argument with NumPy's arrays as walle.np's, sharing memory."""
    if isinstance(value, numpy.ndarray):
        return np.asarray(value)
    if isinstance(value, list | tuple):
        return type(value)(ours(one) for one in value)
    return value


def fitting(own: str, theirs: str, used: set[str]) -> bool:
    """Return whether a dtype is NumPy's, or the one that the documented rules give instead."""
    if own == theirs:
        return True
    narrow = not used & {"float64", "int32", "int64", "complex128"}
    if own == "float32":
        return theirs in ("float64", "float16") and narrow
    return theirs in ("int8", "uint64") and own in ("uint8", "int64")


def compare(own: Any, theirs: Any, used: set[str], name: str) -> None:
    if isinstance(theirs, tuple | list):
        assert isinstance(own, tuple | list), name
        assert len(own) == len(theirs)
        for one, other in zip(own, theirs, strict=True):
            compare(one, other, used, name)
        return
    if isinstance(theirs, str | bool | numpy.dtype):
        assert own == theirs, name
        return
    there = numpy.asarray(theirs)
    here = numpy.asarray(own)
    assert here.shape == there.shape, f"{name}: shape {here.shape}, not {there.shape}"
    if isinstance(own, np.ndarray):
        assert fitting(here.dtype.name, there.dtype.name, used), f"{name}: {here.dtype}, not {there.dtype}"
    if {there.dtype.kind, here.dtype.kind} & {"f", "c"}:
        rough = bool({here.dtype.name, there.dtype.name, *used} & {"float32", "complex64"})
        loose = name.startswith("linalg") or name in ("polyfit", "corrcoef", "cov")
        half = there.dtype.name == "float16"
        rtol, atol = (
            (2e-3, 2e-3)
            if half
            else (2e-3, 2e-4)
            if rough and loose
            else (3e-5, 1e-5)
            if rough
            else (1e-8, 1e-8)
            if loose
            else (1e-11, 1e-11)
        )
        numpy.testing.assert_allclose(here, there, rtol=rtol, atol=atol, err_msg=name)
    else:
        numpy.testing.assert_array_equal(here, there, err_msg=name)


def check(name: str, number: int, draw: Draw) -> None:
    made = CASES[name][number](draw)
    args, kwargs = made if isinstance(made, tuple) else (made, {})
    with numpy.errstate(all="ignore"):
        theirs = named(numpy, name)(*args, **kwargs)
    if name == "argsort":
        kwargs = {}
    compare(
        named(np, name)(*(ours(one) for one in args), **{k: ours(v) for k, v in kwargs.items()}),
        theirs,
        draw.used,
        name,
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(CASES))
def test_numpy_says_the_same(name: str) -> None:
    @settings(max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(DRAWS, st.integers(0, 9))
    def run(draw: Draw, number: int) -> None:
        check(name, number % len(CASES[name]), draw)

    run()

"""Operators and functions whose other operand is an array keep the gradient of a parameter; what cannot is refused."""

from collections.abc import Callable
from typing import Any

import pytest

import walle.nn as nn
import walle.np as np
import walle.optim as optim
from walle.engine_ext.errors import UnsupportedError

C = np.array([1.0, 2.0, 3.0])


class Applied(nn.Module):
    def __init__(self, function: Callable[[Any], Any], dtype: str = "float32") -> None:
        super().__init__()
        self.weight = nn.Parameter(np.array([0.5, 1.5, 2.5], dtype=dtype))
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(self.weight) + x


def gradient_of(function: Callable[[Any], Any]) -> Any:
    step = nn.TrainStep(Applied(function), lambda y, t: (y * t).sum(), optim.SGD())
    return step.gradients(np.zeros(3), np.array([1.0, 0.5, 0.25]))["weight"]


def slope_of(function: Callable[[Any], Any]) -> list[float]:
    slopes = []
    for at in range(3):
        sides = []
        for step in (1e-6, -1e-6):
            module = Applied(function, "float64")
            module.weight.data[at] += step
            sides.append(float((module(np.zeros(3)) * np.array([1.0, 0.5, 0.25])).sum()))
        slopes.append((sides[0] - sides[1]) / 2e-6)
    return slopes


def added_in_place(w: Any) -> Any:
    total = C.copy()
    total += w
    return total


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "array times": lambda w: C * w,
    "array plus": lambda w: C + w,
    "array minus": lambda w: C - w,
    "array over": lambda w: C / w,
    "array to the power": lambda w: C**w,
    "array matrix": lambda w: C @ w,
    "times array": lambda w: w * C,
    "number times": lambda w: 2.0 * w,
    "in place": added_in_place,
    "chosen by a comparison": lambda w: np.where(C < w, C, w),  # noqa: SIM300 -- the array is on the left
    "function": lambda w: np.multiply(C, w),
    "stack": lambda w: np.stack([C, w, w]).sum(0),
    "concatenate": lambda w: np.concatenate([w, C])[1:4],
    "part": lambda w: C[:1] * w[1:2],
    "einsum": lambda w: np.einsum("i,i->i", C, w),
    "dot": lambda w: np.dot(C, w),
    "outer": lambda w: np.outer(C, w).sum(0),
    "norm": lambda w: np.linalg.norm(w),
    "variance": lambda w: np.var(w * C),
    "vdot": lambda w: np.vdot(C, w),
    "covariance": lambda w: np.cov(w * C, C)[0].sum(),
    "variance without NaN": lambda w: np.nanvar(w * C),
    "running sum": lambda w: np.cumsum(w * C),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_reaches_the_parameter(name: str) -> None:
    assert gradient_of(FUNCTIONS[name]).tolist() == pytest.approx(slope_of(FUNCTIONS[name]), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("function", [lambda w: np.array([w, w]).sum(0), lambda w: C.dot(w)])
def test_what_would_lose_a_gradient_is_refused(function: Callable[[Any], Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"np\.stack"):
        gradient_of(function)
    assert Applied(function)(np.zeros(3)).shape == (3,)  # no trace: computed at once


def test_array_and_parameter_are_computed_at_once_outside_of_a_trace() -> None:
    weight = nn.Parameter(np.array([1.0, 2.0, 4.0]))
    assert (C * weight).tolist() == [1, 4, 12]
    assert (C == weight).tolist() == [True, True, False]  # noqa: SIM300 -- the array is on the left
    assert (C < weight).tolist() == [False, False, True]  # noqa: SIM300 -- as above
    assert np.array([weight, C]).shape == (2, 3)
    half = nn.Parameter(weight.data.astype("bfloat16"))
    assert (C.astype("bfloat16") - half).dtype == "bfloat16"

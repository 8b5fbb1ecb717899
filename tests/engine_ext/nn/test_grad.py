"""Gradients of functions of walle.np arrays, against central differences in float64."""

from collections.abc import Callable
from typing import Any

import pytest

import walle.nn as nn
import walle.np as np
from walle.engine_ext.errors import DTypeError, ShapeError, UnsupportedError

X = np.random.default_rng(0).standard_normal((3, 4)).astype("float64")
Y = np.random.default_rng(1).standard_normal((3, 4)).astype("float64")


def branches(x: Any) -> Any:
    return np.sum(x) if float(x[0, 0]) > 100 else np.sum(x * x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "slices": lambda x: np.sum(x[1:, ::2] * x[0, 1]) + x[-1, -1] ** 2 + np.sum(x[::-1][0]) + np.sum(x[..., None, 1:3]),
    "index arrays": lambda x: (
        np.sum(x[np.asarray([0, 0, 2])] ** 2) + np.sum(x[np.arange(3), np.asarray([1, 0, 1])] ** 3)
    ),
    "reductions": lambda x: np.mean(x, axis=0).max() + np.var(x) + np.std(x, axis=1).sum() + np.prod(x[0]),
    "choices": lambda x: np.sum(np.where(x > 0, x * x, np.exp(x))) + np.sum(np.maximum(x, 0.3)) + np.sum(x.clip(-1, 1)),
    "log sum exp": lambda x: np.log(np.sum(np.exp(x - np.max(x)))),
    "sorting": lambda x: np.sum(np.sort(x, axis=1) * np.arange(4)),
    "cumulative": lambda x: np.sum(np.cumsum(x, axis=1) ** 2) + np.sum(np.cumprod(x, axis=1)),
    "triangles": lambda x: np.sum(np.tril(x[:, :3]) ** 2) + np.trace(x[:, :3]),
    "movement": lambda x: (
        np.sum(np.pad(x, 1) ** 2) + np.sum(np.roll(x, 1, axis=0) * x) + np.sum(np.repeat(x, 2, axis=0) ** 2)
        + np.sum(np.tile(x, (2, 1)) ** 3) + np.sum(np.broadcast_to(x, (2, 3, 4)) * np.arange(4))
    ),
    "norms": lambda x: np.linalg.norm(x) + np.sum(np.abs(x)) + np.sum(np.sqrt(x * x + 1)),
    "products": lambda x: np.dot(x[0], x[1]) + np.outer(x[0], x[1]).sum() + np.inner(x[0], x[2]) + np.sum(x @ x.T),
    "two arguments": lambda x, y: np.sum(np.concatenate([x, y * x], axis=1) ** 2) + np.sum(np.stack([x, y])[1] * x),
    "einsum": lambda x, y: np.sum(np.einsum("ij,kj->ik", x, y) ** 2),
    "iteration": lambda x: sum((np.sum(row**2) * place for place, row in enumerate(x)), np.zeros(())),
    "a branch on a value": branches,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_the_slopes_of_the_function(name: str) -> None:
    function = FUNCTIONS[name]
    arrays = [X, Y][: function.__code__.co_argcount]
    value, gradients = nn.value_and_grad(function)(*arrays)
    assert float(value) == pytest.approx(float(function(*arrays)), rel=1e-12)
    step = 1e-6
    for place, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
        assert (gradient.shape, gradient.dtype) == (array.shape, "float64")
        for at in np.ndindex(array.shape):
            sides = []
            for distance in (step, -step):
                moved = [one.copy() for one in arrays]
                moved[place][at] += distance
                sides.append(float(function(*moved)))
            slope = (sides[0] - sides[1]) / (2 * step)
            assert float(gradient[at]) == pytest.approx(slope, rel=1e-5, abs=1e-6), (place, at)


def test_gradients_keep_the_types_of_the_arguments() -> None:
    gradients = nn.grad(lambda a, b: np.sum(a * b))(np.ones(3, "float32"), np.ones(3, "float64"))
    assert [one.dtype for one in gradients] == ["float32", "float64"]


def test_an_argument_that_is_not_used_has_a_gradient_of_zeros() -> None:
    _, unused = nn.grad(lambda a, b: np.sum(a))(np.ones(3), np.ones((2, 2)))
    assert unused.shape == (2, 2)
    assert not unused.any()


@pytest.mark.parametrize(
    ("function", "array", "error", "words"),
    [
        (lambda x: x, np.ones(3), ShapeError, r"returns shape \(3,\); a gradient needs one number"),
        (lambda x: np.sum(x), np.arange(3), DTypeError, "argument 0 is int64"),
        (lambda x: np.sum(np.floor(x)), np.ones(3), UnsupportedError, "no gradient reaches 'argument 0'"),
        (lambda x: np.sum(x[x > 0]), np.ones(3), UnsupportedError, "a mask as an index"),
    ],
)
def test_what_has_no_gradient_is_an_error(
    function: Callable[..., Any], array: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        nn.grad(function)(array)


def test_a_traced_array_cannot_be_changed_in_place() -> None:
    def changes(x: Any) -> Any:
        x[0] = 1.0
        return np.sum(x)

    with pytest.raises(TypeError, match=r"cannot be changed in place; make a new one with np\.where"):
        nn.grad(changes)(np.ones(3))


def test_gradients_of_gradients_are_second_derivatives() -> None:
    x = np.asarray([1.0, 2.0, -1.5], "float64")
    slope = nn.grad(lambda z: np.sum(z**3))
    [second] = nn.grad(lambda x: np.sum(slope(x)[0]))(x)
    assert second.tolist() == pytest.approx((6 * x).tolist())
    # What the inner function takes from around it is constant for the inner gradient: d/dx of x * (d/dz of x * z).
    [mixed] = nn.grad(lambda x: np.sum(x * nn.grad(lambda z: np.sum(x * z))(x)[0]))(x)
    assert mixed.tolist() == pytest.approx((2 * x).tolist())


def test_clipping_passes_the_gradient_at_a_bound_as_pytorch_does() -> None:
    [gradient] = nn.grad(lambda x: np.sum(np.clip(x, -1.0, 1.0)))(np.asarray([-2.0, -1.0, 0.0, 1.0, 2.0]))
    assert gradient.tolist() == [0, 1, 1, 1, 0]

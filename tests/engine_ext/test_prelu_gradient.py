"""Gradients of PRelu in one pass over memory, against its formulas in numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import walle
import walle.nn as nn
import walle.optim as optim
from walle.engine_ext import _core
from walle.engine_ext.errors import DTypeError, ShapeError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session

F = nn.functional

type Array = np.ndarray[Any, np.dtype[Any]]
type Shape = tuple[int, ...]

AVAILABLE = [one.name for one in walle.backends() if one.available and one.exact]
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf]


def made(shape: Shape, slope: Shape, dtype: str, share: float = 0.1, seed: int = 7) -> list[Array]:
    """Return g, x and slopes, of which a share of x is special."""
    random = np.random.default_rng(seed)
    g, x, slopes = (random.normal(size=size).astype(dtype) for size in (shape, shape, slope))
    places = random.random(shape) < share
    x[places] = random.choice(SPECIAL, int(places.sum()))
    return [g, x, slopes]


def formulas(g: Array, x: Array, slopes: Array) -> tuple[Array, Array, Array]:
    """Return the gradients of x and of the slopes, and for each slope the sum of sizes of what is added."""
    with np.errstate(invalid="ignore"):
        of_x = np.where(x > 0, g, g * slopes)
        terms = np.where(x > 0, 0, g.astype("float64") * x.astype("float64"))
        lead = x.ndim - slopes.ndim
        axes = tuple(axis for axis in range(x.ndim) if axis < lead or slopes.shape[axis - lead] == 1)
        summed = [np.asarray(each.sum(axes)).reshape(slopes.shape) for each in (terms, np.abs(terms))]
    return of_x, summed[0], summed[1]


def check(found: tuple[Array, Array], g: Array, x: Array, slopes: Array) -> None:
    of_x, of_slopes, sizes = formulas(g, x, slopes)
    assert found[0].dtype == found[1].dtype == g.dtype
    np.testing.assert_array_equal(found[0], of_x)
    np.testing.assert_array_equal(np.signbit(found[0]), np.signbit(of_x))
    unit = 4e-6 if g.dtype == np.float32 else 1e-14
    finite = np.isfinite(of_slopes)
    np.testing.assert_array_equal(found[1][~finite], of_slopes[~finite])
    assert (np.abs(found[1][finite] - of_slopes[finite]) <= unit * sizes[finite]).all()


def operator_session(operands: list[Array], backend: str, threads: int) -> Session:
    graph = GraphBuilder("operator")
    inputs = [graph.input(name, value.shape, value.dtype.name) for name, value in zip("gxs", operands, strict=True)]
    graph.output("flat", graph.op("PReluGradient", inputs))
    return Session(graph.to_bytes(), backend=backend, threads=threads)


def rule_session(x: Array, slopes: Array, g: Array) -> Session:
    """Return the gradients of the sum of g * PRelu(x, slopes)."""
    graph = GraphBuilder("rule")
    of = [graph.input(name, value.shape, value.dtype.name) for name, value in zip("xsg", (x, slopes, g), strict=True)]
    total = graph.op("ReduceSum", [graph.op("Mul", [graph.op("PRelu", of[:2]), of[2]])], keepdims=0)
    for name, value in zip(("of_x", "of_s"), graph.node("Gradient", [total, *of[:2]], 2, "it", {}), strict=True):
        graph.output(name, value)
    return Session(graph.to_bytes())


def parted(flat: Array, x: Array, slopes: Array) -> tuple[Array, Array]:
    assert flat.shape == (x.size + slopes.size,)
    return flat[: x.size].reshape(x.shape), flat[x.size :].reshape(slopes.shape)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Draw a shape and slopes along neighbouring axes of it, some of them empty."""
    shape = tuple(draw(st.lists(st.integers(0, 5) | st.sampled_from([17, 70]), max_size=4)))
    first = draw(st.integers(0, len(shape)))
    last = draw(st.integers(first, len(shape)))
    slope = [size if first <= axis < last else 1 for axis, size in enumerate(shape)]
    cut = draw(st.integers(0, first))
    return shape, tuple(slope[cut:])


@given(layouts(), st.sampled_from(["float32", "float64"]), st.sampled_from([0.0, 0.02]), st.integers(0, 99))
def test_operator_agrees_with_the_formulas(sizes: tuple[Shape, Shape], dtype: str, share: float, seed: int) -> None:
    shape, slope = sizes
    operands = made(shape, slope, dtype, share, seed)
    flat = np.asarray(_core.evaluate("PReluGradient", operands, {})[0])
    check(parted(flat, *operands[1:]), *operands)


# Shapes whose sums have several blocks: of planes, of rows, and of rows that are joined or cut.
LARGE = [
    ((1600, 80), (1,)),
    ((9001,), ()),
    ((3, 5, 70, 71), (5, 1, 1)),
    ((700, 80), (80,)),
    ((20_000, 3), (3,)),
    ((130, 1300), (1300,)),
    ((200, 70, 3), (70, 1)),
    ((200, 300, 2), (300, 1)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize(("shape", "slope"), LARGE)
def test_results_are_equal_to_the_bit_by_any_number_of_threads(
    shape: Shape, slope: Shape, backend: str, dtype: str
) -> None:
    for share in (0.0, 1e-4):
        operands = made(shape, slope, dtype, share)
        feeds = dict(zip("gxs", operands, strict=True))
        alone, *shared = (
            np.asarray(operator_session(operands, backend, threads).run(feeds)["flat"]) for threads in (1, 2, 3)
        )
        check(parted(alone, *operands[1:]), *operands)
        assert all(found.tobytes() == alone.tobytes() for found in shared)


@pytest.mark.skipif(
    _core.backend() == "scalar", reason="its PRelu is decomposed, and its gradient is that of the parts"
)
@pytest.mark.parametrize(
    ("shape", "slope", "is_one_step"),
    [
        *((shape, slope, True) for shape, slope in LARGE),
        ((0, 32), (32,), True),
        ((2, 3, 64), (2, 1, 64), False),
        ((5, 6, 1, 32), (5, 1, 1, 32), False),
    ],
)
def test_rule_is_one_step_for_slopes_along_neighbouring_axes(shape: Shape, slope: Shape, is_one_step: bool) -> None:
    g, x, slopes = made(shape, slope, "float32")
    session = rule_session(x, slopes, g)
    found = session.run({"x": x, "s": slopes, "g": g})
    check((np.asarray(found["of_x"]), np.asarray(found["of_s"])), g, x, slopes)
    plan = session.plan()
    assert plan is not None
    assert [op.op for op in plan.ops].count("PReluGradient") == is_one_step


@pytest.mark.skipif(
    _core.backend() == "scalar", reason="its PRelu is decomposed, and its gradient is that of the parts"
)
def test_training_step_reads_both_gradients_without_a_copy() -> None:
    model = nn.Sequential(nn.Linear(6, 40), nn.PReLU(), nn.Linear(40, 8), nn.PReLU(8), nn.Linear(8, 1))
    step = nn.TrainStep(model, F.mse_loss, optim.SGD(lr=0.1))
    random = np.random.default_rng(2)
    x, y = random.normal(size=(300, 6)).astype("float32"), random.normal(size=(300, 1)).astype("float32")
    losses = [float(step(x, y)) for _ in range(20)]
    assert losses[-1] < losses[0]
    ops = step.plan().ops
    assert [op.op for op in ops].count("PReluGradient") == 2
    assert not [op.name for op in ops if op.name.startswith("PRelu") and op.op == "Raster"]


def test_operands_that_do_not_fit_are_refused() -> None:
    x, slope = np.zeros((2, 3, 4), "float32"), np.zeros((3, 1), "float32")

    def run(*operands: Array) -> None:
        _core.evaluate("PReluGradient", list(operands), {})

    with pytest.raises(ShapeError, match=r"shapes \(3, 4\) and \(2, 3, 4\); they must be equal"):
        run(x[0], x, slope)
    with pytest.raises(DTypeError, match="float32 or float64 of one type"):
        run(x, x, slope.astype("float64"))
    with pytest.raises(DTypeError, match="PReluGradient of float16"):
        run(*(value.astype("float16") for value in (x, x, slope)))
    for other in ((2, 1, 4), (2, 1), (1, 2, 3, 4)):
        with pytest.raises(ShapeError, match="takes slopes along neighbouring axes"):
            run(x, x, np.zeros(other, "float32"))

"""Choice of a backend by "auto": the cheapest one that has kernels for all that passes attached to products."""

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import walle
from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder, Value
from walle.engine_ext.session import Session
from walle.errors import EngineError

type Array = np.ndarray[Any, np.dtype[Any]]
type Follow = Callable[[GraphBuilder, Value], Value]

AVAILABLE = [one.name for one in walle.backends() if one.available and one.exact]
DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SHAPE = (1, 6, 5, 4)


@pytest.fixture(params=AVAILABLE)
def cheapest(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give one backend rates by which every program costs least on it, and restore all rates."""
    before = {name: _core.rates(name) for name in AVAILABLE}
    for name in AVAILABLE:
        _core.set_rates(name, dict.fromkeys(before[name], 1e9 if name == request.param else 1e3))
    yield str(request.param)
    for name in AVAILABLE:
        _core.set_rates(name, before[name])


def values(*shape: int) -> Array:
    """Return numbers in (0, 1), where nearly every function is defined and smooth."""
    return np.random.default_rng(len(shape)).uniform(0.1, 0.9, shape).astype("float32")


def weights(*shape: int) -> Array:
    """Return weights whose products with such numbers lie in (0, 1) too."""
    fan_in = int(np.prod(shape)) // shape[0]
    return (values(*shape) / np.float32(fan_in)).astype("float32")


def elementwise() -> list[str]:
    """Return the engine's operators that take one tensor without attributes and return one of its shape and type."""
    found = []
    for one in walle.operators():
        graph = GraphBuilder("g")
        try:
            graph.output("y", graph.op(one.name, [graph.input("x", SHAPE)]))
            result = Session(graph.to_bytes(), backend="scalar").run({"x": values(*SHAPE)})["y"]
        except EngineError:  # other operands, needed attributes, or control flow
            continue
        if tuple(result.shape) == SHAPE and result.dtype == "float32":
            found.append(one.name)
    return found


FOLLOWERS = sorted({*elementwise(), *(one.name for one in walle.operators() if "Gelu" in one.name)})


class Typed:
    """Constants of one floating type."""

    def __init__(self, graph: GraphBuilder, dtype: str) -> None:
        self.graph, self.dtype, self.count = graph, dtype, 0

    def __call__(self, array: Any) -> Value:
        self.count += 1
        made = np.asarray(array).astype(DTYPES[self.dtype])
        return self.graph.raw(f"c{self.count}", self.dtype, made.shape, made.tobytes())


def composed(typed: Typed, x: Value, channels: Array, form: str) -> Value:
    """Return x followed by what the passes recognise in more than one operator, or with a second operand."""
    op = typed.graph.op
    if form == "Gelu by erf":
        half = op("Mul", [x, typed(0.5)])
        curve = op("Add", [op("Erf", [op("Mul", [x, typed(0.5**0.5)])]), typed(1)])
        made = op("Mul", [half, curve])
    elif form == "Gelu by tanh":
        made = op("Gelu", [x], approximate="tanh")
    elif form == "Swish":
        made = op("Mul", [x, op("Sigmoid", [x])])
    elif form == "Mish":
        made = op("Mul", [x, op("Tanh", [op("Softplus", [x])])])
    elif form == "HardSwish":
        made = op("Mul", [x, op("HardSigmoid", [x], alpha=1 / 6, beta=0.5)])
    elif form == "HardSigmoid by steps":
        steps = op("Clip", [op("Add", [x, typed(3)]), typed(0), typed(6)])
        made = op("Div", [steps, typed(6)])
    elif form == "Clip":
        made = op("Clip", [x, typed(0.2), typed(0.7)])
    elif form == "PRelu by number":
        made = op("PRelu", [op("Sub", [x, typed(0.5)]), typed([0.25])])
    elif form == "PRelu by channel":
        made = op("PRelu", [x, typed(channels)])
    else:
        assert form == "Tanh between sums", form
        made = op("Add", [op("Tanh", [op("Add", [x, typed(channels)])]), typed(channels)])
    result: Value = made
    return result


FORMS = ("Gelu by erf", "Gelu by tanh", "Swish", "Mish", "HardSwish", "HardSigmoid by steps", "Clip", "PRelu by number",
         "PRelu by channel", "Tanh between sums")  # fmt: skip


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "Conv 1x1": ((7, 6, 1, 1), {}),
    "Conv 3x3": ((7, 6, 3, 3), {"pads": [1, 1, 1, 1]}),
    "Conv depthwise": ((6, 1, 3, 3), {"group": 6}),
}
PRODUCTS = (*CONVOLUTIONS, "ConvTranspose", "Gemm", "MatMul")


def product(typed: Typed, x: Value, kind: str) -> tuple[Value, Array]:
    """Return a product and numbers that broadcast over its channels."""
    op = typed.graph.op
    if kind == "MatMul":
        return op("Add", [op("MatMul", [x, typed(weights(6, 7))]), typed(values(7))]), values(7)
    if kind == "Gemm":
        return op("Gemm", [x, typed(weights(6, 7)), typed(values(7))]), values(7)
    if kind == "ConvTranspose":
        return op("ConvTranspose", [x, typed(weights(6, 7, 2, 2))], strides=[2, 2]), values(7, 1, 1)
    shape, attributes = CONVOLUTIONS[kind]
    return op("Conv", [x, typed(weights(*shape)), typed(values(shape[0]))], **attributes), values(shape[0], 1, 1)


def made(kind: str, dtype: str, follower: str) -> bytes:
    """Return the model of a product and what follows it."""
    graph = GraphBuilder("g")
    typed = Typed(graph, dtype)
    y, channels = product(typed, graph.input("x", (5, 6) if kind in {"Gemm", "MatMul"} else SHAPE, dtype), kind)
    after = composed(typed, y, channels, follower) if follower in FORMS else graph.op(follower, [y])
    graph.output("y", after)
    return bytes(graph.to_bytes())


def run(model: bytes, kind: str, dtype: str, backend: str) -> Array:
    x = values(*((5, 6) if kind in {"Gemm", "MatMul"} else SHAPE)).astype(DTYPES[dtype])
    return np.asarray(Session(model, backend=backend).run({"x": x})["y"]).astype("float64")


def test_followers_include_all_kinds() -> None:
    assert {"Relu", "Tanh", "Erf", "Elu", "HardSwish", "Mish", "Swish", "LeakyRelu", "Softmax"} <= set(FOLLOWERS)
    assert len(FOLLOWERS) > 50


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", PRODUCTS)
def test_the_cheapest_backend_runs_every_follower_of_a_product(cheapest: str, kind: str, dtype: str) -> None:
    wrong, bound = [], {"float16": 2e-2, "bfloat16": 1e-1}.get(dtype, 1e-4)
    for follower in (*FOLLOWERS, *FORMS):
        model = made(kind, dtype, follower)
        try:
            expected = run(model, kind, dtype, "scalar")
        except EngineError as error:  # an operator without that type: every backend must say so
            with pytest.raises(type(error), match=follower):
                run(model, kind, dtype, "auto")
            continue
        for backend in ("auto", cheapest):
            try:
                found = run(model, kind, dtype, backend)
            except EngineError as error:
                wrong.append(f"{follower} on {backend}: {error}")
                continue
            if not np.allclose(found, expected, rtol=bound, atol=bound, equal_nan=True):
                wrong.append(f"{follower} on {backend}: apart by {np.abs(found - expected).max():.3g}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["Not", "BitwiseNot", "Conjugate"])
def test_an_activation_without_a_kernel_anywhere_is_refused(cheapest: str, dtype: str, activation: str) -> None:
    graph = GraphBuilder("g")
    inputs = [graph.input("x", SHAPE, dtype), Typed(graph, dtype)(weights(7, 6, 1, 1))]
    graph.output("y", graph.op("Conv", inputs, activation=activation))
    for backend in ("auto", cheapest):
        with pytest.raises(EngineError, match="no kernel for the activation"):
            run(graph.to_bytes(), "Conv 1x1", dtype, backend)

"""Backend avx512_bf16: selected by name only, and within the bound of its rounding.

Algorithms are forced, or search is given its rates: on some CPUs the kernels of float32 are the faster ones.
"""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle
from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder

type Array = numpy.ndarray[Any, numpy.dtype[Any]]

BACKEND = next(backend for backend in walle.backends() if backend.name == "avx512_bf16")
UNIT = 2.0**-8  # unit of rounding: 8 significant bits
ALGORITHMS = ("direct bf16", "packed bf16")

pytestmark = pytest.mark.skipif(not BACKEND.available, reason="this CPU has no AVX512_BF16")


def run(graph: GraphBuilder, x: Array, backend: str, threads: int = 1) -> tuple[Array, set[str]]:
    """Return the result and the algorithms, those of bfloat16 forced wherever they apply."""
    model = graph.to_bytes()
    plan = walle.Session(model, backend=backend).plan()
    assert plan is not None
    forced = {
        op.name: (c.algorithm, c.parameter) for op in plan.ops for c in op.candidates if c.algorithm in ALGORITHMS
    }
    session = _core.Session(model, backend, threads=threads, algorithms=forced)
    y = numpy.asarray(session.run({"x": x})["y"])
    native = session.plan()
    assert native is not None
    return y, {op[2] for op in native["ops"]}


def rounded(x: Array) -> Array:
    bits = x.astype("float32").view("uint32").astype("uint64")
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    result: Array = bits.astype("uint32").view("float32")
    return result


def one(op: str, x: Array, w: Array, bias: Array | None = None, **attributes: Any) -> GraphBuilder:
    graph = GraphBuilder("net")
    inputs = [graph.input("x", x.shape), graph.constant("w", w)]
    if bias is not None:
        inputs.append(graph.constant("b", bias))
    graph.output("y", graph.op(op, inputs, **attributes))
    return graph


def check(op: str, x: Array, w: Array, bias: Array | None, threads: int, **attributes: Any) -> set[str]:
    """Compare the result with float32's, on rounded and on given operands, by bounds on the sizes of its terms."""
    found, algorithms = run(one(op, x, w, bias, **attributes), x, "avx512_bf16", threads)
    wanted, _ = run(one(op, x, w, bias, **attributes), x, "scalar")
    meant, _ = run(one(op, rounded(x), rounded(w), bias, **attributes), rounded(x), "scalar")
    sizes = None if bias is None else abs(bias)
    terms, _ = run(one(op, abs(x), abs(w), sizes, **attributes), abs(x), "scalar")
    depth = w.size // w.shape[0] if op == "Conv" else w.shape[0]
    assert (abs(found - wanted) <= 3 * UNIT * terms + 1e-6).all()
    if algorithms & {"1x1 bf16", "direct bf16", "packed bf16"}:
        assert (abs(found - meant) <= (2 * depth + 8) * 2.0**-23 * terms + 1e-30).all()
    return algorithms


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the shapes of x and w and the attributes; arrays would make reports unreadable."""
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    in_channels = draw(st.sampled_from([1, 2, 3, 7, 16, 20, 37, 64] if groups == 1 else [16, 32]))
    out_channels = draw(st.sampled_from([1, 5, 16, 48] if groups == 1 else [16, 32]))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    strides = [draw(st.integers(1, 2)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    size = [(k - 1) * d + 1 + draw(st.integers(0, 9)) for k, d in zip(kernel, dilations, strict=True)]
    return {
        "x": (draw(st.integers(1, 2)), groups * in_channels, *size),
        "w": (groups * out_channels, in_channels, *kernel),
        "attributes": {"strides": strides, "dilations": dilations, "pads": pads, "group": groups},
        "bias": draw(st.booleans()),
        "threads": draw(st.integers(1, 2)),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_convolutions_stay_within_the_rounding_of_their_operands(case: dict[str, Any]) -> None:
    random = numpy.random.default_rng(case["seed"])
    x, w = (random.standard_normal(case[name]).astype("float32") for name in ("x", "w"))
    bias = random.standard_normal(case["w"][0]).astype("float32") if case["bias"] else None
    check("Conv", x, w, bias, case["threads"], **case["attributes"])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(1, 70), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_products_by_constants_stay_within_the_rounding_of_their_operands(
    rows: int, depth: int, columns: int, seed: int
) -> None:
    random = numpy.random.default_rng(seed)
    x = random.standard_normal((rows, depth)).astype("float32")
    w = random.standard_normal((depth, columns)).astype("float32")
    check("MatMul", x, w, None, 1)


@pytest.fixture
def rates() -> Iterator[dict[str, float]]:
    """Return the backend's rates, which are restored afterwards."""
    before = _core.rates("avx512_bf16")
    yield dict(before)
    _core.set_rates("avx512_bf16", before)


@pytest.mark.parametrize("faster", [True, False])
def test_search_takes_bfloat16_where_the_rates_say_that_it_is_faster(rates: dict[str, float], faster: bool) -> None:
    _core.set_rates("avx512_bf16", rates | {"pairs": rates["panel"] * (100 if faster else 0.01), "moved": 1e9})
    random = numpy.random.default_rng(5)
    for op, x, w, rounding in [
        ("Conv", (1, 64, 28, 28), (256, 64, 1, 1), {"1x1 bf16", "1x1 GEMM"}),
        ("MatMul", (128, 512), (512, 512), {"packed bf16"}),
    ]:
        graph = one(op, random.standard_normal(x).astype("float32"), random.standard_normal(w).astype("float32"))
        plan = walle.Session(graph.to_bytes(), backend="avx512_bf16").plan()
        assert plan is not None
        assert (not rounding.isdisjoint(step.algorithm for step in plan.ops)) == faster


def test_a_large_convolution_and_product_run_in_bfloat16() -> None:
    random = numpy.random.default_rng(5)
    x = random.standard_normal((1, 64, 28, 28)).astype("float32")
    w = random.standard_normal((256, 64, 1, 1)).astype("float32")
    assert "1x1 bf16" in check("Conv", x, w, None, 1)
    x, w = (random.standard_normal(shape).astype("float32") for shape in [(128, 512), (512, 512)])
    assert "packed bf16" in check("MatMul", x, w, None, 1)


def test_weights_that_several_readers_share_are_packed_once_and_read_by_all() -> None:
    random = numpy.random.default_rng(7)
    x = random.standard_normal((1, 64, 20, 20)).astype("float32")
    graph = GraphBuilder("net")
    value, w = (
        graph.input("x", x.shape),
        graph.constant("w", random.standard_normal((64, 64, 1, 1)).astype("float32") / 8),
    )
    first = graph.op("Conv", [value, w])
    rows = graph.op("Reshape", [graph.op("Conv", [first, w]), graph.constant("s", numpy.array([400, 64]))])
    v = graph.constant("v", random.standard_normal((64, 64)).astype("float32") / 8)
    graph.output("y", graph.op("MatMul", [graph.op("MatMul", [rows, v]), v]))
    found, algorithms = run(graph, x, "avx512_bf16")
    wanted, _ = run(graph, x, "scalar")
    assert {"1x1 bf16", "packed bf16"} <= algorithms
    assert abs(found - wanted).max() < 0.05 * abs(wanted).max()


def test_lanes_after_the_last_channel_are_ignored() -> None:
    """A reciprocal makes infinities of the zeros there."""
    random = numpy.random.default_rng(6)
    x = random.standard_normal((1, 64, 20, 20)).astype("float32")
    graph = GraphBuilder("net")
    mean = graph.constant("w", numpy.ones((21, 64, 1, 1), "float32") / 64)
    first = graph.op("Conv", [graph.input("x", x.shape), mean])
    other = graph.op("Reciprocal", [first])
    second = random.standard_normal((256, 21, 1, 1)).astype("float32")
    graph.output("y", graph.op("Conv", [other, graph.constant("v", second)]))
    found, _ = run(graph, x, "avx512_bf16")
    assert numpy.isfinite(found).all()


def test_auto_never_selects_it() -> None:
    assert not BACKEND.exact
    assert all(backend.exact for backend in walle.backends() if backend.name != "avx512_bf16")
    x = numpy.ones((64, 512), "float32")
    graph = one("MatMul", x, numpy.ones((512, 512), "float32"))
    session = walle.Session(graph.to_bytes())
    session.run({"x": x})
    plan = session.plan()
    assert plan is not None
    assert plan.backend != "avx512_bf16"
    assert "avx512_bf16" not in plan.costs

"""Convolution by every algorithm and backend, pooling, indexed movements, Einsum and resizing, against NumPy."""

import itertools
import math
import resource
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import walle
from walle.engine_ext.errors import ShapeError, UnsupportedError
from walle.engine_ext.model import GraphBuilder
from walle.errors import EngineError
from walle.onnx_backend import Backend

type Array = npt.NDArray[Any]

BACKENDS = [backend.name for backend in walle.backends() if backend.available and backend.exact]


def run(
    op: str, inputs: dict[str, Array], *, backend: str = "auto", outputs: int = 1, **attributes: Any
) -> list[Array]:
    """Run one operator whose operands are known at run time only."""
    graph = GraphBuilder("one")
    values = [graph.input(name, array.shape, str(array.dtype)) for name, array in inputs.items()]
    made = graph.op(op, values, outputs=outputs, **attributes)
    for index, value in enumerate(made if isinstance(made, list) else [made]):
        graph.output(f"y{index}", value)
    found = walle.Session(graph.to_bytes(), backend=backend).run(inputs)
    return [np.asarray(found[f"y{index}"]) for index in range(outputs)]


def windows(
    x: Array, kernel: list[int], strides: list[int], dilations: list[int], pads: list[int], fill: float
) -> Array:
    """Return x's windows [n, c, outputs..., taps...] in float64."""
    rank = len(kernel)
    padded = np.pad(
        x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=fill
    )
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + rank)))
    steps = [slice(None, None, s) for s in strides]
    return np.asarray(view[(slice(None), slice(None), *steps, *[slice(None, None, d) for d in dilations])])


def convolved(x: Array, w: Array, groups: int, strides: list[int], dilations: list[int], pads: list[int]) -> Array:
    view = windows(x, list(w.shape[2:]), strides, dilations, pads, 0.0)
    rank = w.ndim - 2
    n, outputs = x.shape[0], view.shape[2 : 2 + rank]
    columns = view.reshape(n, groups, w.shape[1], int(np.prod(outputs)), int(np.prod(w.shape[2:])))
    weights = w.astype(np.float64).reshape(groups, w.shape[0] // groups, w.shape[1], -1)
    return np.asarray(np.einsum("ngcpk,gmck->ngmp", columns, weights)).reshape(n, w.shape[0], *outputs)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[dict[str, Array], dict[str, Any]]:
    rank = draw(st.integers(1, 3))
    groups, in_each, out_each = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    strides = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    dilations = draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
    pads = draw(st.lists(st.integers(0, 3), min_size=2 * rank, max_size=2 * rank))
    size = [
        max((k - 1) * d + 1 - pads[i] - pads[i + rank], 1) + draw(st.integers(0, 9 if rank < 3 else 3))
        for i, (k, d) in enumerate(zip(kernel, dilations, strict=True))
    ]
    random = np.random.default_rng(draw(st.integers(0, 99)))
    x = random.standard_normal((draw(st.integers(0, 2)), groups * in_each, *size)).astype(np.float32)
    w = random.standard_normal((groups * out_each, in_each, *kernel)).astype(np.float32)
    return {"x": x, "w": w}, {"group": groups, "strides": strides, "dilations": dilations, "pads": pads}


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_every_algorithm_of_conv_is_the_convolution(case: tuple[dict[str, Array], dict[str, Any]]) -> None:
    inputs, attributes = case
    wanted = convolved(inputs["x"], inputs["w"], *(attributes[k] for k in ("group", "strides", "dilations", "pads")))
    terms = int(np.prod(inputs["w"].shape[1:]))
    depthwise = inputs["w"].shape[1] == 1
    for backend, algorithm in itertools.product(
        BACKENDS, ["plain direct", "im2col GEMM"] + ["plain depthwise"] * depthwise
    ):
        (found,) = run("Conv", inputs, backend=backend, algorithm=algorithm, **attributes)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * terms)
    if not depthwise:
        with pytest.raises(UnsupportedError, match="'plain depthwise' of Conv does not exist or does not apply"):
            run("Conv", inputs, algorithm="plain depthwise", **attributes)
    (chosen,) = run("Conv", inputs, **attributes)
    np.testing.assert_allclose(chosen, wanted, rtol=1e-5, atol=1e-5 * terms)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kernel_of_one_tap_is_a_matrix_product(backend: str) -> None:
    random = np.random.default_rng(1)
    x, w = (
        random.standard_normal((2, 5, 7, 3)).astype(np.float32),
        random.standard_normal((4, 5, 1, 1)).astype(np.float32),
    )
    (found,) = run("Conv", {"x": x, "w": w}, backend=backend, algorithm="1x1 GEMM")
    np.testing.assert_allclose(found, np.einsum("nchw,mc->nmhw", x, w[..., 0, 0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bias_residual_and_activation_follow_the_sums(backend: str) -> None:
    random = np.random.default_rng(2)
    x, w = (
        random.standard_normal((2, 4, 9, 9)).astype(np.float32),
        random.standard_normal((6, 4, 3, 3)).astype(np.float32),
    )
    bias, residual = (
        random.standard_normal(6).astype(np.float32),
        random.standard_normal((2, 6, 7, 7)).astype(np.float32),
    )
    inputs = {"x": x, "w": w, "b": bias, "r": residual}
    sums = convolved(x, w, 1, [1, 1], [1, 1], [0] * 4) + bias[:, None, None] + residual
    (found,) = run("Conv", inputs, backend=backend, activation="Relu")
    np.testing.assert_allclose(found, np.maximum(sums, 0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_convolutions_of_other_float_types_agree_with_the_definition(dtype: str) -> None:
    random = np.random.default_rng(3)
    x, w = random.standard_normal((1, 2, 6, 6)).astype(dtype), random.standard_normal((3, 2, 3, 3)).astype(dtype)
    (found,) = run("Conv", {"x": x, "w": w}, strides=[2, 1])
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_allclose(
        found, convolved(x, w, 1, [2, 1], [1, 1], [0] * 4), rtol=1e-2 if dtype == "float16" else 1e-12
    )


@settings(max_examples=30, deadline=None)
@given(convolutions())
def test_conv_transpose_is_the_adjoint_of_conv(case: tuple[dict[str, Array], dict[str, Any]]) -> None:
    """Check <conv(x), y> = <x, conv_transpose(y)>."""
    inputs, attributes = case
    x, w = (inputs[name].astype(np.float64) for name in "xw")
    (image,) = run("Conv", {"x": x, "w": w}, **attributes)
    if 0 in image.shape[2:]:
        return
    rank = x.ndim - 2
    pads = attributes["pads"]
    covered = [
        (image.shape[i + 2] - 1) * attributes["strides"][i] + (w.shape[i + 2] - 1) * attributes["dilations"][i] + 1
        for i in range(rank)
    ]
    rest = [x.shape[i + 2] - covered[i] + pads[i] + pads[i + rank] for i in range(rank)]
    y = np.random.default_rng(5).standard_normal(image.shape)
    (back,) = run("ConvTranspose", {"y": y, "w": w}, output_padding=rest, **attributes)
    assert back.shape == x.shape
    np.testing.assert_allclose(np.vdot(image, y), np.vdot(x, back), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("strides", "dilations"),
    [([2**26], [3]), ([2**31 - 2], [5]), ([2**31 - 1] * 3, [2] * 3), ([2**21, 2**21, 2**22], [3] * 3)],
)
def test_a_transposed_convolution_of_large_strides_needs_no_memory_for_them(
    strides: list[int], dilations: list[int]
) -> None:
    """Run one tap on one number; the last strides multiply to 2^64."""
    rank = len(strides)
    one = np.full((1, 1, *[1] * rank), 3, np.float32)
    graph = GraphBuilder("one")
    weights = graph.constant("w", one)
    x = graph.input("x", one.shape)
    graph.output("y", graph.op("ConvTranspose", [x, weights], strides=strides, dilations=dilations))
    model = graph.to_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = walle.Session(model).run({"x": one})["y"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    np.testing.assert_array_equal(np.asarray(found), one * 3)


@pytest.mark.parametrize("before", [-4, -3, 3, 4])
def test_a_crop_outside_the_image_is_all_border(before: int) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    pads = np.array([0, before, 0, 1 - before])
    (found,) = run("Pad", {"x": x, "pads": pads, "value": np.array(7, np.float32)})
    wide = np.pad(x, ((0, 0), (9, 9)), constant_values=7)
    np.testing.assert_array_equal(found, wide[:, 9 - before : 9 - before + 4])


def test_integer_convolutions_subtract_their_zero_points() -> None:
    random = np.random.default_rng(7)
    x, w = (
        random.integers(0, 255, (1, 2, 5, 5)).astype(np.uint8),
        random.integers(0, 255, (3, 2, 3, 3)).astype(np.uint8),
    )
    zero_x, zero_w = np.array(7, np.uint8), np.array([1, 2, 3], np.uint8)
    (found,) = run("ConvInteger", {"x": x, "w": w, "xz": zero_x, "wz": zero_w}, pads=[1, 1, 1, 1])
    exact = convolved(
        x.astype(np.int64) - 7,
        w.astype(np.int64) - np.array([1, 2, 3])[:, None, None, None],
        1,
        [1, 1],
        [1, 1],
        [1] * 4,
    )
    np.testing.assert_array_equal(found, exact.astype(np.int32))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("kernel", "strides", "dilations", "pads"),
    [
        ([3], [2], [1], [1, 1]),
        ([3, 2], [1, 2], [1, 2], [1, 0, 0, 1]),
        ([2, 2, 3], [2, 1, 1], [1, 1, 1], [0, 1, 1, 1, 0, 1]),
    ],
)
def test_pooling_joins_each_window(
    backend: str, kernel: list[int], strides: list[int], dilations: list[int], pads: list[int]
) -> None:
    x = np.random.default_rng(11).standard_normal((2, 3, *[9, 8, 7][: len(kernel)])).astype(np.float32)
    taps = tuple(range(-len(kernel), 0))
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    (found,) = run("MaxPool", {"x": x}, backend=backend, **attributes)
    np.testing.assert_array_equal(found, windows(x, kernel, strides, dilations, pads, -np.inf).max(axis=taps))
    inside = windows(np.ones_like(x), kernel, strides, dilations, pads, 0.0).sum(axis=taps)
    sums = windows(x, kernel, strides, dilations, pads, 0.0).sum(axis=taps)
    (found,) = run("AveragePool", {"x": x}, backend=backend, **attributes)
    np.testing.assert_allclose(found, sums / inside, rtol=1e-5, atol=1e-6)
    (found,) = run("AveragePool", {"x": x}, backend=backend, count_include_pad=1, **attributes)
    np.testing.assert_allclose(found, sums / np.prod(kernel), rtol=1e-5, atol=1e-6)
    (found,) = run("LpPool", {"x": x}, backend=backend, p=3, **attributes)
    norms = (windows(np.abs(x) ** 3, kernel, strides, dilations, pads, 0.0).sum(axis=taps)) ** (1 / 3)
    np.testing.assert_allclose(found, norms, rtol=1e-4)


def test_max_unpool_inverts_max_pool() -> None:
    x = np.random.default_rng(13).permutation(2 * 2 * 6 * 8).reshape(2, 2, 6, 8).astype(np.float32)
    values, places = run("MaxPool", {"x": x}, outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    np.testing.assert_array_equal(x.reshape(-1)[places], values)
    (back,) = run("MaxUnpool", {"v": values, "p": places}, kernel_shape=[2, 2], strides=[2, 2])
    np.testing.assert_array_equal(back, np.where(np.isin(x, values), x, 0))


INDICES = st.lists(st.integers(-5, 4), min_size=0, max_size=12)


@settings(max_examples=50, deadline=None)
@given(INDICES, st.integers(0, 2), st.sampled_from(["float32", "int8", "int64", "float16"]))
def test_gather_takes_the_same_whether_its_indices_are_known_or_not(indices: list[int], axis: int, dtype: str) -> None:
    x = np.arange(5 * 5 * 5).reshape(5, 5, 5).astype(dtype)
    index = np.array(indices, dtype=np.int64)
    (at_run_time,) = run("Gather", {"x": x, "i": index}, axis=axis)
    np.testing.assert_array_equal(at_run_time, np.take(x, index, axis=axis))
    graph = GraphBuilder("known")
    graph.output("y", graph.op("Gather", [graph.input("x", x.shape, dtype), graph.constant("i", index)], axis=axis))
    np.testing.assert_array_equal(np.asarray(walle.Session(graph.to_bytes()).run({"x": x})["y"]), at_run_time)


def test_an_index_out_of_range_is_refused_with_its_node() -> None:
    x, index = np.zeros((3, 2), np.float32), np.array([0, 3], np.int64)
    graph = GraphBuilder("g")
    graph.output("y", graph.op("Gather", [graph.input("x", (3, 2)), graph.input("i", (2,), "int64")], name="look_up"))
    session = walle.Session(graph.to_bytes())
    with pytest.raises(ShapeError, match=r"look_up.*out of range"):
        session.run({"x": x, "i": index})
    np.testing.assert_array_equal(np.asarray(session.run({"x": x, "i": np.array([-1, 0])})["y"]), x[[-1, 0]])


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_scatter_reduces_elements_of_one_index(backend: str, reduction: str) -> None:
    random = np.random.default_rng(17)
    data, updates = random.standard_normal((6, 7)).astype(np.float32), random.standard_normal((9, 7)).astype(np.float32)
    rows = random.permutation(6)[:5] if reduction == "none" else random.integers(-6, 6, 9)
    updates = updates[: len(rows)]
    wanted = data.astype(np.float64)
    join = {"none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
    for row, update in zip(rows, updates, strict=True):
        wanted[row] = update if join is None else join(wanted[row], update)
    operands = {"x": data, "i": rows.astype(np.int64)[:, None], "u": updates}
    (found,) = run("ScatterND", operands, backend=backend, reduction=reduction)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    along = {"x": data, "i": np.repeat(rows.astype(np.int64)[:, None], 7, axis=1), "u": updates}
    if len(rows) <= len(data):
        (found,) = run("ScatterElements", along, backend=backend, axis=0, reduction=reduction)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_session_plans_again_for_new_values_that_shapes_depend_on() -> None:
    graph = GraphBuilder("g")
    x, shape = graph.input("x", (2, 6)), graph.input("shape", (2,), "int64")
    graph.output("y", graph.op("Reshape", [graph.op("Neg", [x]), shape]))
    session = walle.Session(graph.to_bytes())
    data = np.arange(12, dtype=np.float32).reshape(2, 6)
    for wanted in ((3, 4), (12, 1), (3, 4), (-1, 2)):
        found = np.asarray(session.run({"x": data, "shape": np.array(wanted, np.int64)})["y"])
        np.testing.assert_array_equal(found, -data.reshape(wanted))
    with pytest.raises(ShapeError, match="cannot reshape"):
        session.run({"x": data, "shape": np.array([5, 5], np.int64)})


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad_is_numpys(mode: str) -> None:
    x = np.arange(3 * 4, dtype=np.int32).reshape(3, 4)
    pads = np.array([2, 5, 1, 7], np.int64)
    (found,) = run("Pad", {"x": x, "pads": pads}, mode=mode)
    np.testing.assert_array_equal(found, np.pad(x, [(2, 1), (5, 7)], mode=mode))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("ii", [(4, 4)]),
        ("i,i", [(5,), (5,)]),
        ("i,j", [(5,), (3,)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ijk->kij", [(2, 3, 4)]),
        ("ij->", [(2, 0)]),
        ("bi,bj,bij->b", [(2, 3), (2, 4), (2, 3, 4)]),
    ],
)
def test_einsum_is_numpys(equation: str, shapes: list[tuple[int, ...]]) -> None:
    random = np.random.default_rng(19)
    arrays = {f"x{index}": random.standard_normal(shape) for index, shape in enumerate(shapes)}
    (found,) = run("Einsum", arrays, equation=equation)
    np.testing.assert_allclose(found, np.einsum(equation, *arrays.values()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-9, -2, 0, 1, 9])
def test_trilu_is_numpys(upper: int, k: int) -> None:
    x = np.arange(2 * 4 * 5, dtype=np.int64).reshape(2, 4, 5) + 1
    (found,) = run("Trilu", {"x": x, "k": np.array(k, np.int64)}, upper=upper)
    np.testing.assert_array_equal(found, (np.triu if upper else np.tril)(x, k))


def test_resize_repeats_interpolates_and_keeps_constants() -> None:
    x = np.random.default_rng(23).standard_normal((1, 2, 3, 4)).astype(np.float32)
    scales = np.array([1, 1, 2, 3], np.float32)
    empty = np.zeros(0, np.float32)
    operands: dict[str, Array] = {"x": x, "roi": empty, "scales": scales}
    (found,) = run(
        "Resize", operands, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    np.testing.assert_array_equal(found, x.repeat(2, axis=2).repeat(3, axis=3))
    for mode in ("linear", "cubic"):
        (found,) = run("Resize", operands | {"x": np.full_like(x, 2.5)}, mode=mode)
        np.testing.assert_allclose(found, np.full((1, 2, 6, 12), 2.5), rtol=1e-6)
    line = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    sizes: dict[str, Array] = {"x": line, "roi": empty, "scales": empty, "sizes": np.array([1, 1, 1, 7], np.int64)}
    (found,) = run("Resize", sizes, mode="linear", coordinate_transformation_mode="align_corners")
    np.testing.assert_allclose(found.reshape(-1), np.arange(7) / 2, rtol=1e-6)


# The conversion of a float that does not fit an integer differs between CPUs and must not happen.
def test_attributes_that_fit_no_size_are_refused() -> None:
    x = np.ones((1, 1, 4, 4), np.float32)
    empty, scales = np.zeros(0, np.float32), np.array([1, 1, 0.2, 1e-9], np.float32)
    (found,) = run("Resize", {"x": x, "roi": empty, "scales": scales}, mode="linear", antialias=1)
    assert found.shape == (1, 1, 0, 0)
    roi = np.array([0, 0, 0, 0, 1, 1, 1, 1e30], np.float32)
    for edge in (1e30, np.nan):
        roi[-1] = edge
        with pytest.raises(ShapeError, match="roi"):
            run(
                "Resize",
                {"x": x, "roi": roi, "scales": np.ones(4, np.float32)},
                coordinate_transformation_mode="tf_crop_and_resize",
            )
    sizes = np.array([1, 1, 2, 2], np.int64)
    operands: dict[str, Array] = {"x": x[:, :, :0], "roi": empty, "scales": empty, "sizes": sizes}
    with pytest.raises(ShapeError, match="Resize of"):
        run("Resize", operands, keep_aspect_ratio_policy="not_smaller")
    boxes = np.array([[0, 1, 1, 2, 2]], np.float32)
    with pytest.raises(ShapeError, match="a box lies nowhere"):
        run("MaxRoiPool", {"x": x, "rois": boxes}, pooled_shape=[1, 1], spatial_scale=1e30)


def test_a_factor_of_whole_numbers_is_one_of_them() -> None:
    a = np.arange(4, dtype=np.uint32).reshape(2, 2)
    (found,) = run("Gemm", {"a": a, "b": a}, alpha=3.0)
    np.testing.assert_array_equal(found, 3 * (a @ a))
    for alpha in (-1.0, 0.5, 1e20):
        with pytest.raises(UnsupportedError, match="Gemm of uint32 times"):
            run("Gemm", {"a": a, "b": a}, alpha=alpha)
    (found,) = run("Clip", {"x": a}, min=-1.0, max=1e20)
    np.testing.assert_array_equal(found, a)


@pytest.mark.parametrize(
    ("shape", "said"), [([3, 3], "kernel_shape is"), (None, "'bogus' is unknown; DeformConv knows dilations")]
)
def test_deformed_convolutions_check_their_attributes(shape: list[int] | None, said: str) -> None:
    x, w, offsets = (np.ones(one, np.float32) for one in [(1, 1, 4, 4), (1, 1, 2, 2), (1, 8, 3, 3)])
    inputs = {"x": x, "w": w, "offsets": 0 * offsets}
    (found,) = run("DeformConv", inputs, kernel_shape=[2, 2])
    np.testing.assert_array_equal(found, np.full((1, 1, 3, 3), 4, np.float32))
    wrong: dict[str, Any] = {"kernel_shape": shape} if shape else {"bogus": 1}
    with pytest.raises(EngineError, match=said):
        run("DeformConv", inputs, **wrong)


def test_windows_that_do_not_fit_are_refused() -> None:
    x, w = np.zeros((1, 2, 4, 4), np.float32), np.zeros((3, 3, 2, 2), np.float32)
    with pytest.raises(ShapeError, match="Conv of"):
        run("Conv", {"x": x, "w": w})
    with pytest.raises(UnsupportedError, match="4 spatial dimensions"):
        run("MaxPool", {"x": np.zeros((1, 1, 2, 2, 2, 2), np.float32)}, kernel_shape=[1, 1, 1, 1])
    with pytest.raises(ShapeError, match="reaches over 9 of 4 padded elements, with a stride of 1"):
        run("MaxPool", {"x": x}, kernel_shape=[9, 9])


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool", "Conv"])
def test_sizes_of_windows_are_those_of_the_specification(op: str) -> None:
    for size, kernel, stride, dilation, pad in itertools.product(range(1, 6), range(1, 5), range(1, 5), (1, 2), (0, 1)):
        x, w = np.ones((1, 1, size), np.float32), np.ones((1, 1, kernel), np.float32)
        window: dict[str, Any] = {"kernel_shape": [kernel], "strides": [stride], "pads": [0, min(pad, kernel - 1)]}
        window["dilations"] = [dilation]
        padded = size + min(pad, kernel - 1)
        room = Fraction(padded - dilation * (kernel - 1) - 1, stride)
        for ceil in (0, 1) if op != "Conv" else (0,):
            expected = (math.ceil(room) if ceil else math.floor(room)) + 1
            if ceil and expected > 0 and (expected - 1) * stride >= size:  # the last window begins inside
                expected -= 1
            feeds = {"x": x, "w": w} if op == "Conv" else {"x": x}
            attributes = window | ({"ceil_mode": ceil} if ceil else {})
            if expected < 0:
                with pytest.raises(ShapeError, match=f"{op}: a kernel that reaches over"):
                    run(op, feeds, **attributes)
            else:
                assert run(op, feeds, **attributes)[0].shape == (1, 1, expected), attributes


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_a_window_larger_than_its_input_has_the_size_of_onnx_not_of_onnx_runtime(op: str) -> None:
    """ONNX rounds (1 - 2) / 3 down, to no window; ONNX Runtime and onnx's inference round it to 0, to one window."""
    sizes: dict[int, dict[str, int]] = {}
    for ceil in (0, 1):
        node = onnx.helper.make_node(op, ["x"], ["y"], kernel_shape=[2], strides=[3], ceil_mode=ceil)
        ends = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [1, 1, 1]), ("y", None))]
        opset = onnx.helper.make_opsetid("", 22)
        graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:])
        model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)
        x = np.full((1, 1, 1), 3, np.float32)
        runtime = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        evaluated: Any = ReferenceEvaluator(model).run(None, {"x": x})
        found = {
            "ours": np.asarray(Backend.run_model(model, {"x": x})[0]),
            "definition": evaluated[0],
            "runtime": runtime.run(None, {"x": x})[0],
        }
        sizes[ceil] = {name: value.shape[-1] for name, value in found.items()}
        if ceil:
            np.testing.assert_allclose(found["ours"], found["runtime"], rtol=1e-6)
    assert sizes[0] == {"ours": 0, "definition": 0, "runtime": 1}
    assert sizes[1] == {"ours": 1, "definition": 1, "runtime": 1}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_convolutions_of_no_elements(backend: str, op: str) -> None:
    """The result is empty, or zeros where only the channels that are summed are none."""
    for images, inner, outer, size, threads in itertools.product((0, 1), (0, 2), (0, 3), (1, 5), (1, 3)):
        x = np.ones((images, inner, size), np.float32)
        w = np.ones((outer, inner, 3) if op == "Conv" else (inner, outer, 3), np.float32)
        if 0 not in (images, inner, outer) and not (op == "Conv" and size == 1):
            continue
        graph = GraphBuilder("g")
        node = graph.op(op, [graph.input("x", x.shape), graph.input("w", w.shape)], group=1, pads=[0, 1], strides=[2])
        graph.output("y", node)
        try:
            session = walle.Session(graph.to_bytes(), backend=backend, threads=threads)
            found = np.asarray(session.run({"x": x, "w": w})["y"])
        except ShapeError:  # the shapes are of no convolution: it is refused without a run
            continue
        assert found.shape[:2] == (images, outer)
        assert not found.any()

"""The operator registry, and every operator of it evaluated at once and in a session."""

from collections import Counter
from typing import Any

import numpy
import pytest

from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError, ShapeError, UnsupportedError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.operators import OperatorInfo, operators
from walle.engine_ext.session import Session, load

CATEGORIES = {"atomic", "transform", "composite", "control-flow", "sequence"}


def test_the_registry_is_sorted_and_complete() -> None:
    infos = operators()
    names = [info.name for info in infos]
    assert names == sorted(set(names))
    assert {info.category for info in infos} <= CATEGORIES
    counts = Counter(info.category for info in infos)
    assert counts["atomic"] >= 57
    assert counts["transform"] >= 14
    assert counts["composite"] >= 6


def test_composites_name_parts_that_are_no_composites() -> None:
    category = {info.name: info.category for info in operators()}
    for info in operators():
        # Shape and Size are constants; Gradient is made of what the rules of other operators emit.
        made_of_parts = info.category == "composite" and info.name not in {"Gradient", "Shape", "Size"}
        assert bool(info.decomposes_to) == made_of_parts
        for part in info.decomposes_to:
            assert category[part] in ("atomic", "transform")


# Shapes of the operands, and attributes, of composites; the others' are in the tests of their families.
COMPOSITES: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "BatchNormalization": ([(2, 3, 4), (3,), (3,), (3,), (3,)], {}),
    "Clip": ([(2, 3)], {"min": 0.0, "max": 1.0}),
    "GRU": ([(2, 1, 3), (1, 6, 3), (1, 6, 2), (1, 12)], {}),
    "Gemm": ([(2, 3), (3, 4), (4,)], {"alpha": 2.0}),
    "GroupNormalization": ([(2, 4, 3), (4,), (4,)], {"num_groups": 2}),
    "InstanceNormalization": ([(2, 4, 3), (4,), (4,)], {}),
    "LRN": ([(2, 4, 3, 3)], {"size": 3}),
    "LSTM": ([(2, 1, 3), (1, 8, 3), (1, 8, 2), (1, 16)], {"algorithm": "decomposed"}),
    "LayerNormalization": ([(2, 3), (3,), (3,)], {}),
    "LogSoftmax": ([(2, 3)], {}),
    "LpNormalization": ([(2, 3)], {"p": 1}),
    "MeanVarianceNormalization": ([(2, 3, 4, 4)], {}),
    "RMSNormalization": ([(2, 3), (3,)], {}),
    "RNN": ([(2, 1, 3), (1, 2, 3), (1, 2, 2), (1, 4)], {"clip": 1.0}),
    "Softmax": ([(2, 3)], {}),
    "Celu": ([(2, 3)], {"alpha": 2.0}),
    "Elu": ([(2, 3)], {"alpha": 2.0}),
    "HardSigmoid": ([(2, 3)], {}),
    "HardSwish": ([(2, 3)], {}),
    "Hardmax": ([(2, 3)], {}),
    "LeakyRelu": ([(2, 3)], {}),
    "Max": ([(2, 3), (3,), (2, 1)], {}),
    "Mean": ([(2, 3), (3,)], {}),
    "Min": ([(2, 3), (3,)], {}),
    "Mish": ([(2, 3)], {}),
    "PRelu": ([(2, 3), (3,)], {}),
    "ReduceL1": ([(2, 3)], {}),
    "ReduceL2": ([(2, 3)], {}),
    "ReduceLogSum": ([(2, 3)], {}),
    "ReduceLogSumExp": ([(2, 3)], {}),
    "ReduceSumSquare": ([(2, 3)], {}),
    "Selu": ([(2, 3)], {}),
    "Shrink": ([(2, 3)], {"bias": 0.1}),
    "Softsign": ([(2, 3)], {}),
    "Sum": ([(2, 3), (3,)], {}),
    "Swish": ([(2, 3)], {}),
    "ThresholdedRelu": ([(2, 3)], {}),
}


@pytest.mark.parametrize("name", sorted(COMPOSITES))
def test_composites_decompose_into_what_they_name(name: str) -> None:
    shapes, attributes = COMPOSITES[name]
    graph, infos = GraphBuilder(name), {info.name: info for info in operators()}
    values = [graph.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    graph.output("y", graph.op(name, values, **attributes))
    plan = Session(graph.to_bytes(), backend="scalar").plan()  # the others have kernels for some as a whole
    assert plan is not None
    used = {op.op for op in plan.ops} - {"Raster"}
    assert used
    assert used <= {part for part in infos[name].decomposes_to if infos[part].category == "atomic"}


# Their operands have forms of their own; test_spatial.py, test_module.py, test_recurrent.py, test_quantised*.py and the
# conformance tests run them.
OTHER_OPERANDS = {
    "Col2Im",
    "Compress",
    "Conjugate",  # complex numbers are walle.np's only, as is Magnitude (test_np_complex.py)
    "Conv",
    "ConvInputGradient",
    "ConvWeightGradient",
    "DeformColumns",
    "GridSample",
    "GridSampleGradient",
    "IntegerConv",
    "IntegerLinear",
    "IntegerPoolMax",
    "IntegerQuantize",
    "IntegerSum",
    "Magnitude",
    "MaxRoiPool",
    "NonMaxSuppression",
    "NonZero",
    "PoolArgMax",
    "PoolMax",
    "PoolMean",
    "PoolSum",
    "RasterGradient",
    "RecurrentGradient",
    "RecurrentSteps",
    "Resample",
    "RoiAlign",
    "RoiAlignGradient",
}

_RANDOM = numpy.random.default_rng(4)
_IMAGE = _RANDOM.integers(0, 256, (6, 8, 3)).astype("uint8")
_GRAY = _IMAGE[..., 0].copy()
_BLOBS = (_RANDOM.random((12, 16)) > 0.6).astype("uint8")
_SLOPES = [_RANDOM.integers(-200, 200, (6, 8)).astype("int16") for _ in range(2)]
_SQUARE = _RANDOM.random((4, 4)).astype("float32")
_CORNERS = numpy.array([[0, 0], [9, 1], [4, 5], [8, 9], [1, 8], [3, 3]], "int32")
_WARPED = {"height": 5, "width": 7, "interpolation": "linear", "border": "constant", "value": [0.0] * 4}
_PLACES = numpy.array([3, 0, 2], "int64")
_INDEXED = {
    "size": [3],
    "indexed_stride": [0],
    "plain_stride": [1],
    "index_stride": [1],
    "offsets": [0, 0, 0, 0],
    "weight": [1],
    "extent": [4],
}
# Operands and attributes of the operators of np's linear algebra, of indexing and of cv's images.
OWN_OPERANDS: dict[str, tuple[list[numpy.ndarray], dict[str, Any]]] = {
    "ApproximatePolygon": ([_CORNERS.astype("float64")], {"epsilon": 1.5, "closed": 1}),
    "BinCount": ([numpy.array([3, 0, 3, 1], "uint8")], {"minlength": 6}),
    "CannyEdges": (_SLOPES, {"low": 50.0, "high": 150.0}),
    "ChannelAffine": ([_SQUARE[:2], _SQUARE[2], _SQUARE[3], _SQUARE[1:3].copy(), _SQUARE[0]], {}),
    "ChannelMoments": ([_SQUARE], {}),
    "ChannelNormalize": ([_SQUARE[:3].copy(), _SQUARE[:2], _SQUARE[2], _SQUARE[3]], {"epsilon": 0.1}),
    "ChannelSums": ([_SQUARE[:2], _SQUARE[2:], _SQUARE[1]], {}),
    "Cholesky": ([_SQUARE @ _SQUARE.T + numpy.eye(4, dtype="float32")], {}),
    "CircleSpans": ([], {"height": 20, "width": 20, "x": 9, "y": 8, "radius": 6, "filled": 0}),
    "ColorConvert": ([_IMAGE], {"kind": "to_hsv", "in_channels": 3, "out_channels": 3}),
    "ColorToYuv": ([_IMAGE], {"layout": "planar"}),
    "ComponentStatistics": ([_BLOBS.astype("int32")], {}),
    "ConnectedComponents": ([_BLOBS], {"connectivity": 8}),
    "ConvexHull": ([_CORNERS.astype("float64")], {"clockwise": 0}),
    "Det": ([_SQUARE], {"logarithm": 1}),
    "DistanceTransform": ([_BLOBS], {"metric": "l2", "size": 5}),
    "Eigh": ([_SQUARE + _SQUARE.T], {}),
    "EqualizeTiles": ([_GRAY, _GRAY], {"rows": 2, "columns": 4, "limit": 2.0}),
    "EqualizingTable": ([numpy.bincount(_GRAY.ravel(), minlength=256).astype("int32")], {}),
    "FindContours": ([_BLOBS], {"mode": "list", "simple": 1}),
    "FloodRegion": ([_IMAGE, _GRAY * 0], {"x": 3, "y": 2, "low": [90.0] * 3, "high": [90.0] * 3}),
    "FourierTransform": ([_RANDOM.random((2, 6, 1))], {}),
    "Gate": ([_SQUARE, _SQUARE.T.copy()], {"low": 0.25, "high": 0.75}),
    "Gcd": ([numpy.array([12, 18, 7]), numpy.array([8, 12, 21])], {}),
    "HistogramBound": ([numpy.bincount(_GRAY.ravel(), minlength=256).astype("int32")], {"method": "triangle"}),
    "HoughLines": ([_BLOBS], {"rho": 1.0, "theta": 0.1, "threshold": 5}),
    "HoughSegments": ([_BLOBS], {"rho": 1.0, "theta": 0.1, "threshold": 5, "length": 2, "gap": 1}),
    "ImageFilter": ([_IMAGE], {"kernel": [0.5, 0.25, 0.25], "kernel_width": 3}),
    "ImageHistogram": ([_GRAY], {}),
    "ImageLookup": ([_IMAGE, _RANDOM.integers(0, 256, 256).astype("uint8")], {}),
    "ImagePointwise": ([_IMAGE, _IMAGE[::-1].copy()], {"op": "add"}),
    "ImageResize": ([_IMAGE], {"height": 5, "width": 11, "interpolation": "cubic"}),
    "IndexedGather": ([_SQUARE[0], _PLACES], {**_INDEXED, "shape": [3]}),
    "IndexedScatter": ([_SQUARE[0], _PLACES, _SQUARE[1, :3].copy()], {**_INDEXED, "reduction": "add"}),
    "LineSpans": ([_CORNERS[:2]], {"height": 20, "width": 20, "thickness": 1}),
    "PReluGradient": ([_SQUARE, _SQUARE.T - 0.5, _SQUARE[0]], {}),
    "PolygonMoments": ([_CORNERS.astype("float64")], {}),
    "PolygonSpans": ([_CORNERS, numpy.array([6], "int64")], {"height": 20, "width": 20}),
    "RandomBits": ([numpy.array([1, 2, 3], "int64")], {"shape": [5], "to": "float32"}),
    "Remap": ([_IMAGE, (_RANDOM.random((5, 7, 2)) * 8).astype("float32")], {"interpolation": "linear"}),
    "SearchSorted": ([numpy.array([0.1, 0.4, 0.9]), numpy.array([[0.4, 2.0]])], {"right": 1}),
    "SeparableFilter": ([_IMAGE], {"kernel_x": [1.0, 2.0, 1.0], "kernel_y": [0.25, 0.5], "to": "float32"}),
    "Solve": ([_SQUARE, _SQUARE[:, :2].copy()], {}),
    "Unique": ([numpy.array([3, 1, 3, 2])], {"sorted": 1}),
    "WarpAffine": ([_IMAGE], {**_WARPED, "matrix": [0.9, 0.1, 1.0, -0.1, 0.9, 2.0]}),
    "WarpPerspective": ([_IMAGE], {**_WARPED, "matrix": [0.9, 0.1, 1.0, -0.1, 0.9, 2.0, 0.01, 0.02, 1.0]}),
    "YuvToColor": ([_IMAGE[..., 0].copy()], {"layout": "planar"}),
}


@pytest.mark.parametrize("name", sorted(OWN_OPERANDS))
def test_operators_of_np_and_cv_agree_between_a_model_and_at_once(name: str) -> None:
    given, attributes = OWN_OPERANDS[name]
    graph = GraphBuilder(name)
    inputs = [graph.input(f"x{i}", value.shape, value.dtype.name) for i, value in enumerate(given)]
    graph.output("y", graph.node(name, inputs, 1, "it", attributes)[0])
    own = load(graph.to_bytes()).run({f"x{i}": value for i, value in enumerate(given)})["y"]
    direct = _core.evaluate(name, given, attributes)[0]
    assert (own.shape, own.dtype) == (direct.shape, direct.dtype)
    numpy.testing.assert_array_equal(numpy.asarray(own), numpy.asarray(direct))


@pytest.mark.parametrize(
    "info",
    [info for info in operators() if info.category == "atomic" and info.name not in OTHER_OPERANDS | set(OWN_OPERANDS)],
    ids=lambda info: info.name,
)
def test_atomic_operators_agree_between_a_session_and_at_once(info: OperatorInfo) -> None:
    name = info.name
    boolean = name in {"Not", "And", "Or", "Xor"}
    x = numpy.array([[0.5, -0.25, 0.75], [0.1, 0.9, -0.6]], "float32")
    y = numpy.array([[0.3], [0.8]], "float32")
    given = [x > 0, y > 0.5] if boolean else [x, y]
    if name.startswith(("Bitwise", "Shift")):
        given = [numpy.array([[5, 3, 250], [1, 0, 7]], "uint8"), numpy.array([[1], [9]], "uint8")]
    elif name in {"CumProd", "CumSum"}:
        given = [x, numpy.array(1)]
    if name == "Where":
        given = [x > 0, x, y]
    elif name in {"Linear", "MatMul"}:
        given = [x, numpy.ascontiguousarray(x.T)]
    elif name.startswith(("Arg", "Reduce")):
        given = [x]
    attributes: dict[str, Any] = {"to": "int32"} if name == "Cast" else {"k": 2} if name.startswith("Top") else {}
    for count in (len(given), 1):
        graph = GraphBuilder(name)
        inputs = [graph.input(f"x{i}", value.shape, value.dtype.name) for i, value in enumerate(given[:count])]
        graph.output("y", graph.op(name, inputs, **attributes))
        try:
            own = Session(graph.to_bytes()).run({f"x{i}": value for i, value in enumerate(given[:count])})["y"]
        except (ModelError, ShapeError, UnsupportedError):  # the operator takes fewer inputs, or constant axes
            continue
        direct = _core.evaluate(name, given[:count], attributes)[0]
        assert (own.shape, own.dtype) == (direct.shape, direct.dtype)
        numpy.testing.assert_array_equal(numpy.asarray(own), numpy.asarray(direct))
        return
    pytest.fail(f"{name} ran with no number of inputs")


def test_unknown_operators_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="'Nothing'"):
        _core.evaluate("Nothing", [], {})
    with pytest.raises(ModelError, match="got 1 inputs"):
        _core.evaluate("Add", [1.0], {})

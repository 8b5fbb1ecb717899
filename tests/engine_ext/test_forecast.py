"""Forecasts of operators: the same shapes and dtypes as their results, without computing them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy
import pytest

from tests.engine_ext.test_graph import OWN_OPERANDS
from tests.sim.onnx_suite import all_cases, load_case, quiet, to_value
from walle.engine_ext import _core, np
from walle.engine_ext.conversion import convert_bytes
from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.nn.tracing import Trace
from walle.errors import EngineError

OF_DATA = {
    "ApproximatePolygon", "BinCount", "ComponentStatistics", "ConvexHull", "DistanceTransform", "EqualizeTiles",
    "EqualizingTable", "FindContours", "FloodRegion", "HistogramBound", "HoughLines", "HoughSegments", "LineSpans",
    "PolygonMoments", "PolygonSpans", "Unique",
}  # fmt: skip


def stand_in(array: Any) -> Any:
    return _core.broadcast_to(_core.zeros((), array.dtype), array.shape)


@pytest.mark.parametrize("name", sorted(OWN_OPERANDS))
def test_operators_of_np_and_cv_give_what_was_forecast(name: str) -> None:
    given, attributes = OWN_OPERANDS[name]
    arrays = [_core.asarray(one) for one in given]
    outputs = len(_core.evaluate(name, arrays, attributes))
    inputs, known = [stand_in(one) for one in arrays], [False] * len(arrays)
    if name in OF_DATA:
        with pytest.raises(UnsupportedError, match="depend on data"):
            _core.forecast(name, inputs, known, attributes, outputs)
        return
    found = _core.forecast(name, inputs, known, attributes, outputs)
    for (forecast, is_known), result in zip(found, _core.evaluate(name, arrays, attributes, outputs), strict=True):
        assert (forecast.shape, forecast.dtype) == (result.shape, result.dtype)
        assert is_known is (not arrays)


def check_nodes(case: Any) -> int:
    """Compare forecast and result of each node of a case of ONNX; return how many nodes were compared."""
    with quiet():
        model, data_sets = load_case(case)
        graph = _core.Graph.open(convert_bytes(model))
        values: dict[int, tuple[Any, Any, bool]] = {-1: (None, None, True)}
        for number, (_, kind, _, _, array) in enumerate(graph.values()):
            if kind == "constant":
                values[number] = (array, array, True)
        for number, given in zip(graph.inputs(), data_sets[0][0], strict=True):
            array = _core.asarray(to_value(given))
            values[number] = (array, stand_in(array), False)
        compared = 0
        for op, _, operands, attributes, results, _ in graph.nodes():
            inputs = [values[number] for number in operands]
            computed = _core.evaluate(op, [one for one, _, _ in inputs], attributes, len(results))
            found = _core.forecast(
                op, [one for _, one, _ in inputs], [known for _, _, known in inputs], attributes, len(results)
            )
            for number, array, (forecast, is_known) in zip(results, computed, found, strict=True):
                assert (forecast.shape, forecast.dtype) == (array.shape, array.dtype), op
                if is_known:
                    numpy.testing.assert_array_equal(numpy.asarray(forecast), numpy.asarray(array))
                values[number] = (array, forecast, is_known)
            compared += 1
        return compared


@pytest.mark.night
def test_nodes_of_onnx_give_what_was_forecast() -> None:
    compared = 0
    with quiet():
        cases = all_cases()
    for case in cases.values():
        # What the engine refuses, and models of sequences and of shapes that depend on data, are not of interest.
        with contextlib.suppress(EngineError, TypeError):
            compared += check_nodes(case)
    assert compared > 10_000


def test_numbers_made_of_shapes_are_known() -> None:
    x = stand_in(_core.zeros((2, 3), "float32"))
    [(shape, is_known)] = _core.forecast("Shape", [x], [False], {}, 1)
    assert is_known
    assert list(shape) == [2, 3]
    [(rows, is_known)] = _core.forecast("Gather", [shape, _core.asarray([0])], [True, True], {"axis": 0}, 1)
    assert is_known
    [(result, is_known)] = _core.forecast("Reshape", [x, _core.concatenate([rows * 3])], [False, True], {}, 1)
    assert (result.shape, is_known) == ((6,), False)


def test_a_shape_that_depends_on_elements_is_refused() -> None:
    x, shape = stand_in(_core.zeros((2, 3), "float32")), stand_in(_core.zeros((1,), "int64"))
    with pytest.raises(UnsupportedError, match="Reshape: 'shape' must be known before running; make it a constant"):
        _core.forecast("Reshape", [x, shape], [False, False], {}, 1)
    with pytest.raises(UnsupportedError, match="NonZero: its outputs or their shapes depend on data"):
        _core.forecast("NonZero", [x], [False], {}, 1)
    with pytest.raises(ModelError, match="Add got 1 inputs"):
        _core.forecast("Add", [x], [False], {}, 1)
    with pytest.raises(ValueError, match="one flag is needed for each input"):
        _core.forecast("Add", [x, x], [False], {}, 1)


def test_a_trace_has_no_memory_for_values() -> None:
    x = _core.zeros((1024, 1024), "float32")
    with Trace("large") as trace:
        before = _core.live_storage_bytes()
        traced: Any = trace.input("x", x)
        y = np.tanh(traced @ traced + 1.0).sum(axis=0, keepdims=True) * np.where(traced > 0, traced, 2)
        assert (y.shape, y.dtype) == ((1024, 1024), "float32")
        assert _core.live_storage_bytes() - before < 10_000

"""Expected results of a random graph: ONNX Runtime without its optimiser, or ONNX's evaluator where it refuses."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.engine_ext.random_graphs.maker import Array

_HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


class NoReference(Exception):  # noqa: N818 — not an error of the engine: no opinion on this graph
    """A graph that neither reference runs."""


class Reference:
    """The reference for a graph; 16-bit floats are computed in float32, so that only the engine rounds to them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = in_float32(model)
        self._names = [one.name for one in model.graph.output]
        self._runtime = _runtime(self._model)
        self._evaluator = None if self._runtime is not None else ReferenceEvaluator(self._model)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name.

        Raises:
            NoReference: neither reference runs the graph.
        """
        wide = {name: np.asarray(array, np.float32) if _is_half(array) else array for name, array in feeds.items()}
        try:
            if self._runtime is not None:
                found = self._runtime.run(self._names, wide)
            else:
                assert self._evaluator is not None
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    found = self._evaluator.run(self._names, wide)
        except Exception as error:
            raise NoReference(str(error)[:200]) from error
        return {name: np.asarray(value) for name, value in zip(self._names, found, strict=True)}


def most_of(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> float:
    """Return the largest size of a float that any node of a graph computes.

    Raises:
        NoReference: neither reference runs the graph.
    """
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for node in model.graph.node for name in node.output)
    values = Reference(whole).run(feeds).values()
    return max((float(np.abs(one).max(initial=0)) for one in values if one.dtype.kind == "f"), default=0.0)


def _is_half(array: Array) -> bool:
    return array.dtype.name in {"float16", "bfloat16"}


def _runtime(model: onnx.ModelProto) -> Any:
    """Return a session of ONNX Runtime, None where it refuses the graph."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # several families of its own
        return None


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with float32 wherever it has float16 or bfloat16."""
    return _widened(model, _HALVES, TensorProto.FLOAT)


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with float64 wherever it has a float of fewer bits."""
    return _widened(model, _HALVES | {TensorProto.FLOAT}, TensorProto.DOUBLE)


def _widened(model: onnx.ModelProto, narrow: frozenset[int], wide: int) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    _widen(made.graph, narrow, wide)
    return made


def _widen(graph: onnx.GraphProto, narrow: frozenset[int], wide: int) -> None:
    for one in (*graph.input, *graph.output, *graph.value_info):
        if one.type.tensor_type.elem_type in narrow:
            one.type.tensor_type.elem_type = wide
    for tensor in graph.initializer:
        _widen_tensor(tensor, narrow, wide)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen_tensor(attribute.t, narrow, wide)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _widen(attribute.g, narrow, wide)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i in narrow:
                attribute.i = wide


def _widen_tensor(tensor: onnx.TensorProto, narrow: frozenset[int], wide: int) -> None:
    if tensor.data_type in narrow:
        values = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(wide))
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(values, name))


# Operators by constants that ONNX gives as float32.
_CONSTANTS = frozenset(
    {"Celu", "Elu", "Erf", "Gelu", "Gemm", "HardSigmoid", "HardSwish", "LayerNormalization", "LeakyRelu", "LRN", "Selu"}
)


def unit_of(model: onnx.ModelProto) -> float:
    """Return the unit of rounding of the coarsest float that a graph has, attributes included."""
    numbers = {one.type.tensor_type.elem_type for one in model.graph.input}
    numbers |= {one.data_type for one in model.graph.initializer}
    numbers |= {
        attribute.t.data_type for node in model.graph.node for attribute in node.attribute if attribute.HasField("t")
    }
    numbers |= {one.i for node in model.graph.node if node.op_type == "Cast" for one in node.attribute}
    known = {TensorProto.FLOAT, TensorProto.DOUBLE, *_HALVES}
    kinds = {str(helper.tensor_dtype_to_np_dtype(number)) for number in numbers if number in known}
    units = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
    if kinds & units.keys() == {"float64"} and not any(node.op_type in _CONSTANTS for node in model.graph.node):
        return units["float64"]
    return max(units[name] if name != "float64" else units["float32"] for name in (kinds & units.keys()) or {"float32"})

"""Small ONNX models for tests, and ONNX Runtime or ONNX's reference as the other opinion."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from walle.engine_ext.onnx_import.graph import Attribute, Node

NODE: Any = helper.make_node  # Any: the attributes are keywords of any kind


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    *,
    weights: Mapping[str, Any] | None = None,
    opset: int = 21,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Return a model whose inputs have the types of the given arrays, and their shapes where `shapes` has no other."""
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype), (shapes or {}).get(name, np.shape(array))
        )
        for name, array in inputs.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", infos, results, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=list(functions))


def make_node(
    op: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    attributes: Mapping[str, Attribute] | None = None,
    name: str = "",
) -> Node:
    """Return a node of the importer's graph."""
    return Node(op=op, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes or {}, name=name)


def reference(proto: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Return what ONNX's own evaluator computes."""
    return list(ReferenceEvaluator(proto).run(None, dict(inputs)))


def runtime(proto: onnx.ModelProto, inputs: Mapping[str, Any], *, optimised: bool = True) -> list[Any]:
    """Return what ONNX Runtime computes, with or without its optimiser."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

"""Types and shapes of a model's values, by the package `onnx`."""

from math import prod
from typing import NamedTuple

import onnx
from onnx import shape_inference

from walle.engine_ext.errors import ModelError
from walle.engine_ext.onnx_import.checks import title


class Inferred(NamedTuple):
    """A model with the types and shapes of its values, as far as they are found, and why they are not ("")."""

    model: onnx.ModelProto
    problem: str


def infer(model: onnx.ModelProto, value_bytes: int) -> Inferred:
    """Return the model with the types and shapes of its values.

    The engine checks shapes itself when it plans: what onnx refuses, the engine may compute.

    Raises:
        ModelError: a value has more than `value_bytes`; names its node.
    """
    plain = bare(model)
    try:
        inferred = _inferred(plain)
    except MemoryError:
        return Inferred(plain, "it needs more memory than the limits allow")
    except Exception as error:  # noqa: BLE001 -- onnx's own families
        return Inferred(plain, " ".join(str(error).split()))
    _check_sizes(inferred.graph, value_bytes)
    return Inferred(inferred, "")


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return shape_inference.infer_shapes(model, data_prop=True)
    except MemoryError:  # the values of a long vector, which it takes for a shape
        return shape_inference.infer_shapes(model)


def bare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with the shapes of inputs and weights only: others may be wrong, and inference would trust them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    for one in copy.graph.output:
        if one.type.HasField("tensor_type"):
            one.type.tensor_type.ClearField("shape")
    return copy


def _check_sizes(graph: onnx.GraphProto, value_bytes: int) -> None:
    """Check that no value of the main graph is too large, nor has a negative dimension."""
    makers = {name: title(node, index) for index, node in enumerate(graph.node) for name in node.output}
    for info in (*graph.value_info, *graph.output):
        if not info.type.HasField("tensor_type"):
            continue
        dims = [one.dim_value for one in info.type.tensor_type.shape.dim if one.HasField("dim_value")]
        where = makers.get(info.name, f"value {info.name!r}")
        if any(dim < 0 for dim in dims):
            raise ModelError(f"{where}: its result {info.name!r} has the negative dimensions {dims}")
        if len(dims) == len(info.type.tensor_type.shape.dim) and prod(dims) > value_bytes:  # a byte each, or more
            raise ModelError(
                f"{where}: its result {info.name!r} has {prod(dims)} elements {dims}; the most is {value_bytes} bytes"
                " (value_bytes of ConvertLimits)"
            )

"""Reference outputs in float64: the converted model, run by this project's engine on the seeded inputs.

In float64 the engine has neither packed layouts nor Winograd, so the reference and the times come from different
algorithms.

    python -m benchmarks.fig10.reference MODEL
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.fig10.engines import inputs_of


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with all float32 converted to float64, except the scales of Resize, which ONNX fixes."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.value_info[:]
    scales = {node.input[2] for node in wide.graph.node if node.op_type == "Resize" and len(node.input) > 2}
    for constant in wide.graph.initializer:
        if constant.data_type == TensorProto.FLOAT and constant.name not in scales:
            constant.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(constant).astype(np.float64), constant.name)
            )
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in wide.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.CopyFrom(helper.make_attribute("to", TensorProto.DOUBLE))
    return wide


def reference(model: Path) -> Path:
    """Return the file of the float64 outputs, in the manifest's order; it is written unless it exists."""
    path = model.with_suffix(".float64.npz")
    if path.exists():
        return path
    from walle import Session
    from walle.engine_ext.conversion import convert_bytes

    entry = json.loads((model.parent / "manifest.json").read_bytes())[model.stem]
    session = Session(convert_bytes(in_float64(onnx.load(model))))
    inputs: dict[str, Any] = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in inputs_of(entry).items()
    }
    outputs = session.run(inputs)
    np.savez(path, *(np.asarray(outputs[name]) for name in entry["outputs"]))
    return path


if __name__ == "__main__":
    reference(Path(sys.argv[1]))

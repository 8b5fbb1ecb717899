"""The livestream app's public models as pairs of files for the same graph: .walle for us, ONNX for the peer."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import walle
from apps.livestream.make_embedder import build_embedder, write_embedder
from apps.livestream.task_files import manifest
from walle.engine_ext.tflite_import.read import read_tflite
from walle.model_files import ModelFolder


class OnnxBuilder:
    """A GraphBuilder that makes ONNX: the calls that `build_embedder` makes."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: tuple[int, ...]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def constant(self, name: str, value: Any, dtype: str | None = None) -> str:
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def op(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        result = f"{kind}{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [result], **attributes))
        return result

    def output(self, name: str, value: str) -> None:
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, (None, None)))

    def save(self, path: Path) -> None:
        graph = helper.make_graph(self._nodes, "embedder", self._inputs, self._outputs, self._constants)
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        onnx.checker.check_model(model)
        onnx.save(model, path)


def without_constant_inputs(source: Path, target: Path) -> None:
    """Write an ONNX model whose initialisers are constants: a file that lists them as inputs slows ONNX Runtime."""
    model = onnx.load(source)
    constants = {one.name for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    onnx.save(model, target)


def write(folder: Path, models: ModelFolder) -> dict[str, tuple[Path, Path]]:
    """Write the pairs into `folder`; return (.walle, .onnx) by the names of the app's manifest.

    Models in packages are left out: they are not published as ONNX, and the app runs without them.

    Raises:
        ModelFileError: a model is not in the folder of models.
    """
    pairs = {}
    for name, entry in manifest().entries.items():
        if entry.package is not None:
            continue
        source, ours, theirs = models.file(entry), folder / f"{name}.walle", folder / f"{name}.onnx"
        if source.suffix == ".tflite":
            write_embedder(source, ours)
            builder: Any = OnnxBuilder()
            build_embedder(builder, read_tflite(source.read_bytes()))
            builder.save(theirs)
        else:
            walle.convert(source, ours)
            without_constant_inputs(source, theirs)
        pairs[name] = (ours, theirs)
    return pairs

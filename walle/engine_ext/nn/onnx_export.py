"""Trained models as ONNX files."""

from __future__ import annotations

from walle.engine_ext import _core, np
from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.nn.export import inference_trace, refuse_in_vm

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any

    from walle.engine_ext.nn.module import Module
    from walle.engine_ext.nn.tracing import Trace

__all__ = ["to_onnx"]

_OPSET = 20
# Engine operators under another name in ONNX.
_RENAMED = {"Maximum": "Max", "Minimum": "Min", "Power": "Pow", "StopGradient": "Identity"}
# Attributes that are inputs in ONNX, by operator, behind the inputs that a node has.
_AS_INPUTS = {
    "Expand": ("shape",),
    "Pad": ("pads",),
    "ReduceMax": ("axes",),
    "ReduceMean": ("axes",),
    "ReduceMin": ("axes",),
    "ReduceProd": ("axes",),
    "ReduceSum": ("axes",),
    "Reshape": ("shape",),
    "Split": ("split",),
    "Squeeze": ("axes",),
    "Tile": ("repeats",),
    "Unsqueeze": ("axes",),
}


def to_onnx(model: Module, path: str | os.PathLike[str], *inputs: Any) -> None:
    """Write the model as an ONNX file for inference, on example inputs or those that it was trained on last.

    It needs the package `onnx`. The first dimension is free where the model allows it.

    Raises:
        ModelError: `onnx` is not installed, or no inputs are known.
        UnsupportedError: ONNX has no operator for one of the model's; the message names the node.
    """
    refuse_in_vm("to_onnx")
    try:
        import onnx
    except ImportError as error:
        raise ModelError("to_onnx needs the package onnx: pip install onnx") from error
    known = inputs or model.__dict__.get("_trained_on")
    if not known:
        raise ModelError(
            f"{type(model).__name__} has not been trained yet: give example inputs, to_onnx(model, path, x)"
        )
    onnx.save(_OnnxGraph(inference_trace(model, known)).model(), str(path))


class _OnnxGraph:
    """The nodes and constants of an ONNX graph."""

    def __init__(self, trace: Trace) -> None:
        import onnx
        from onnx import helper

        self._trace, self._onnx, self._helper = trace, onnx, helper
        self._nodes: list[Any] = []
        read = {
            self._value(number)
            for _, _, numbers, _, _ in trace.nodes
            for number in numbers
            if self._is_constant(number)
        }
        read |= {self._value(number) for _, number in trace.outputs if self._is_constant(number)}
        self._constants = [self._tensor(name, array) for name, array in trace.constants if name in read]
        self._results: list[str] = []
        for place, (op, name, numbers, attributes, outputs) in enumerate(trace.nodes):
            given = ["" if number < 0 else self._value(number) for number in numbers]
            results = [f"{name}:{place}:{at}" for at in range(outputs)]
            self._results += results
            self._add(op, name, given, dict(attributes), results)

    def model(self) -> Any:
        trace, helper = self._trace, self._helper
        types = self._onnx.TensorProto
        inputs = [
            helper.make_tensor_value_info(
                name, _onnx_type(types, dtype), ["batch" if one is None else one for one in shape]
            )
            for name, dtype, shape in trace.inputs
        ]
        nodes, outputs = list(self._nodes), []
        for (name, number), (dtype, rank) in zip(trace.outputs, trace.output_types, strict=True):
            nodes.append(helper.make_node("Identity", [self._value(number)], [name], name=name))
            outputs.append(helper.make_tensor_value_info(name, _onnx_type(types, dtype), [None] * rank))
        graph = helper.make_graph(nodes, trace.name, inputs, outputs, self._constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
        self._onnx.checker.check_model(made)
        return self._onnx.shape_inference.infer_shapes(made)

    def _is_constant(self, number: int) -> bool:
        return number >= 0 and self._trace.values[number][0] == "constant"

    def _value(self, number: int) -> str:
        kind, place = self._trace.values[number]
        if kind == "input":
            return self._trace.inputs[place][0]
        return self._trace.constants[place][0] if kind == "constant" else self._results[place]

    def _tensor(self, name: str, array: Any) -> Any:
        kind = _onnx_type(self._onnx.TensorProto, str(array.dtype))
        return self._helper.make_tensor(name, kind, array.shape, _core.contiguous(array).tobytes(), raw=True)

    def _node(self, op: str, name: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        self._nodes.append(self._helper.make_node(op, inputs, outputs, name=name, **attributes))

    def _add(self, op: str, name: str, inputs: list[str], attributes: dict[str, Any], outputs: list[str]) -> None:
        for key in _AS_INPUTS.get(op, ()):
            if key in attributes:
                constant = f"{outputs[0]} {key}"
                self._constants.append(self._tensor(constant, np.asarray(attributes.pop(key), "int64")))
                inputs = [*inputs, constant]
        made = _COMPOSED.get(op)
        if made is not None:
            made(self, name, inputs, attributes, outputs)
            return
        if op == "Cast":
            attributes["to"] = _onnx_type(self._onnx.TensorProto, attributes["to"])
        known = _RENAMED.get(op, op)
        if not self._onnx.defs.has(known, max_inclusive_version=_OPSET):
            raise UnsupportedError(f"node {name!r}: ONNX has no operator for {op}")
        self._node(known, name, inputs, outputs, **attributes)


def _onnx_type(types: Any, dtype: str) -> int:
    names = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}
    return int(getattr(types, names.get(dtype, dtype.upper())))


def _then(*ops: str) -> Callable[..., None]:
    """Return a maker of a chain of operators, the first on the inputs."""

    def make(graph: _OnnxGraph, name: str, inputs: list[str], attributes: dict[str, Any], outputs: list[str]) -> None:
        for at, op in enumerate(ops):
            results = outputs if at == len(ops) - 1 else [f"{outputs[0]} {op}"]
            graph._node(op, f"{name} {op}" if at else name, inputs, results, **({} if at else attributes))
            inputs = results

    return make


def _square(graph: _OnnxGraph, name: str, inputs: list[str], attributes: dict[str, Any], outputs: list[str]) -> None:
    graph._node("Mul", name, [inputs[0], inputs[0]], outputs, **attributes)


_COMPOSED: dict[str, Callable[..., None]] = {
    "NotEqual": _then("Equal", "Not"),
    "Rsqrt": _then("Sqrt", "Reciprocal"),
    "Square": _square,
}

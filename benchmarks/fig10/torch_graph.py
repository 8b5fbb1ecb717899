"""Networks of Fig. 10 as torch modules, so that PyTorch is timed on the same files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional

_DTYPES = {TensorProto.FLOAT: torch.float32, TensorProto.INT64: torch.int64}


def _conv(x: Any, w: Any, b: Any = None, *, strides: Any, pads: Any, group: int = 1, **_: Any) -> Any:
    return functional.conv2d(x, w, b, strides, pads[:2], 1, group)


def _max_pool(x: Any, *, kernel_shape: Any, strides: Any, pads: Any) -> Any:
    return functional.max_pool2d(x, kernel_shape, strides, pads[:2])


def _gru(x: Any, w: Any, r: Any, b: Any, *, hidden_size: int, **_: Any) -> Any:
    """Return the outputs of a GRU; ONNX orders the gates update, reset, new, torch reset, update, new."""

    def turned(rows: Any) -> Any:
        update, reset, new = rows.split(hidden_size)
        return torch.cat([reset, update, new])

    of_input, of_state = b[0].split(3 * hidden_size)
    weights = [turned(part) for part in (w[0], r[0], of_input, of_state)]
    start = x.new_zeros(1, x.shape[1], hidden_size)
    steps, last = torch.gru(x, start, weights, True, 1, 0.0, False, False, False)
    return steps.unsqueeze(1), last


def _squeeze(x: Any, axes: Any) -> Any:
    for axis in sorted(axes, reverse=True):
        x = x.squeeze(axis)
    return x


def _unsqueeze(x: Any, axes: Any) -> Any:
    for axis in sorted(axes):
        x = x.unsqueeze(axis)
    return x


_OPS: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "BatchNormalization": lambda x, s, b, m, v, epsilon: functional.batch_norm(x, m, v, s, b, False, 0.0, epsilon),
    "Cast": lambda x, to: x.to(_DTYPES[to]),
    "Clip": lambda x, low, high: torch.clamp(x, float(low), float(high)),
    "Concat": lambda *parts, axis: torch.cat(parts, axis),
    "Conv": _conv,
    "Div": torch.div,
    "Erf": torch.erf,
    "Expand": lambda x, shape: x.expand(shape),
    "Flatten": lambda x, axis: x.flatten(axis),
    "GRU": _gru,
    "Gather": lambda table, rows, **_: functional.embedding(rows, table),
    "Gemm": lambda x, w, b, **_: functional.linear(x, w, b),
    "GlobalAveragePool": lambda x: functional.adaptive_avg_pool2d(x, 1),
    "Identity": lambda x: x,
    "MatMul": torch.matmul,
    "MaxPool": _max_pool,
    "Mul": torch.mul,
    "PRelu": functional.prelu,
    "Pow": lambda x, power: torch.pow(x, float(power)),
    "ReduceMean": lambda x, axes: x.mean(axes, keepdim=True),
    "Relu": functional.relu,
    "Reshape": lambda x, shape: x.reshape(shape),
    "Resize": lambda x, _, scales, **_how: functional.interpolate(x, scale_factor=[float(s) for s in scales[2:]]),
    "Sigmoid": torch.sigmoid,
    "Softmax": lambda x, axis: x.softmax(axis),
    "Split": lambda x, sizes, axis: x.split(sizes, axis),
    "Sqrt": torch.sqrt,
    "Squeeze": _squeeze,
    "Sub": torch.sub,
    "Transpose": lambda x, perm: x.permute(perm),
    "Unsqueeze": _unsqueeze,
}


class TorchGraph(torch.nn.Module):
    """Module that runs the nodes of an ONNX file in order; raises KeyError for an operator that no network here has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        graph = onnx.load(path).graph
        self.inputs, self.outputs = ([value.name for value in values] for values in (graph.input, graph.output))
        self.lists: dict[str, Any] = {"": None}  # int64 constants are shapes, axes and sizes
        weights = {}
        for constant in graph.initializer:
            array = numpy_helper.to_array(constant)
            if array.dtype == np.int64:
                self.lists[constant.name] = array.tolist()
            else:
                weights[constant.name] = torch.nn.Parameter(torch.from_numpy(array.copy()), requires_grad=False)
        self.weights = torch.nn.ParameterDict(weights)
        self.steps = [
            (_OPS[node.op_type], list(node.input), list(node.output), self._attributes(node)) for node in graph.node
        ]

    @staticmethod
    def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
        return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}

    def forward(self, *given: Any) -> Any:
        values = {**dict(zip(self.inputs, given, strict=True)), **self.lists, **dict(self.weights.items())}
        for function, inputs, outputs, attributes in self.steps:
            found = function(*[values[name] for name in inputs], **attributes)
            values.update(zip(outputs, found if isinstance(found, tuple | list) else [found], strict=True))
        return tuple(values[name] for name in self.outputs)

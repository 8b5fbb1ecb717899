"""Builder of ONNX graphs with seeded random weights; like an exporter's output, nothing is folded or fused."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


class OnnxGraph:
    """A graph under construction; methods add nodes and return the names of their results.

    `channels` maps image values to their channels, so that layers take only their number of outputs.
    """

    def __init__(self, name: str, seed: int = 10) -> None:
        self.name = name
        self.random = np.random.default_rng(seed)
        self.channels: dict[str, int] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._constants: list[onnx.TensorProto] = []

    def input(self, name: str, shape: Sequence[int], kind: int = TensorProto.FLOAT) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        if len(shape) == 4:
            self.channels[name] = shape[1]
        return name

    def output(self, name: str, value: str, shape: Sequence[int]) -> None:
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"output_{name}"))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.ops(kind, *inputs, count=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        """Add a node with `count` results."""
        number = len(self._nodes)
        results = [f"{kind.lower()}{number}_{i}" for i in range(count)]
        self._nodes.append(helper.make_node(kind, list(inputs), results, name=f"{kind}_{number}", **attributes))
        return results

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(np.asarray(values, dtype)), name))
        return name

    def whole(self, *values: int) -> str:
        """Add an int64 constant, such as a shape, axes or sizes."""
        return self.constant(values, np.int64)

    def normal(self, shape: Sequence[int], deviation: float) -> str:
        return self.constant(self.random.standard_normal(shape, dtype=np.float32) * np.float32(deviation))

    def between(self, low: float, high: float, shape: Sequence[int]) -> str:
        return self.constant(self.random.uniform(low, high, shape))

    # --- images

    def as_image(self, value: str, channels: int) -> str:
        self.channels[value] = channels
        return value

    def conv(self, x: str, out: int, kernel: int = 1, stride: int = 1, *, groups: int = 1, bias: bool = False) -> str:
        each = self.channels[x] // groups
        weights = [self.normal((out, each, kernel, kernel), math.sqrt(2 / (each * kernel * kernel)))]
        if bias:
            weights.append(self.normal((out,), 0.02))
        return self.conv_by(x, weights, out, kernel, stride, groups)

    def conv_by(self, x: str, weights: Sequence[str], out: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        """Add a convolution with given weights, which other convolutions may share."""
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": groups}
        return self.as_image(self.op("Conv", x, *weights, **attributes), out)

    def norm(self, x: str) -> str:
        """Add a batch normalisation."""
        channels = self.channels[x]
        ranges = ((0.8, 1.2), (-0.1, 0.1), (-0.1, 0.1), (0.8, 1.4))
        parts = [self.between(low, high, (channels,)) for low, high in ranges]
        return self.as_image(self.op("BatchNormalization", x, *parts, epsilon=1e-5), channels)

    def relu(self, x: str) -> str:
        return self.as_image(self.op("Relu", x), self.channels.get(x, 0))

    def relu6(self, x: str) -> str:
        return self.as_image(self.op("Clip", x, self.constant(0), self.constant(6)), self.channels[x])

    def add(self, a: str, b: str) -> str:
        return self.as_image(self.op("Add", a, b), self.channels[a])

    def concat(self, *parts: str) -> str:
        return self.as_image(self.op("Concat", *parts, axis=1), sum(self.channels[part] for part in parts))

    def max_pool(self, x: str, pad: int = 0) -> str:
        """Add 3x3 max pooling with stride 2."""
        pooled = self.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[pad] * 4)
        return self.as_image(pooled, self.channels[x])

    def mean(self, x: str) -> str:
        """Add the mean of each channel; the result is [batch, channels]."""
        return self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)

    def classify(self, x: str, classes: int = 1000) -> None:
        channels = self.channels[x]
        weights = self.normal((classes, channels), 1 / math.sqrt(channels)), self.normal((classes,), 0.02)
        self.output("logits", self.op("Gemm", self.mean(x), *weights, transB=1), (1, classes))

    # --- vectors

    def linear(self, x: str, size: int, out: int, deviation: float | None = None) -> str:
        weights = self.normal((size, out), math.sqrt(2 / size) if deviation is None else deviation)
        return self.op("Add", self.op("MatMul", x, weights), self.normal((out,), 0.02))

    def layer_norm(self, x: str, size: int) -> str:
        """Add a layer normalisation as its elementary nodes."""
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Pow", centred, self.constant(2)), axes=[-1])
        deviation = self.op("Sqrt", self.op("Add", variance, self.constant(1e-12)))
        scaled = self.op("Mul", self.op("Div", centred, deviation), self.between(0.9, 1.1, (size,)))
        return self.op("Add", scaled, self.normal((size,), 0.02))

    def gelu(self, x: str) -> str:
        erf = self.op("Erf", self.op("Div", x, self.constant(math.sqrt(2))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.constant(1))), self.constant(0.5))

    def model(self) -> onnx.ModelProto:
        """Return the checked model, with all shapes inferred."""
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, self._constants)
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", OPSET)])
        onnx.checker.check_model(model)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)

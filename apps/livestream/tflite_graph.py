"""Graphs of the engine made of TFLite models.

TFLite's images end with the channels, the engine's begin with them: values of four axes are turned, those of other
ranks are as they were, and Reshape turns an image back first.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.livestream.tflite import TfliteError, TfliteModel, TfliteOperator
from walle.engine_ext.model import GraphBuilder, Value

_IMAGE_AXES = 4


class TfliteGraph:
    """The operators of a model, added to a graph; `values` has what each makes, by the number of its tensor."""

    def __init__(self, graph: GraphBuilder, model: TfliteModel, *, name: str = "image") -> None:
        """Add all operators, after an input `name`, float32 [1, channels, height, width].

        Raises:
            TfliteError: an operator has inputs or a form that is not supported.
        """
        if len(model.input_shape) != _IMAGE_AXES:
            raise TfliteError(f"its input has {len(model.input_shape)} axes, must be an image")
        _, height, width, channels = model.input_shape
        self.values: dict[int, Value] = {model.source: graph.input(name, (1, channels, height, width))}
        self._graph, self._model = graph, model
        self._shapes = {model.source: model.input_shape}
        self._names: dict[str, Value] = {}
        for operator in model.operators:
            made = self._kinds[operator.kind](self, operator)
            self.values[operator.result] = self._activated(made, operator.activation)
            self._shapes[operator.result] = operator.result_shape

    def _value(self, operator: TfliteOperator, place: int = 0) -> Value:
        """Return an input that is computed."""
        number = operator.inputs[place] if place < len(operator.inputs) else -1
        if number not in self.values:
            raise TfliteError(f"{operator.kind} {operator.result}: input {place} is absent or a constant")
        return self.values[number]

    def _array(self, operator: TfliteOperator, place: int) -> NDArray[Any]:
        number = operator.inputs[place] if place < len(operator.inputs) else -1
        if number not in self._model.constants:
            raise TfliteError(f"{operator.kind} {operator.result}: input {place} is absent or not a constant")
        return self._model.constants[number]

    def _constant(self, name: str, value: Any, dtype: str | None = None) -> Value:
        """Return a constant; one of the same name is made once."""
        if name not in self._names:
            self._names[name] = self._graph.constant(name, value, dtype)
        return self._names[name]

    def _image_shape(self, operator: TfliteOperator) -> tuple[int, ...]:
        shape = self._shape(operator)
        if len(shape) != _IMAGE_AXES or len(operator.result_shape) != _IMAGE_AXES:
            raise TfliteError(f"{operator.kind} {operator.result}: {list(shape)} is not an image")
        return shape

    def _shape(self, operator: TfliteOperator, place: int = 0) -> tuple[int, ...]:
        """Return the shape of an input that is computed."""
        self._value(operator, place)
        return self._shapes[operator.inputs[place]]

    def _activated(self, value: Value, activation: str) -> Value:
        if activation == "Relu6":
            bounds = [self._constant("low", np.float32(0)), self._constant("high", np.float32(6))]
            value = self._graph.op("Clip", [value, *bounds])
        elif activation:
            value = self._graph.op("Relu", [value])
        return value

    def _convolution(self, operator: TfliteOperator) -> Value:
        value, weights, bias = self._value(operator), self._array(operator, 1), self._array(operator, 2)
        if weights.ndim != _IMAGE_AXES:
            raise TfliteError(f"{operator.kind} {operator.result}: its weights have {weights.ndim} axes")
        if operator.kind == "DepthwiseConv":
            turned, group = weights.transpose(3, 0, 1, 2), weights.shape[3]  # [1, h, w, channels]
        else:
            turned, group = weights.transpose(0, 3, 1, 2), 1  # [results, h, w, channels]
        inputs = [
            value,
            self._graph.constant(f"w{operator.result}", np.ascontiguousarray(turned)),
            self._graph.constant(f"b{operator.result}", bias),
        ]
        made: Value = self._graph.op(
            "Conv", inputs, kernel_shape=list(weights.shape[1:3]), strides=list(operator.strides),
            pads=self._pads(operator, weights.shape[1:3]), group=group,
        )  # fmt: skip
        return made

    def _pads(self, operator: TfliteOperator, window: tuple[int, ...]) -> list[int]:
        """Return the padding above, left, below and right: with SAME an odd one goes to the end."""
        sides = self._image_shape(operator)[1:3]
        if operator.padding == "VALID":
            return [0, 0, 0, 0]
        totals = [
            max(0, (-(-side // stride) - 1) * stride + size - side)
            for side, size, stride in zip(sides, window, operator.strides, strict=True)
        ]
        return [*(total // 2 for total in totals), *(total - total // 2 for total in totals)]

    def _max_pool(self, operator: TfliteOperator) -> Value:
        made: Value = self._graph.op(
            "MaxPool", [self._value(operator)], kernel_shape=list(operator.window), strides=list(operator.strides),
            pads=self._pads(operator, operator.window),
        )  # fmt: skip
        return made

    def _mean(self, operator: TfliteOperator) -> Value:
        if self._image_shape(operator)[1:3] != operator.window or operator.result_shape[1:3] != (1, 1):
            raise TfliteError(f"AveragePool {operator.result} is not a pool over the whole image")
        made: Value = self._graph.op("GlobalAveragePool", [self._value(operator)])
        return made

    def _add(self, operator: TfliteOperator) -> Value:
        first, second = self._shape(operator), self._shape(operator, 1)
        if first != second:
            raise TfliteError(f"Add {operator.result}: shapes {first} and {second}; equal ones are supported")
        made: Value = self._graph.op("Add", [self._value(operator), self._value(operator, 1)])
        return made

    def _prelu(self, operator: TfliteOperator) -> Value:
        channels, slopes = self._image_shape(operator)[3], self._array(operator, 1)
        if slopes.shape != (1, 1, channels):
            raise TfliteError(f"PRelu {operator.result}: its slopes are not one for each channel")
        slope = self._graph.constant(f"s{operator.result}", slopes.reshape(channels, 1, 1))
        made: Value = self._graph.op("PRelu", [self._value(operator), slope])
        return made

    def _pad(self, operator: TfliteOperator) -> Value:
        self._image_shape(operator)
        ends = self._array(operator, 1)
        if ends.shape != (_IMAGE_AXES, 2):
            raise TfliteError(f"Pad {operator.result}: its padding is not two numbers for each axis")
        turned = ends[[0, 3, 1, 2]].T.reshape(-1).tolist()
        made: Value = self._graph.op(
            "Pad", [self._value(operator), self._graph.constant(f"p{operator.result}", turned, "int64")]
        )
        return made

    def _resize(self, operator: TfliteOperator) -> Value:
        channels = self._image_shape(operator)[3]
        sizes = [1, channels, *operator.result_shape[1:3]]
        inputs = [self._value(operator), None, None, self._graph.constant(f"z{operator.result}", sizes, "int64")]
        made: Value = self._graph.op("Resize", inputs, mode="linear", coordinate_transformation_mode="half_pixel")
        return made

    def _reshape(self, operator: TfliteOperator) -> Value:
        value = self._value(operator)
        if len(operator.result_shape) == _IMAGE_AXES:
            raise TfliteError(f"Reshape {operator.result} makes an image, which is not supported")
        if len(self._shape(operator)) == _IMAGE_AXES:
            value = self._graph.op("Transpose", [value], perm=[0, 2, 3, 1])
        shape = self._graph.constant(f"r{operator.result}", list(operator.result_shape), "int64")
        made: Value = self._graph.op("Reshape", [value, shape])
        return made

    def _concat(self, operator: TfliteOperator) -> Value:
        if len(operator.result_shape) == _IMAGE_AXES:
            raise TfliteError(f"Concat {operator.result} of images is not supported")
        values = [self._value(operator, place) for place in range(len(operator.inputs))]
        made: Value = self._graph.op("Concat", values, axis=operator.axis)
        return made

    def _softmax(self, operator: TfliteOperator) -> Value:
        if len(operator.result_shape) == _IMAGE_AXES:
            raise TfliteError(f"Softmax {operator.result} of an image is not supported")
        made: Value = self._graph.op("Softmax", [self._value(operator)], axis=-1)
        return made

    _kinds: Mapping[str, Callable[["TfliteGraph", TfliteOperator], Value]] = {
        "Add": _add,
        "AveragePool": _mean,
        "Concat": _concat,
        "Conv": _convolution,
        "DepthwiseConv": _convolution,
        "MaxPool": _max_pool,
        "PRelu": _prelu,
        "Pad": _pad,
        "Reshape": _reshape,
        "ResizeBilinear": _resize,
        "Softmax": _softmax,
    }

"""Graphs of the engine made of TFLite models.

TFLite's images end with the channels, the engine's begin with them: values of four axes are transposed, those of other
ranks are unchanged, and Reshape transposes an image back first. The shape that a file states for a result must be the
one that the operator makes: later operators are padded by it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.model import GraphBuilder, Value
from walle.engine_ext.tflite_import.read import TfliteModel, TfliteOperator

_IMAGE_AXES = 4


class TfliteGraph:
    """The operators of a model, added to a graph; `values` has what each makes, by the number of its tensor."""

    def __init__(self, graph: GraphBuilder, model: TfliteModel, *, name: str = "image") -> None:
        """Add all operators, after an input `name`, float32 [1, channels, height, width].

        Raises:
            ModelError: an operator's inputs and result do not fit together.
            UnsupportedError: an operator has inputs or a form that is not supported.
        """
        if len(model.input_shape) != _IMAGE_AXES:
            raise UnsupportedError(f"its input has {len(model.input_shape)} axes, must be an image")
        count, height, width, channels = model.input_shape
        if count != 1:
            what = f"its input {list(model.input_shape)} is a batch of {count} images, one is supported"
            raise UnsupportedError(f"{what}; export the model with a batch of 1")
        self.values: dict[int, Value] = {model.source: graph.input(name, (1, channels, height, width))}
        self._graph, self._model = graph, model
        self._shapes = {model.source: model.input_shape}
        self._constants: dict[str, Value] = {}
        for operator in model.operators:
            made, shape = self._kinds[operator.kind](self, operator)
            if shape != operator.result_shape:
                what = f"{operator.kind} {operator.result} makes {list(shape)}, not {list(operator.result_shape)}"
                raise ModelError(f"is damaged: {what}")
            self.values[operator.result] = self._activated(made, operator.activation)
            self._shapes[operator.result] = operator.result_shape

    def _value(self, operator: TfliteOperator, index: int = 0) -> Value:
        """Return an input that is computed."""
        number = operator.inputs[index] if index < len(operator.inputs) else -1
        if number not in self.values:
            raise UnsupportedError(f"{operator.kind} {operator.result}: input {index} is absent or a constant")
        return self.values[number]

    def _array(self, operator: TfliteOperator, index: int) -> NDArray[Any]:
        number = operator.inputs[index] if index < len(operator.inputs) else -1
        if number not in self._model.constants:
            raise UnsupportedError(f"{operator.kind} {operator.result}: input {index} is absent or not a constant")
        return self._model.constants[number]

    def _floats(self, operator: TfliteOperator, index: int) -> NDArray[Any]:
        found = self._array(operator, index)
        if found.dtype != np.float32:
            raise UnsupportedError(f"{operator.kind} {operator.result}: input {index} is {found.dtype}, not float32")
        return found

    def _constant(self, name: str, make: Callable[[], Any]) -> Value:
        """Return the constant of a name, with the value that `make` returns; one of the same name is made once."""
        if name not in self._constants:
            self._constants[name] = self._graph.constant(name, make())
        return self._constants[name]

    def _constant_input(self, operator: TfliteOperator, index: int, use: str, make: Callable[[], Any]) -> Value:
        """Return the constant made of an input; operators that share the tensor for the same `use` share it too."""
        return self._constant(f"{use}:{operator.inputs[index]}", make)

    def _image_shape(self, operator: TfliteOperator) -> tuple[int, ...]:
        shape = self._shape(operator)
        if len(shape) != _IMAGE_AXES or len(operator.result_shape) != _IMAGE_AXES:
            raise UnsupportedError(f"{operator.kind} {operator.result}: {list(shape)} is not an image")
        return shape

    def _shape(self, operator: TfliteOperator, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an input that is computed."""
        self._value(operator, index)
        return self._shapes[operator.inputs[index]]

    def _activated(self, value: Value, activation: str) -> Value:
        if activation == "Relu6":
            bounds = [self._constant("low:", lambda: np.float32(0)), self._constant("high:", lambda: np.float32(6))]
            value = self._graph.op("Clip", [value, *bounds])
        elif activation:
            value = self._graph.op("Relu", [value])
        return value

    def _convolution(self, operator: TfliteOperator) -> "_Made":
        value, channels = self._value(operator), self._image_shape(operator)[3]
        weights, bias = self._floats(operator, 1), self._floats(operator, 2)
        if weights.ndim != _IMAGE_AXES:
            raise ModelError(f"{operator.kind} {operator.result}: its weights have {weights.ndim} axes")
        if operator.kind == "DepthwiseConv":
            group, results, to_engine = channels, weights.shape[3], (3, 0, 1, 2)  # permutes [1, h, w, channels]
            if weights.shape[0] != 1 or results != channels:
                what = f"weights {list(weights.shape)} for {channels} channels; one filter for each is supported"
                raise UnsupportedError(f"{operator.kind} {operator.result}: {what}")
        else:
            group, results, to_engine = 1, weights.shape[0], (0, 3, 1, 2)  # permutes [results, h, w, channels]
            if weights.shape[3] != channels:
                what = f"weights {list(weights.shape)} for {channels} channels; groups are not supported"
                raise UnsupportedError(f"{operator.kind} {operator.result}: {what}")
        if bias.shape != (results,):
            raise ModelError(f"{operator.kind} {operator.result}: a bias {list(bias.shape)} for {results} channels")
        inputs = [
            value,
            self._constant_input(
                operator, 1, operator.kind, lambda: np.ascontiguousarray(weights.transpose(to_engine))
            ),
            self._constant_input(operator, 2, "bias", lambda: bias),
        ]
        window = (int(weights.shape[1]), int(weights.shape[2]))
        made: Value = self._graph.op(
            "Conv", inputs, kernel_shape=list(window), strides=list(operator.strides),
            pads=self._pads(operator, window), group=group,
        )  # fmt: skip
        return made, self._windowed(operator, window, results)

    def _pads(self, operator: TfliteOperator, window: tuple[int, int]) -> list[int]:
        """Return the padding above, left, below and right: with SAME an odd one goes to the end."""
        sides = self._image_shape(operator)[1:3]
        if operator.padding == "VALID":
            return [0, 0, 0, 0]
        totals = [
            max(0, (-(-side // stride) - 1) * stride + size - side)
            for side, size, stride in zip(sides, window, operator.strides, strict=True)
        ]
        return [*(total // 2 for total in totals), *(total - total // 2 for total in totals)]

    def _windowed(self, operator: TfliteOperator, window: tuple[int, int], channels: int) -> tuple[int, ...]:
        """Return the shape of what a window that moves over the image makes."""
        count, *sides, _ = self._image_shape(operator)
        reach = (1, 1) if operator.padding == "SAME" else window
        made = (
            max(0, -(-(side - size + 1) // stride))
            for side, size, stride in zip(sides, reach, operator.strides, strict=True)
        )
        return (count, *made, channels)

    def _max_pool(self, operator: TfliteOperator) -> "_Made":
        made: Value = self._graph.op(
            "MaxPool", [self._value(operator)], kernel_shape=list(operator.window), strides=list(operator.strides),
            pads=self._pads(operator, operator.window),
        )  # fmt: skip
        return made, self._windowed(operator, operator.window, self._image_shape(operator)[3])

    def _mean(self, operator: TfliteOperator) -> "_Made":
        count, height, width, channels = self._image_shape(operator)
        if (height, width) != operator.window or operator.result_shape[1:3] != (1, 1):
            raise UnsupportedError(f"AveragePool {operator.result} is not a pool over the whole image")
        made: Value = self._graph.op("GlobalAveragePool", [self._value(operator)])
        return made, (count, 1, 1, channels)

    def _add(self, operator: TfliteOperator) -> "_Made":
        first, second = self._shape(operator), self._shape(operator, 1)
        if first != second:
            raise UnsupportedError(f"Add {operator.result}: shapes {first} and {second}; equal ones are supported")
        made: Value = self._graph.op("Add", [self._value(operator), self._value(operator, 1)])
        return made, first

    def _prelu(self, operator: TfliteOperator) -> "_Made":
        shape, slopes = self._image_shape(operator), self._floats(operator, 1)
        if slopes.shape != (1, 1, shape[3]):
            raise UnsupportedError(f"PRelu {operator.result}: its slopes are not one for each channel")
        slope = self._constant_input(operator, 1, "slopes", lambda: slopes.reshape(shape[3], 1, 1))
        made: Value = self._graph.op("PRelu", [self._value(operator), slope])
        return made, shape

    def _pad(self, operator: TfliteOperator) -> "_Made":
        shape, paddings = self._image_shape(operator), self._array(operator, 1)
        if paddings.shape != (_IMAGE_AXES, 2) or paddings.dtype != np.int32 or paddings.min() < 0:
            raise UnsupportedError(f"Pad {operator.result}: its padding is not two numbers for each axis")
        pads = self._constant_input(
            operator, 1, "paddings", lambda: paddings[[0, 3, 1, 2]].T.reshape(-1).astype(np.int64)
        )
        made: Value = self._graph.op("Pad", [self._value(operator), pads])
        added = paddings.sum(axis=1, dtype=np.int64).tolist()
        return made, tuple(size + more for size, more in zip(shape, added, strict=True))

    def _resize(self, operator: TfliteOperator) -> "_Made":
        count, _, _, channels = self._image_shape(operator)
        size_hw = self._array(operator, 1)
        if size_hw.shape != (2,) or size_hw.dtype != np.int32:
            raise UnsupportedError(f"ResizeBilinear {operator.result}: its size is not a height and a width")
        height, width = size_hw.tolist()
        sizes = self._graph.constant(f"z:{operator.result}", [count, channels, height, width], "int64")
        inputs = [self._value(operator), None, None, sizes]
        made: Value = self._graph.op("Resize", inputs, mode="linear", coordinate_transformation_mode="half_pixel")
        return made, (count, height, width, channels)

    def _reshape(self, operator: TfliteOperator) -> "_Made":
        value, shape = self._value(operator), self._shape(operator)
        if len(operator.result_shape) == _IMAGE_AXES:
            raise UnsupportedError(f"Reshape {operator.result} makes an image, which is not supported")
        if math.prod(shape) != math.prod(operator.result_shape):
            raise ModelError(f"Reshape {operator.result} of {list(shape)} to {list(operator.result_shape)}")
        if len(shape) == _IMAGE_AXES:
            value = self._graph.op("Transpose", [value], perm=[0, 2, 3, 1])
        made: Value = self._graph.op(
            "Reshape", [value, self._graph.constant(f"r:{operator.result}", list(operator.result_shape), "int64")]
        )
        return made, operator.result_shape

    def _concat(self, operator: TfliteOperator) -> "_Made":
        if len(operator.result_shape) == _IMAGE_AXES:
            raise UnsupportedError(f"Concat {operator.result} of images is not supported")
        values = [self._value(operator, index) for index in range(len(operator.inputs))]
        shapes = [self._shape(operator, index) for index in range(len(operator.inputs))]
        rank = len(operator.result_shape)
        axis = operator.axis + rank if operator.axis < 0 else operator.axis
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes if len(shape) == rank}
        if not 0 <= axis < rank or len(others) != 1 or any(len(shape) != rank for shape in shapes):
            raise ModelError(f"Concat {operator.result} of {[list(shape) for shape in shapes[:10]]} by axis {axis}")
        made: Value = self._graph.op("Concat", values, axis=axis)
        total = sum(shape[axis] for shape in shapes)
        return made, (*shapes[0][:axis], total, *shapes[0][axis + 1 :])

    def _softmax(self, operator: TfliteOperator) -> "_Made":
        shape = self._shape(operator)
        if len(shape) == _IMAGE_AXES or not shape:
            raise UnsupportedError(f"Softmax {operator.result} of an image is not supported")
        made: Value = self._graph.op("Softmax", [self._value(operator)], axis=-1)
        return made, shape

    _kinds: Mapping[str, Callable[["TfliteGraph", TfliteOperator], "_Made"]] = {
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


type _Made = tuple[Value, tuple[int, ...]]  # what an operator makes, and its shape in TFLite's layout

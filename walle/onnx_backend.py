"""The engine as a backend of the `onnx` package, so that the ecosystem's own conformance suite runs on it.

python -m pytest --pyargs onnx.backend.test ...          # with backend_test(Backend)
rep = walle.onnx_backend.prepare(model); rep.run([array, ...])
"""

from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep

from walle.engine_ext.conversion import convert_bytes
from walle.engine_ext.session import load


class Prepared(BackendRep):
    """A converted model, ready to run."""

    def __init__(self, model: onnx.ModelProto) -> None:
        given = {one.name for one in model.graph.initializer}
        self._inputs = [one.name for one in model.graph.input if one.name not in given]
        self._outputs = [one.name for one in model.graph.output]
        self._runner = load(convert_bytes(model))

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs in the model's order; `inputs` are arrays in its order, or by name."""
        del kwargs
        feeds = inputs if isinstance(inputs, dict) else dict(zip(self._inputs, inputs, strict=True))
        found = self._runner.run({name: to_engine(value) for name, value in feeds.items()})
        return tuple(from_engine(found[name]) for name in self._outputs)


def to_engine(value: Any) -> Any:
    """Return a NumPy value in the form that the engine accepts; lists are sequences, None is an empty optional."""
    if isinstance(value, list):
        return [to_engine(item) for item in value]
    if value is None:
        return None
    return np.asarray(value, order="C")


def from_engine(value: Any) -> Any:
    """Return a value of the engine as NumPy's."""
    if isinstance(value, list):
        return [from_engine(item) for item in value]
    if value is None:
        return None
    return np.asarray(value)


class Backend(OnnxBackend):
    """The engine on the CPU. `prepare` refuses unsupported models, with the node's name."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Return the prepared model; raises UnsupportedError or ModelError."""
        if not cls.supports_device(device):
            raise ValueError(f"device {device!r} is unknown; known is CPU")
        del kwargs
        return Prepared(model)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":", maxsplit=1)[0] == "CPU"


prepare = Backend.prepare
run_model = Backend.run_model
supports_device = Backend.supports_device

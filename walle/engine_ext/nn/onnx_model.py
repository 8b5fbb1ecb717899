"""Models of a file as modules: fine-tuning of an ONNX or `.walle` model."""

from __future__ import annotations

from walle.engine_ext import _core, lazy
from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.nn.module import Module
from walle.engine_ext.nn.tracing import Parameter, scope

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Any

__all__ = ["FileModel", "from_onnx"]

_FLOATS = ("float32", "float64")


class FileModel(Module):
    """A model of a file, whose weights are parameters under the file's names.

    `forward` takes the model's inputs in the file's order, and returns its output, or a tuple of them; `input_names`,
    `output_names` and `input_types` (shape and dtype, None where free) are the file's. Normalisations keep their
    running statistics, and dropout passes everything, as in the file.
    """

    def __init__(self, graph: _core.Graph) -> None:
        super().__init__()
        values = graph.values()
        self.__dict__["_values"] = values
        self.__dict__["_nodes"] = graph.nodes()
        self.__dict__["_inputs"] = list(graph.inputs())
        self.__dict__["_outputs"] = [value for _, value in graph.outputs()]
        self.__dict__["output_names"] = [name for name, _ in graph.outputs()]
        self.__dict__["input_names"] = [values[number][0] for number in self._inputs]
        self.__dict__["input_types"] = [(values[number][3], values[number][2]) for number in self._inputs]
        self.__dict__["_held"] = held = {}
        for number, (name, kind, dtype, _, array) in enumerate(values):
            if kind == "constant":
                held[number] = self._hold(name, array) if dtype in _FLOATS else array
        for op, name, _, _, _, has_graphs in self._nodes:
            if has_graphs:
                raise UnsupportedError(f"node {name!r} ({op}) has subgraphs; a model with control flow is not trained")

    def _hold(self, name: str, array: Any) -> Parameter:
        """Make a weight a parameter at the path of its name, frozen at first."""
        *owners, last = [part or "_" for part in name.split(".")]
        module: Module = self
        for part in owners:
            if part not in module._modules:
                module._modules[part] = Module()
            module = module._modules[part]  # type: ignore[assignment]
        parameter = module._parameters[last] = Parameter(array, requires_grad=False)
        return parameter

    def running_statistics(self) -> list[Parameter]:
        """Return the means and variances that normalisations use; several may share one."""
        operands = [number for op, _, given, *_ in self._nodes if op == "BatchNormalization" for number in given[3:5]]
        return [self._held[number] for number in operands if isinstance(self._held.get(number), Parameter)]

    def set_groups(self) -> None:
        """Make each convolution of single channels one of as many groups as its weights have channels now."""
        for place, (op, name, operands, attributes, results, graphs) in enumerate(self._nodes):
            if op == "Conv" and attributes.get("group", 1) > 1:
                weight = self._held.get(operands[1])
                if weight is not None and weight.shape[1] == 1:
                    changed = {**attributes, "group": weight.shape[0]}
                    self._nodes[place] = (op, name, operands, changed, results, graphs)

    def set_shape(self, name: str, lengths: Sequence[int | None]) -> None:
        """Make the reshape of that name give these lengths; None keeps what it says of an axis.

        Raises:
            ModelError: the node does not exist, or its shape is not written in the file.
        """
        for place, (op, own, operands, attributes, results, graphs) in enumerate(self._nodes):
            if op == "Reshape" and own == name:
                given = attributes.get("shape")
                if len(operands) > 1 and operands[1] in self._held:
                    given = self._held[operands[1]].tolist()
                if given is None or len(given) != len(lengths):
                    raise ModelError(f"node {name!r} (Reshape) has no shape of {len(lengths)} axes in the file")
                # 0 and -1 stay: they are the input's length, and what is left.
                shape = [old if new is None or old < 1 else new for old, new in zip(given, lengths, strict=True)]
                self._nodes[place] = (op, own, operands[:1], {**attributes, "shape": shape}, results, graphs)
                return
        raise ModelError(f"there is no reshape {name!r}")

    def forward(self, *inputs: Any) -> Any:
        if len(inputs) != len(self._inputs):
            names = ", ".join(self.input_names)
            raise ModelError(f"{len(inputs)} inputs are given; the model takes {len(self._inputs)}: {names}")
        known: dict[int, Any] = {-1: None, **self._held, **dict(zip(self._inputs, inputs, strict=True))}
        for op, name, operands, attributes, results, _ in self._nodes:
            with scope(name):
                given = [known[number] for number in operands]
                known.update(zip(results, _core.evaluate(op, given, attributes, len(results)), strict=True))
        outputs = tuple(known[number] for number in self._outputs)
        return outputs[0] if len(outputs) == 1 else outputs


def from_onnx(model: str | os.PathLike[str] | bytes, trainable: Sequence[str] = ()) -> FileModel:
    """Return the model of an `.onnx` or `.walle` file as a module, all of it frozen but what `trainable` names.

    `trainable` has names of weights ("fc.weight"), the beginnings of them ("fc"), or patterns ("layer4.*.weight").
    Running statistics of normalisations stay frozen: gradients could make a variance negative.

    Raises:
        ModelError: the file is broken, or a name fits no weight; the message lists the weights.
        UnsupportedError: an operator is not supported, or the model has control flow.
    """
    made = FileModel(_graph_of(model))
    statistics = {id(one) for one in made.running_statistics()}
    names = {name: one for name, one in made.named_parameters() if id(one) not in statistics}
    for pattern in trainable:
        found = [name for name in names if _fits(name, pattern)]
        if not found:
            shown = ", ".join(list(names)[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
            raise ModelError(f"no weight fits {pattern!r}; the model has {shown}")
        for name in found:
            names[name].requires_grad = True
    return made


def _fits(name: str, pattern: str) -> bool:
    if name == pattern or name.startswith((f"{pattern}.", f"{pattern}/")):
        return True
    if "*" not in pattern and "?" not in pattern:
        return False
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern)


def _graph_of(model: Any) -> _core.Graph:
    path = model.__fspath__() if hasattr(model, "__fspath__") else model
    if isinstance(path, str) and lazy.in_vm():
        raise ModelError(
            f"a task has no file {path!r}: give nn.from_onnx the bytes of a .walle file, ctx.resource(name); "
            "walle model convert makes one of ONNX"
        )
    if not isinstance(path, str) or not path.endswith(".onnx"):
        return _core.Graph.open(model)
    from walle.engine_ext.conversion.convert import converted

    with converted(path) as readable:
        return _core.Graph.open(readable)

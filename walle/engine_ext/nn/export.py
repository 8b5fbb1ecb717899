"""Files of trained models: for inference (`.walle`, ONNX), and of the state of a training that goes on later."""

from __future__ import annotations

from walle.engine_ext import _core, lazy, np
from walle.engine_ext.errors import ModelError
from walle.engine_ext.nn.onnx_model import FileModel
from walle.engine_ext.nn.operand import Operand
from walle.engine_ext.nn.traced_buffers import TracedBuffers
from walle.engine_ext.nn.tracing import Trace, Traced

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Any

    from walle.engine_ext.model import GraphBuilder
    from walle.engine_ext.nn.module import Module
    from walle.engine_ext.nn.train_step import TrainStep

__all__ = ["checkpoint", "load", "resume", "save", "to_walle"]

_POSITION = "position"


def inference_trace(model: Module, inputs: Sequence[Any], *, free_batch: bool = True) -> Trace:
    """Return the graph of the model's inference on these inputs; its parameters and buffers are constants.

    The first dimension of the inputs is free where they share it and nothing in the graph depends on it, unless
    `free_batch` is False.
    """
    arrays = [np.asarray(one.array() if isinstance(one, Operand) else one) for one in inputs]
    batches = {one.shape[0] if one.ndim else 0 for one in arrays}
    traced = _traced(model, arrays)
    if free_batch and len(batches) == 1 and 0 not in batches:
        more = [np.concatenate([one, one[:1]]) for one in arrays]
        try:
            other = _traced(model, more)
        except Exception:  # noqa: BLE001 -- code of the model that takes this batch only
            return traced
        if _free_batch(traced, other):
            traced.inputs = [(name, dtype, (None, *shape[1:])) for name, dtype, shape in traced.inputs]
    return traced


def _traced(model: Module, arrays: list[Any]) -> Trace:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with Trace(type(model).__name__) as trace:
            names = _argument_names(model, len(arrays))
            inputs = [trace.input(name, one) for name, one in zip(names, arrays, strict=True)]
            for path, parameter in model.named_parameters():
                trace.bind(parameter, trace.fixed(_other_name(path, names), parameter.data))
            with TracedBuffers(model, lambda path, array: trace.fixed(_other_name(path, names), array)):
                results = model(*inputs)
            listed = list(results) if isinstance(results, tuple | list) else [results]
            for place, (name, one) in enumerate(zip(_result_names(model, len(listed)), listed, strict=True)):
                if not isinstance(one, Traced):
                    raise ModelError(f"output {place} of {type(model).__name__} does not depend on its inputs")
                trace.output(name, one)
    finally:
        for module, mode in modes:
            module.training = mode
    return trace


def _argument_names(model: Module, count: int) -> list[str]:
    if isinstance(model, FileModel) and len(model.input_names) == count:
        return list(model.input_names)
    code = model.forward.__func__.__code__  # type: ignore[attr-defined]  # a bound method
    names = list(code.co_varnames[1 : code.co_argcount])
    return names[:count] if len(names) >= count else [f"input {place}" for place in range(count)]


def _result_names(model: Module, count: int) -> list[str]:
    if isinstance(model, FileModel):
        return list(model.output_names)
    return ["output"] if count == 1 else [f"output {place}" for place in range(count)]


def _other_name(path: str, names: list[str]) -> str:
    """Return the path of a parameter, another one where an input has it."""
    return f"{path} (constant)" if path in names else path


def _free_batch(trace: Trace, other: Trace) -> bool:
    """Make the shapes of reshapes free in their first dimension; return whether nothing else tells the traces apart."""
    if len(trace.nodes) != len(other.nodes) or len(trace.constants) != len(other.constants):
        return False
    for (_, one), (_, two) in zip(trace.constants, other.constants, strict=True):
        if one.shape != two.shape or one.dtype != two.dtype or one.tobytes() != two.tobytes():
            return False
    changed = []
    for place, (node, twin) in enumerate(zip(trace.nodes, other.nodes, strict=True)):
        if node[0] != twin[0] or node[2] != twin[2]:
            return False
        if node[3] == twin[3]:
            continue
        shape, wanted = node[3].get("shape"), twin[3].get("shape")
        if node[0] != "Reshape" or shape is None or wanted is None or len(shape) != len(wanted) or 0 in shape:
            return False
        free = [at for at in range(len(shape)) if shape[at] != wanted[at]]
        if len(free) != 1 or -1 in shape:
            return False
        changed.append((place, [-1 if at == free[0] else size for at, size in enumerate(shape)]))
    for place, sizes in changed:
        op, name, inputs, attributes, outputs = trace.nodes[place]
        trace.nodes[place] = (op, name, inputs, {**attributes, "shape": sizes, "allowzero": 0}, outputs)
    return True


def refuse_in_vm(name: str) -> None:
    """Raise ModelError in a task's VM, which has no files."""
    if lazy.in_vm():
        raise ModelError(
            f"walle.nn.{name} needs a file, and a task has none: keep step.state_dict() in ctx.checkpoint, and give "
            "nn.from_onnx the bytes of ctx.resource"
        )


def _new_graph(name: str) -> GraphBuilder:
    from walle.engine_ext.model import GraphBuilder  # imported here: a task's VM lacks the module

    return GraphBuilder(name)


def builder_of(trace: Trace) -> GraphBuilder:
    """Return what a trace recorded as a graph that can be written."""
    graph = _new_graph(trace.name)
    inputs = [graph.input(name, shape, dtype) for name, dtype, shape in trace.inputs]
    for (name, _), value in zip(trace.outputs, add_nodes(graph, trace, inputs), strict=True):
        graph.output(name, value)
    return graph


def add_nodes(graph: GraphBuilder, trace: Trace, inputs: Sequence[Any]) -> list[Any]:
    """Add what a trace recorded to a graph, its inputs the values given; return the values of its outputs."""
    constants = [
        graph.raw(name, str(array.dtype), array.shape, _core.contiguous(array).tobytes())
        for name, array in trace.constants
    ]
    results: list[Any] = []
    kinds = {"input": inputs, "constant": constants, "result": results}

    def value(number: int) -> Any:
        kind, place = trace.values[number]
        return kinds[kind][place]

    for op, name, numbers, attributes, outputs in trace.nodes:
        given = [None if number < 0 else value(number) for number in numbers]
        results += graph.node(op, given, outputs, name, attributes)
    return [value(number) for _, number in trace.outputs]


def to_walle(model: Module, path: str | os.PathLike[str], *inputs: Any) -> None:
    """Write the model as a `.walle` file for inference (`walle.Session`), traced on these example inputs.

    The first dimension is free where the model allows it; other sizes are those of the examples. Constants have the
    names of the parameters, so that `load` reads them again. Inputs and outputs of a model of `from_onnx` keep their
    names.

    Raises:
        ModelError: an output does not depend on the inputs.
        UnsupportedError: the model looks at values.
    """
    refuse_in_vm("to_walle")
    builder_of(inference_trace(model, inputs)).save(str(path))


def save(model: Module, path: str | os.PathLike[str], *inputs: Any) -> None:
    """Write the model as a `.walle` file for inference, on example inputs or those that it was trained on last.

    Raises: as `to_walle`; ModelError where the model has not been trained and no inputs are given.
    """
    refuse_in_vm("save")
    known = inputs or model.__dict__.get("_trained_on")
    if not known:
        raise ModelError(f"{type(model).__name__} has not been trained yet: give example inputs, save(model, path, x)")
    to_walle(model, path, *known)


def load(model: Module, path: str | os.PathLike[str]) -> None:
    """Read the parameters and buffers of a file that `save` or `to_walle` wrote from a model of this kind.

    Raises:
        ModelError: the file is broken, or its names or shapes are others; the message names each.
    """
    refuse_in_vm("load")
    values: dict[str, Any] = {
        name: array for name, kind, _, _, array in _core.Graph.open(str(path)).values() if kind == "constant"
    }
    state = {}
    first: dict[int, str] = {}  # by parameter: its first path, under which the file has it
    for name, parameter in model.named_parameters(remove_duplicate=False):
        state[name] = _of_file(values, first.setdefault(id(parameter), name))
    for name in model.state_dict():
        state.setdefault(name, _of_file(values, name))
    model.load_state_dict({name: array for name, array in state.items() if array is not None})


def _of_file(values: dict[str, Any], path: str) -> Any:
    return values.get(path, values.get(_other_name(path, [path])))


def checkpoint(step: TrainStep, path: str | os.PathLike[str], position: int = 0) -> None:
    """Write everything that the training needs to go on, and a position in its data; the file is replaced as a whole.

    Raises:
        OSError: the file cannot be written.
    """
    refuse_in_vm("checkpoint")
    graph = _new_graph("checkpoint")
    state = step.state_dict() | {_POSITION: np.asarray(position, "int64")}
    for name, array in state.items():
        graph.output(name, graph.raw(name, str(array.dtype), array.shape, _core.contiguous(array).tobytes()))
    graph.save(str(path))


def resume(step: TrainStep, path: str | os.PathLike[str]) -> int:
    """Read a file of `checkpoint` into the step, its model and its optimizer; return the position.

    Raises:
        ModelError: the file is broken, or of another model.
    """
    refuse_in_vm("resume")
    values = _core.Graph.open(str(path)).values()
    state: dict[str, Any] = {name: array for name, kind, _, _, array in values if kind == "constant"}
    if _POSITION not in state:
        raise ModelError(f"{path} is not a checkpoint: it has no position")
    step.load_state_dict(state)
    return int(state[_POSITION])

"""Outputs of a network in the mode of inference, by one plan for all weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from walle import nn, np
from walle.engine_ext import _core
from walle.engine_ext.nn.traced_buffers import TracedBuffers
from walle.engine_ext.nn.tracing import Trace

_BATCH = 256
_OUTPUT = "output "
_STATISTICS = ("running_mean", "running_var")


class Evaluation:
    """Outputs of a model for one shape of inputs, an array or a tuple; weights and buffers are read at each call.

    `of_batch` normalizes by the statistics of the batch instead of the running ones, which are of other widths. `part`
    takes the outputs from what the model returns.
    """

    def __init__(self, model: nn.Module, *, of_batch: bool = False, part: Callable[[Any], Any] | None = None) -> None:
        self._model, self._of_batch, self._part = model, of_batch, part
        self._sessions: dict[Any, Any] = {}

    def __call__(self, *inputs: Any) -> Any:
        results = self._run(inputs)
        count = sum(name.startswith(_OUTPUT) for name in results)
        found = tuple(results[f"{_OUTPUT}{at}"] for at in range(count))
        return found if len(found) > 1 else found[0]

    def of_all(self, inputs: Sequence[Any]) -> Any:
        """Return the outputs for many samples, a few hundred at a time, so that memory does not grow with them."""
        count = len(inputs[0])
        size = min(_BATCH, count)
        starts = [*range(0, count - size, size), count - size]
        parts = [self(*(one[start : start + size] for one in inputs)) for start in starts]
        repeated = size * len(starts) - count  # samples of the part before that the last part begins with
        if isinstance(parts[0], tuple):
            return tuple(np.concatenate([*some[:-1], some[-1][repeated:]]) for some in zip(*parts, strict=True))
        return np.concatenate([*parts[:-1], parts[-1][repeated:]])

    def settle(self, *inputs: Any) -> None:
        """Set the running statistics to those of a batch, for an evaluation `of_batch`."""
        results = self._run(inputs)
        for path, module in self._model.named_modules():
            for name in _STATISTICS if _normalizes(module) else ():
                found = results.get(f"buffer {path}.{name}")
                if found is not None:
                    setattr(module, name, found)

    def _run(self, inputs: tuple[Any, ...]) -> dict[str, Any]:
        given = [np.asarray(one) for one in inputs]
        key = tuple((one.shape, str(one.dtype)) for one in given)
        if key not in self._sessions:
            self._sessions[key] = self._planned(given)
        values = {f"input {at}": one for at, one in enumerate(given)}
        values |= {f"parameter {name}": one.data for name, one in self._model.named_parameters()}
        values |= {f"buffer {name}": one for name, one in self._model.named_buffers(remove_duplicate=False)}
        session, names = self._sessions[key]
        found: dict[str, Any] = session.run({name: values[name] for name in names})
        return found

    def _planned(self, given: list[Any]) -> tuple[Any, list[str]]:
        modes = [(module, module.training) for module in self._model.modules()]
        self._model.eval()
        norms = [(one, one.momentum) for one in self._model.modules() if self._of_batch and _normalizes(one)]
        for norm, _ in norms:
            norm.training, norm.momentum = True, 1.0  # the running statistics become the batch's
        try:
            with Trace(type(self._model).__name__) as trace:
                inputs = [trace.input(f"input {at}", one) for at, one in enumerate(given)]
                for name, parameter in self._model.named_parameters():
                    trace.bind(parameter, trace.input(f"parameter {name}", parameter.data))
                with TracedBuffers(self._model, lambda path, array: trace.input(f"buffer {path}", array)) as buffers:
                    results = self._model(*inputs)
                    assigned = buffers.assigned()
                results = self._part(results) if self._part else results
                for at, one in enumerate(results if isinstance(results, tuple | list) else (results,)):
                    trace.output(f"{_OUTPUT}{at}", one)
                for path, value in assigned.items():
                    trace.output(f"buffer {path}", value)
        finally:
            for module, mode in modes:
                module.training = mode
            for norm, momentum in norms:
                norm.momentum = momentum
        return _core.Session(trace.graph(), "auto"), [name for name, _, _ in trace.inputs]


def outputs_of(model: nn.Module, inputs: Sequence[Any]) -> Any:
    """Return the outputs of a model for many samples, a few hundred at a time."""
    return Evaluation(model).of_all(inputs)


def _normalizes(module: Any) -> bool:
    return getattr(module, "running_mean", None) is not None and hasattr(module, "momentum")


def accuracy(logits: Any, labels: Any) -> float:
    """Return the share of rows whose largest number is at the label."""
    return float(np.mean((np.argmax(logits, axis=1) == labels).astype("float32")))

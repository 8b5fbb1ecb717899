"""Model execution: `Session(model).run({name: array}) -> {name: array}`, or `Module` for control flow (§4.2).

`load(model)` returns whichever of the two the model needs.
"""

from __future__ import annotations

from walle.engine_ext import _core, lazy
from walle.engine_ext.errors import ModelError
from walle.errors import EngineError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time; session_info, which needs it, is loaded on use
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from walle.engine_ext._core import ndarray
    from walle.engine_ext.np.likes import ArrayLike
    from walle.engine_ext.session_info import BackendInfo, Plan, TensorInfo


def _use_saved_rates() -> None:
    if not hasattr(_core, "set_rates"):  # a VM has no set_rates: the program that made it has set the process's rates
        return
    from walle.engine_ext import rates

    rates.use_saved()


def _load(model: str | os.PathLike[str] | bytes, make: Callable[[Any], Any]) -> Any:
    """Return what `make` makes of a model that the native reader accepts: an ONNX file is converted first."""
    path = model.__fspath__() if hasattr(model, "__fspath__") else model  # os.fspath, without os
    if not isinstance(path, str) or not path.endswith(".onnx"):
        return make(model)
    if not hasattr(_core, "set_rates"):  # a VM has no set_rates, and starts no processes
        raise ModelError(f"{path} is not converted in a task's VM; convert it before: walle model convert")
    from walle.engine_ext.conversion.convert import converted

    with converted(path) as readable:
        try:
            return make(readable)
        except EngineError as error:
            raise type(error)(str(error).replace(readable, path)) from error


def _info() -> Any:
    return lazy.load("walle.engine_ext.session_info")


class _Model:
    """Base of Session and Module: their inputs and outputs, and the end of their runs."""

    _native: _core.Session | _core.Module

    @property
    def inputs(self) -> list[TensorInfo]:
        """Inputs of the model; shape and dtype are None for a sequence or an optional."""
        return [_info().TensorInfo(*info) for info in self._native.inputs()]

    @property
    def outputs(self) -> list[TensorInfo]:
        """Outputs of the model: a session's have the shapes of its last plan; a module's depend on what runs."""
        return [_info().TensorInfo(*info) for info in self._native.outputs()]

    def cancel(self) -> None:
        """Stop the runs that are in progress on other threads: each raises RunCancelled within 0.1 s of CPU time.

        Only freeing what a run has allocated may take longer. Later runs are not affected, nor is this session or
        module.
        """
        self._native.cancel()


class Session(_Model):
    """A loaded `.walle` model without control flow, ready to run.

    An `.onnx` file is accepted too if the package `onnx` is installed; it is converted in a process apart, as
    `walle.convert` does it.

    Thread-safe: several threads can run one session at once; runs release the GIL while they compute. Each run in
    progress has an arena (`plan().arena_bytes`) and, with `threads` above 1, its own threads; up to four idle ones
    are kept for later runs. Sessions on the same file share its memory-mapped weights. The plans of the last eight sets
    of input shapes are cached.

    A run, and the opening of a model, ends at its deadline, at `cancel()`, and at a signal whose handler raises an
    exception (Ctrl-C), within 0.1 s of CPU time (docs/adr/0015). The session stays usable.

    Raises:
        ModelError: the model is broken, or cannot be opened.
        UnsupportedError: it has an operator that is not supported, or that only a Module runs: control flow, sequences,
            shapes that depend on data.
        BackendError: the backend is not available on this machine, or its name is unknown.
    """

    _native: _core.Session

    def __init__(self, model: str | os.PathLike[str] | bytes, *, backend: str = "auto", threads: int = 1) -> None:
        _use_saved_rates()
        self._native = _load(model, lambda one: _core.Session(one, backend, threads))

    def run(self, inputs: Mapping[str, ArrayLike], *, deadline: float | None = None) -> dict[str, ndarray]:
        """Return the outputs by name; the caller owns them, and no later run writes to them.

        Contiguous arrays are read without a copy; nested lists and numbers are converted to the model's dtype.
        `deadline` is in seconds from the beginning of the run, whose planning it includes.

        Raises:
            ModelError: an input is missing, or is not an input of the model.
            ShapeError: a shape does not fit the model.
            DTypeError: an array has another dtype than the model's input.
            RunDeadlineExceeded: the run took longer than `deadline`.
            RunCancelled: another thread called `cancel()`.
            ValueError: `deadline` is nan.
        """
        return self._native.run(inputs if isinstance(inputs, dict) else dict(inputs), deadline)

    def profile(self, inputs: Mapping[str, ArrayLike], *, deadline: float | None = None) -> list[float]:
        """Run once and return the microseconds of each step of the plan, in order; raises as `run`."""
        return self._native.profile(inputs if isinstance(inputs, dict) else dict(inputs), deadline)

    def plan(self) -> Plan | None:
        """Return the plan of the last run, or that made on loading if all input shapes are fixed; else None."""
        native = self._native.plan()
        return None if native is None else _info().plan_of(native)


class Module(_Model):
    """A loaded `.walle` model that may have control flow, sequences or shapes that depend on data (§4.2).

    The graph is split at such nodes. Each piece between them, in loop bodies and branches too, is planned like a
    session for the input shapes of each run, and caches the plans of the last eight sets of them. A Module also runs
    every model that a Session runs.

    Values are arrays, lists of arrays (sequences), or None (an empty optional).

    Thread-safe: several threads can run one module at once, and runs are stopped, as a Session's. Modules and sessions
    on the same file share its memory-mapped weights.

    Raises: as Session.
    """

    _native: _core.Module

    def __init__(self, model: str | os.PathLike[str] | bytes, *, backend: str = "auto", threads: int = 1) -> None:
        _use_saved_rates()
        self._native = _load(model, lambda one: _core.Module(one, backend, threads))

    def run(
        self, inputs: Mapping[str, ArrayLike | Sequence[ArrayLike] | None], *, deadline: float | None = None
    ) -> dict[str, Any]:
        """Return the outputs by name: arrays, lists of arrays, or None; no later run writes to them.

        `deadline` is in seconds from the beginning of the run, whose planning it includes.

        Raises:
            ModelError: an input is missing, is not an input of the model, or is not a tensor where one is needed.
            ShapeError: shapes do not fit the model or each other.
            DTypeError: an array has another dtype than the model's input.
            UnsupportedError: a node does not support the values of its run-time operands.
            RunDeadlineExceeded: the run took longer than `deadline`.
            RunCancelled: another thread called `cancel()`.
            ValueError: `deadline` is nan.
        """
        return self._native.run(inputs if isinstance(inputs, dict) else dict(inputs), deadline)

    def plan(self) -> Plan:
        """Return the last plans of all pieces as one plan, with the nodes between them."""
        plan: Plan = _info().plan_of(self._native.plan())
        return plan


def load(
    model: str | os.PathLike[str] | bytes, *, backend: str = "auto", threads: int = 1, deadline: float | None = None
) -> Session | Module:
    """Return a Session of a model, or a Module if the model needs one.

    `deadline` is in seconds from now; it does not end the conversion of an ONNX file, which has a limit of its own.

    Raises: as Session, except for operators that a Module runs; RunDeadlineExceeded: opening took longer than
        `deadline`.
    """
    _use_saved_rates()
    native = _load(model, lambda one: _core.load(one, backend, threads, deadline))
    if isinstance(native, _core.Module):
        module = Module.__new__(Module)
        module._native = native
        return module
    session = Session.__new__(Session)
    session._native = native
    return session


def backends() -> list[BackendInfo]:
    """Return the backends that the engine was built with, the simplest first."""
    return [_info().BackendInfo(*backend) for backend in _core.backends()]

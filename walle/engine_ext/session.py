"""Running a model: `Session(model).run({name: array}) -> {name: array}`, or `Module` for control flow (§4.2).

`load(model)` gives whichever of the two the model needs.
"""

from __future__ import annotations

from walle.engine_ext import _core, lazy
from walle.engine_ext.errors import ModelError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time, and what a session tells of itself needs it
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any

    from walle.engine_ext._core import ndarray
    from walle.engine_ext.np.likes import ArrayLike
    from walle.engine_ext.session_info import BackendInfo, Plan, TensorInfo


def _use_saved_rates() -> None:
    if not hasattr(_core, "set_rates"):  # in a VM, which imports less: whoever made it has set the process's rates
        return
    from walle.engine_ext import rates

    rates.use_saved()


def _readable(model: str | os.PathLike[str] | bytes) -> str | os.PathLike[str] | bytes:
    """Return a model as the native reader takes it: an ONNX file is converted in memory."""
    path = model.__fspath__() if hasattr(model, "__fspath__") else model  # os.fspath, without os
    if not isinstance(path, str) or not path.endswith(".onnx"):
        return model
    try:
        from walle.engine_ext.onnx_import import convert_bytes, load
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise ModelError(f"{path} needs the package onnx; convert it where that is: walle model convert") from error
    return convert_bytes(load(path))


def _info() -> Any:
    return lazy.load("walle.engine_ext.session_info")


class _Model:
    """What a session and a module have in common."""

    _native: _core.Session | _core.Module

    @property
    def inputs(self) -> list[TensorInfo]:
        """The inputs; shape and dtype are None for a sequence or an optional."""
        return [_info().TensorInfo(*info) for info in self._native.inputs()]

    @property
    def outputs(self) -> list[TensorInfo]:
        """The outputs, with the shapes of a session's last plan; a module's depend on what runs."""
        return [_info().TensorInfo(*info) for info in self._native.outputs()]


class Session(_Model):
    """A `.walle` model made ready to run.

    An `.onnx` file is taken too where the package `onnx` is installed.

    Thread-safe: runs of one session follow each other and give up the GIL while they compute. Sessions on the same file
    share its memory-mapped weights. Plans of the last eight sets of input shapes are kept.

    Raises:
        ModelError: the model is broken, or cannot be opened.
        UnsupportedError: it has an operator that the engine does not have, or one that only a Module runs: control
            flow, sequences, shapes that depend on data.
        BackendError: this machine does not have the backend, or its name is unknown.
    """

    _native: _core.Session

    def __init__(self, model: str | os.PathLike[str] | bytes, *, backend: str = "auto", threads: int = 1) -> None:
        _use_saved_rates()
        self._native = _core.Session(_readable(model), backend, threads)

    def run(self, inputs: Mapping[str, ArrayLike]) -> dict[str, ndarray]:
        """Return the outputs by name; they are the caller's, and no later run writes them.

        Arrays are taken without a copy where they are contiguous; nested lists and numbers become the model's dtype.

        Raises:
            ModelError: an input is missing, or not one of the model's.
            ShapeError: a shape does not fit the model.
            DTypeError: an array has another dtype than the model's input.
        """
        return self._native.run(inputs if isinstance(inputs, dict) else dict(inputs))

    def profile(self, inputs: Mapping[str, ArrayLike]) -> list[float]:
        """Run once and return the microseconds of each op of the plan, in its order; raises as `run`."""
        return self._native.profile(inputs if isinstance(inputs, dict) else dict(inputs))

    def plan(self) -> Plan | None:
        """Return the plan of the last run, or of loading where all input shapes are known; None before either."""
        native = self._native.plan()
        return None if native is None else _info().plan_of(native)


class Module(_Model):
    """A `.walle` model with control flow, sequences or shapes that depend on data, made ready to run (§4.2).

    The graph is split at such nodes. Each piece between them, those of loop bodies and branches too, is planned like a
    session for the shapes that it meets, and keeps the plans of the last eight sets of them. Any model that a Session
    runs runs here as well.

    Values are arrays; lists of arrays for sequences; None for an empty optional.

    Thread-safe: runs of one module follow each other, and give up the GIL while they compute. Modules and sessions on
    the same file share its memory-mapped weights.

    Raises: as Session.
    """

    _native: _core.Module

    def __init__(self, model: str | os.PathLike[str] | bytes, *, backend: str = "auto", threads: int = 1) -> None:
        _use_saved_rates()
        self._native = _core.Module(_readable(model), backend, threads)

    def run(self, inputs: Mapping[str, ArrayLike | Sequence[ArrayLike] | None]) -> dict[str, Any]:
        """Return the outputs by name: arrays, lists of arrays, or None; no later run writes them.

        Raises:
            ModelError: an input is missing, or not one of the model's, or a value is no tensor where one is needed.
            ShapeError: shapes do not fit the model, or each other where they come together.
            DTypeError: an array has another dtype than the model's input.
            UnsupportedError: a node cannot do what its run-time operands ask for.
        """
        return self._native.run(inputs if isinstance(inputs, dict) else dict(inputs))

    def plan(self) -> Plan:
        """Return the last plans of all pieces as one, with the nodes that stand between them."""
        plan: Plan = _info().plan_of(self._native.plan())
        return plan


def load(model: str | os.PathLike[str] | bytes, *, backend: str = "auto", threads: int = 1) -> Session | Module:
    """Return a Session of a model, or a Module where only a module runs what is in it.

    Raises: as Session, but for what a module runs.
    """
    _use_saved_rates()
    native = _core.load(_readable(model), backend, threads)
    if isinstance(native, _core.Module):
        module = Module.__new__(Module)
        module._native = native
        return module
    session = Session.__new__(Session)
    session._native = native
    return session


def backends() -> list[BackendInfo]:
    """Return the backends that the engine was built with, the plainest first."""
    return [_info().BackendInfo(*backend) for backend in _core.backends()]

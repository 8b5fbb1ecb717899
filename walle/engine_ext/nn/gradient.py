"""Gradients of functions of walle.np arrays."""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext.errors import DTypeError, ShapeError
from walle.engine_ext.nn.tracing import Trace, Traced, fresh_random_state

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from walle.engine_ext._core import ndarray

__all__ = ["grad", "value_and_grad"]

_FLOATS = ("float32", "float64")


def value_and_grad(function: Callable[..., Any]) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
    """Return a function that gives the function's value and its gradients: `grad` says which."""

    def computed(*arrays: Any) -> tuple[Any, tuple[Any, ...]]:
        outer = next((one.trace for one in arrays if isinstance(one, Traced)), None)
        if outer is not None:
            return _within(outer, function, arrays)
        given = [_core.asarray(one) for one in arrays]
        for place, one in enumerate(given):
            if one.dtype not in _FLOATS:
                raise DTypeError(
                    f"argument {place} is {one.dtype}; gradients are of float32 and float64 arrays: let the function "
                    "take others from around it"
                )
        with Trace(getattr(function, "__name__", "function"), may_look=True) as trace:
            inputs = [trace.input(f"argument {place}", one) for place, one in enumerate(given)]
            result = function(*inputs)
            _check_number(trace.name, result)
            trace.output("value", result)
            used = trace.reaching(result, inputs)
            if used:
                for source, gradient in zip(used, trace.gradient(result, used), strict=True):
                    trace.output(f"gradient {source.number}", gradient)
        values = dict(zip((name for name, _, _ in trace.inputs), given, strict=False))
        if trace.is_random:
            values["random state"] = fresh_random_state()
        results = _core.Session(trace.graph(), "auto").run(values)
        gradients = tuple(
            results.get(f"gradient {one.number}", _core.zeros(array.shape, array.dtype))
            for one, array in zip(inputs, given, strict=True)
        )
        return results["value"], gradients

    return computed


def grad(function: Callable[..., Any]) -> Callable[..., tuple[ndarray, ...]]:
    """Return a function that gives the gradients of `function`, which takes arrays and returns one number.

    The result is a tuple of one gradient for each argument, in its shape and dtype; zeros for an argument that the
    value does not depend on. The function is traced at each call, so that it may branch on values. A gradient may be
    used in a function whose gradient is taken in turn.

    Raises:
        DTypeError: an argument is not float32 or float64.
        ShapeError: the function returns anything but one number.
        UnsupportedError: an operator on the way has no gradient.
    """
    both = value_and_grad(function)
    return lambda *arrays: both(*arrays)[1]


def _within(trace: Trace, function: Callable[..., Any], arrays: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return value and gradients as values of the trace around: of second derivatives."""
    inputs = []
    for one in arrays:
        traced = one if isinstance(one, Traced) else trace.fixed(f"constant {len(trace.constants)}", _core.asarray(one))
        # A value of its own: what else is made of `one` in the function is constant for this gradient.
        inputs.append(trace.node("Identity", [traced], {}, [traced.value])[0])
    result = function(*inputs)
    _check_number(getattr(function, "__name__", "function"), result)
    used = trace.reaching(result, inputs)
    found = trace.gradient(result, used) if used else []
    if trace.may_look:
        trace.compute(found)
    known = {one.number: gradient for one, gradient in zip(used, found, strict=True)}
    return result, tuple(known.get(one.number, _core.zeros(one.shape, one.dtype)) for one in inputs)


def _check_number(name: str, result: Any) -> None:
    shape = getattr(result, "shape", None)
    if shape is None or any(length != 1 for length in shape):
        raise ShapeError(f"{name} returns {_described(result)}; a gradient needs one number")


def _described(result: Any) -> str:
    shape = getattr(result, "shape", None)
    return f"shape {tuple(shape)}" if shape is not None else type(result).__name__

"""Recording of walle.np's operations on traced values, as operators of the registry.

`record` gets each operation of which an operand is a `Traced` or a `Parameter` (`_core.set_recorder`). It adds the
operators that do the same, in the dtypes that walle.np gives arrays of none or one element.
"""

from __future__ import annotations

from walle.engine_ext import _core
from walle.engine_ext.errors import UnsupportedError
from walle.engine_ext.nn.operand import Operand
from walle.engine_ext.nn.tracing import Parameter, Trace, Traced, active_trace

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from walle.engine_ext._core import ndarray

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_TESTS = ("IsNaN", "IsInfinite", "IsFinite", "SignBit")
_COMPARISONS = ("Equal", "NotEqual", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_OF_BOOLS = {"BitwiseAnd": "And", "BitwiseOr": "Or", "BitwiseXor": "Xor", "BitwiseNot": "Not"}


def record(operation: str, *arguments: Any) -> Any:
    """Return what the operation gives: a traced value, or an array where no operand is traced."""
    trace = active_trace()
    resolved = [_resolved(one, trace) for one in arguments]
    found = _first_trace(resolved)
    if found is None:
        return _EAGER[operation](*resolved)
    return _RECORDED[operation](found, *resolved)


def _resolved(argument: Any, trace: Trace | None) -> Any:
    """Return the argument with each parameter replaced by what it stands for."""
    if isinstance(argument, Parameter):
        return argument.data if trace is None else trace.value_of(argument)
    if isinstance(argument, list | tuple):
        return type(argument)(_resolved(one, trace) for one in argument)
    return argument


def _first_trace(arguments: Any) -> Trace | None:
    for one in arguments:
        if isinstance(one, Traced):
            return one.trace
        if isinstance(one, list | tuple):
            trace = _first_trace(one)
            if trace is not None:
                return trace
    return None


def _array(value: Any) -> Any:
    """Return the array of a traced value; anything else unchanged."""
    if isinstance(value, Traced):
        return value.value
    return type(value)(_array(one) for one in value) if isinstance(value, list | tuple) else value


def _as(trace: Trace, x: Any, dtype: str) -> Any:
    """Return the operand in a dtype: a Python number and an array as an array, a traced value by a Cast."""
    if not isinstance(x, Traced):
        return _core.asarray(x, dtype)
    return x if x.dtype == dtype else trace.evaluate("Cast", [x], {"to": str(dtype)})[0]


def _empty(x: Any) -> Any:
    """Return an array without elements in the dtype of the operand; a Python number, whose dtype depends on others."""
    if isinstance(x, list | tuple):
        x = _core.asarray(x)
    return _core.zeros((0,), x.dtype) if hasattr(x, "dtype") else x


def _unary(trace: Trace, op: str, x: Any) -> Traced:
    dtype = str(_core.unary(op, _empty(x)).dtype)
    if x.dtype == "bool":
        if op == "Abs":
            return x  # type: ignore[no-any-return]  # a bool is its own magnitude
        op = _OF_BOOLS.get(op, op)
    return trace.evaluate(op, [_as(trace, x, x.dtype if op in _TESTS else dtype)], {})[0]


def _binary(trace: Trace, op: str, a: Any, b: Any) -> Traced:
    empty = [_empty(one) for one in (a, b)]
    dtype = str(_core.binary(op, *empty).dtype)
    if all(str(getattr(one, "dtype", type(one).__name__)) == "bool" for one in empty):
        op, dtype = _OF_BOOLS.get(op, op), "bool" if op in _COMPARISONS else dtype
    elif op in _COMPARISONS:
        dtype = str(_core.binary("Maximum", *empty).dtype)  # dtype of the comparison
    return trace.evaluate(op, [_as(trace, a, dtype), _as(trace, b, dtype)], {})[0]


def _axes(axis: Any, rank: int) -> list[int]:
    if axis is None:
        return list(range(rank))
    return [int(one) % rank for one in (axis if isinstance(axis, list | tuple) else (axis,))]


def _reduce(trace: Trace, op: str, x: Traced, axis: Any, keepdims: bool) -> Traced:
    least = x.value[(slice(0, 1),) * x.ndim] if x.ndim else x.value  # at most one element: for dtype and errors
    value = _core.reduce(op, least, axis, keepdims)
    attributes: dict[str, Any]
    if op in ("ArgMax", "ArgMin"):
        given = x if axis is not None else x.reshape(-1)
        attributes = {"axis": 0 if axis is None else int(axis), "keepdims": int(keepdims and axis is not None)}
        result = trace.evaluate(op, [given], attributes)[0]
        return result if axis is not None or not keepdims else result.reshape(value.shape)
    if axis is not None and not _axes(axis, x.ndim):
        return x
    dtype = "bool" if op in ("All", "Any") else str(value.dtype)
    op = {"All": "ReduceMin", "Any": "ReduceMax"}.get(op, op)
    attributes = {"axes": _axes(axis, x.ndim), "keepdims": int(keepdims)}
    if x.ndim == 0:
        attributes = {"keepdims": 0}
    return trace.evaluate(op, [_as(trace, x, dtype)], attributes)[0]


def _where(trace: Trace, condition: Any, a: Any, b: Any) -> Traced:
    dtype = str(_core.where(*(_empty(one) for one in (condition, a, b))).dtype)
    return trace.evaluate("Where", [_as(trace, condition, "bool"), _as(trace, a, dtype), _as(trace, b, dtype)], {})[0]


def _clip(trace: Trace, x: Any, low: Any, high: Any) -> Any:
    if low is None and high is None:
        return x
    if isinstance(low, int | float | None) and isinstance(high, int | float | None) and x.dtype in _FLOATS:
        bounds = [None if bound is None else _core.asarray(bound, x.dtype) for bound in (low, high)]
        return trace.evaluate("Clip", [x, *bounds], {})[0]
    result = x if low is None else _binary(trace, "Maximum", x, low)
    return result if high is None else _binary(trace, "Minimum", result, high)


def _broadcast_to(trace: Trace, x: Traced, shape: Any) -> Traced:
    value = _core.broadcast_to(x.value, shape)
    return trace.node("Expand", [x], {"shape": list(value.shape)}, [value])[0]


def _concatenate(trace: Trace, parts: Any, axis: Any, dtype: Any) -> Traced:
    arrays = [one if isinstance(one, Traced) else _core.asarray(one) for one in parts]
    common = str(_core.concatenate([_empty(one) for one in arrays], dtype=dtype).dtype)
    cast = [_as(trace, one, common) for one in arrays]
    flat = [one.reshape(-1) for one in cast] if axis is None else cast
    return trace.evaluate("Concat", flat, {"axis": 0 if axis is None else int(axis)})[0]


def _sorted(op: str) -> Callable[..., Traced]:
    def sort(trace: Trace, x: Traced, axis: Any) -> Traced:
        given = x.reshape(-1) if axis is None else x
        at = -1 if axis is None else int(axis)
        return trace.evaluate(op, [given], {"axis": at % given.ndim, "k": given.shape[at], "largest": 0})[0]

    return sort


def _diagonal(trace: Trace, x: Traced, offset: int, axis1: int, axis2: int) -> Traced:
    return trace.evaluate("Diagonal", [x], {"offset": offset, "axis1": axis1, "axis2": axis2})[0]


def _unstack(trace: Trace, x: Traced) -> tuple[Any, ...]:
    return tuple(_get_item(trace, x, place) for place in range(x.shape[0]))


def _get_item(trace: Trace, x: Any, key: Any) -> Any:
    """Record x[key]: slices, then at most one group of index arrays, which are neighbours."""
    keys = list(key) if isinstance(key, tuple) else [key]
    value = _array(x)[tuple(_array(one) for one in keys)]
    if any(getattr(one, "dtype", None) == "bool" or isinstance(one, bool) for one in keys):
        raise UnsupportedError("a mask as an index: the shape would depend on values; use np.where")
    used = sum(one is not None and one is not Ellipsis for one in keys)
    rank = len(x.shape)
    at = next((place for place, one in enumerate(keys) if one is Ellipsis), None)
    if at is not None:
        keys[at : at + 1] = [slice(None)] * (rank - used)
    else:
        keys += [slice(None)] * (rank - used)
    starts, stops, steps, axes = [], [], [], []
    arrays: dict[int, Any] = {}
    axis = 0
    for one in keys:
        if one is None:
            continue
        length = x.shape[axis]
        if isinstance(one, slice):
            start, stop, step = one.indices(length)
            if (start, stop, step) != (0, length, 1):
                starts.append(start)
                stops.append(stop if stop >= 0 else -length - 1)
                steps.append(step)
                axes.append(axis)
        elif isinstance(one, int) or (not isinstance(one, Operand | list) and getattr(one, "ndim", None) == 0):
            index = int(one) % length
            starts.append(index)
            stops.append(index + 1)
            steps.append(1)
            axes.append(axis)
        else:
            arrays[axis] = one
        axis += 1
    result = x if isinstance(x, Traced) else _core.asarray(x)
    if axes:
        bounds = [_core.asarray(numbers, "int64") for numbers in (starts, stops, axes, steps)]
        result = _core.evaluate("Slice", [result, *bounds], {}, 1)[0]
    if arrays:
        return _indexed(trace, result, keys, arrays, value)
    return result.reshape(value.shape) if isinstance(result, Traced) else value


def _indexed(trace: Trace, x: Any, keys: list[Any], arrays: dict[int, Any], value: ndarray) -> Any:
    """Record the index arrays of neighbouring axes; x has been cut by the slices, whose axes of one int are left."""
    axes = list(arrays)
    plain = all(isinstance(one, slice) or (axis in arrays) for axis, one in enumerate(keys))
    if not plain or axes != list(range(axes[0], axes[0] + len(axes))):
        raise UnsupportedError("index arrays beside ints, None or in several places; index in two steps")
    indices = [_as(trace, one, "int64") for one in arrays.values()]
    if len(axes) == 1:
        return trace.node("Gather", [x, indices[0]], {"axis": axes[0]}, [value])[0]
    if axes[0] != 0:
        raise UnsupportedError("several index arrays behind a slice; move their axes to the front with np.moveaxis")
    shape = _core.broadcast_to(_core.zeros((), "bool"), value.shape).shape[: value.ndim - (len(x.shape) - len(axes))]
    columns = [_core.broadcast_to(one, shape).reshape((*shape, 1)) for one in indices]
    joined = _core.concatenate(columns, axis=-1)
    return trace.node("GatherND", [x, joined], {}, [value])[0]


def _as_array(trace: Trace, x: Traced, dtype: Any) -> Any:
    return x if dtype is None else _as(trace, x, str(_core.zeros((0,), dtype).dtype))


_RECORDED: dict[str, Callable[..., Any]] = {
    "argsort": _sorted("TopIndices"),
    "asarray": _as_array,
    "binary": _binary,
    "broadcast_to": _broadcast_to,
    "clip": _clip,
    "concatenate": _concatenate,
    "diagonal": _diagonal,
    "evaluate": Trace.evaluate,
    "get_item": _get_item,
    "reduce": _reduce,
    "sort": _sorted("TopValues"),
    "unary": _unary,
    "unstack": _unstack,
    "where": _where,
}
_EAGER: dict[str, Callable[..., Any]] = {
    "argsort": _core.argsort,
    "asarray": lambda x, dtype: x if dtype is None else _core.asarray(x, dtype),
    "binary": _core.binary,
    "broadcast_to": _core.broadcast_to,
    "clip": _core.clip,
    "concatenate": lambda parts, axis, dtype: _core.concatenate(parts, axis=axis, dtype=dtype),
    "diagonal": _core.diagonal,
    "evaluate": _core.evaluate,
    "get_item": lambda x, key: x[key],
    "reduce": _core.reduce,
    "sort": _core.sort,
    "unary": _core.unary,
    "unstack": _core.unstack,
    "where": _core.where,
}

"""Tracing: a function of arrays, run once with values, becomes the graph of its operators.

While a `Trace` is active, walle.np records operations on traced values. Shapes and dtypes are then those of the values,
control flow is what it was in this run. A value that code looks at (`if x > 0`, `float(x)`) is refused unless the trace
is of one run only; without such values nothing is computed but what shapes are made of.
"""

from __future__ import annotations

from contextvars import ContextVar

from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.nn.operand import Operand

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from walle.engine_ext._core import ndarray

__all__ = ["Parameter", "Trace", "Traced", "active_trace", "random_state", "scope", "stop_gradient"]

_active: ContextVar[Trace | None] = ContextVar("active trace", default=None)


def active_trace() -> Trace | None:
    """Return the trace that records now; None where arrays are computed at once."""
    return _active.get()


class Parameter(Operand):
    """An array that training changes; it can be used wherever an array can.

    `data` is the array; a frozen parameter has `requires_grad` False.
    """

    __slots__ = ("__weakref__", "_data", "requires_grad")

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        self._data: ndarray = _core.asarray(data.array() if isinstance(data, Operand) else data)
        self.requires_grad = requires_grad

    @property
    def data(self) -> ndarray:
        """The array. A new one has the same shape and dtype."""
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        self._data = _core.asarray(value)

    def array(self) -> ndarray:
        trace = active_trace()
        value = self._data if trace is None else trace.value_of(self)
        return value.array() if isinstance(value, Traced) else value

    def copy(self) -> Any:
        """Return a copy of the array; while a step is planned, the value that the step has."""
        trace = active_trace()
        value = self._data if trace is None else trace.value_of(self)
        return value.copy()

    def __buffer__(self, flags: int, /) -> memoryview:
        return memoryview(self._data)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def dtype(self) -> str:
        return self._data.dtype

    def __setitem__(self, key: Any, value: Any) -> None:
        self._data[key] = value

    def __repr__(self) -> str:
        return f"Parameter({self._data!r}{'' if self.requires_grad else ', requires_grad=False'})"


class Traced(Operand):
    """A value of a trace: its number there, and its array, which only stands for dtype and shape unless it is known."""

    __slots__ = ("is_known", "number", "trace", "value")

    def __init__(self, trace: Trace, number: int, value: ndarray, is_known: bool) -> None:
        self.trace = trace
        self.number = number
        self.value = value
        self.is_known = is_known

    def array(self) -> ndarray:
        if not self.trace.may_look:
            raise UnsupportedError(
                "code looks at the value of an array while a step is planned, and the plan serves every later value; "
                "choose with np.where, and take sizes from shapes"
            )
        return self.value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> str:
        return self.value.dtype

    def __repr__(self) -> str:
        return f"<traced array of shape {self.shape}, {self.dtype}>"


class Trace:
    """The operators that a function's run computed, as a graph.

    with Trace("name") as trace:
        y = function(trace.input("x", x))
        trace.output("y", y)
    session = _core.Session(trace.graph(), "auto")

    `may_look` allows code to use values, where the graph serves this one run.
    """

    def __init__(self, name: str, *, may_look: bool = False) -> None:
        self.name = name
        self.may_look = may_look
        self.inputs: list[tuple[str, str, tuple[int | None, ...]]] = []
        self.constants: list[tuple[str, Any]] = []
        self.nodes: list[tuple[str, str, list[int], dict[str, Any], int]] = []
        self.outputs: list[tuple[str, int]] = []
        self.output_types: list[tuple[str, int]] = []  # dtypes and numbers of dimensions of the outputs
        self.values: list[tuple[str, int]] = []  # by number: "input", "constant" or "result", and its place among them
        self.path = ""
        self._results: list[list[int]] = []  # by node: the numbers of its results
        self._result_count = 0
        self._parameters: dict[int, tuple[Parameter, Traced | ndarray]] = {}
        self._constants: dict[int, tuple[Any, int]] = {}  # by id of the array, which is kept
        self._random: Traced | None = None
        self._random_states = 0
        self._token: Any = None
        self._given: list[ndarray] = []  # arrays of the inputs, where values may be looked at

    def __enter__(self) -> Self:
        self._token = _active.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _active.reset(self._token)
        self._parameters.clear()  # a cycle with the trace: their arrays would live until the next garbage collection

    # Values.

    def _add(self, kind: str, place: int) -> int:
        self.values.append((kind, place))
        return len(self.values) - 1

    def input(self, name: str, value: Any) -> Traced:
        """Return a new input of the graph, with the shape and dtype of that array."""
        array = _core.asarray(value.array() if isinstance(value, Operand) else value)
        self.inputs.append((name, str(array.dtype), array.shape))
        if self.may_look:
            self._given.append(array)
        else:
            array = _stand_in(array)
        return Traced(self, self._add("input", len(self.inputs) - 1), array, self.may_look)

    def constant(self, array: Any) -> int:
        """Return the number of an array that is not an input: the graph has it as it is now."""
        found = self._constants.get(id(array))
        if found is not None:
            return found[1]
        self.constants.append((f"constant {len(self.constants)}", array))
        number = self._add("constant", len(self.constants) - 1)
        self._constants[id(array)] = (array, number)
        return number

    def fixed(self, name: str, array: ndarray) -> Traced:
        """Return a constant of the graph under a name; what is computed from it is recorded too."""
        self.constants.append((name, array))
        return Traced(self, self._add("constant", len(self.constants) - 1), array, True)

    def bind(self, parameter: Parameter, value: Traced | ndarray) -> None:
        """Let the parameter stand for that value in this trace; another one for its array, as a constant."""
        self._parameters[id(parameter)] = (parameter, value)

    def value_of(self, parameter: Parameter) -> Traced | ndarray:
        found = self._parameters.get(id(parameter))
        return parameter.data if found is None else found[1]

    def evaluate(self, op: str, inputs: Sequence[Any], attributes: dict[str, Any], outputs: int = 1) -> list[Traced]:
        """Record an operator, and return its results: computed where the inputs are known; None: an input left out."""
        arrays = [one.value if isinstance(one, Traced) else one for one in inputs]
        if self.may_look:
            return self.node(op, inputs, attributes, _core.evaluate(op, arrays, attributes, outputs))
        known = [not isinstance(one, Traced) or one.is_known for one in inputs]
        found = _core.forecast(op, arrays, known, attributes, outputs)
        results = self.node(op, inputs, attributes, [array for array, _ in found])
        for result, (_, is_known) in zip(results, found, strict=True):
            result.is_known = is_known
        return results

    def node(
        self, op: str, inputs: Sequence[Any], attributes: dict[str, Any], values: Sequence[ndarray]
    ) -> list[Traced]:
        """Record an operator, and return its results, of which `values` are the arrays; None: an input left out."""
        numbers = []
        is_known = True
        for one in inputs:
            if one is None:
                numbers.append(-1)
            elif isinstance(one, Traced):
                if one.trace is not self:
                    raise ModelError("an array that another trace recorded is used; pass it as an argument")
                numbers.append(one.number)
                is_known = is_known and one.is_known
            else:
                numbers.append(self.constant(_core.asarray(one)))
        results = []
        for value in values:
            results.append(Traced(self, self._add("result", self._result_count), value, is_known))
            self._result_count += 1
        name = f"{self.path}.{op}" if self.path else op
        self.nodes.append((op, name, numbers, attributes, len(values)))
        self._results.append([one.number for one in results])
        return results

    def output(self, name: str, value: Any) -> None:
        """Make a value an output of the graph."""
        number = value.number if isinstance(value, Traced) else self.constant(_core.asarray(value))
        self.outputs.append((name, number))
        array = value.value if isinstance(value, Traced) else _core.asarray(value)
        self.output_types.append((str(array.dtype), array.ndim))

    def reaching(self, y: Any, xs: Sequence[Traced]) -> list[Traced]:
        """Return those of `xs` that `y` depends on."""
        needed = {y.number} if isinstance(y, Traced) else set()
        for (_, _, inputs, _, _), results in zip(reversed(self.nodes), reversed(self._results), strict=True):
            if any(number in needed for number in results):
                needed.update(inputs)
        return [one for one in xs if one.number in needed]

    def gradient(self, y: Any, xs: Sequence[Traced]) -> list[Traced]:
        """Return the gradients of `y`, summed over its elements, by each of `xs`. Their values are not known here."""
        if not isinstance(y, Traced):
            raise UnsupportedError("what is differentiated does not depend on any parameter or argument")
        gradients = self.node("Gradient", [y, *xs], {}, [_stand_in(x.value) for x in xs])
        for one in gradients:
            one.is_known = False
        return gradients

    def random_state(self) -> Traced:
        """Return key, stream and counter of fresh random numbers, int64 (3,), of the graph's input "random state"."""
        if self._random is None:
            self._random = self.input("random state", _core.asarray([0, 0, 0]))
        self._random_states += 1
        other = _core.asarray([0, self._random_states, 0])
        return self.evaluate("Add", [self._random, other], {})[0]

    @property
    def is_random(self) -> bool:
        """Return whether the graph has the input "random state"."""
        return self._random is not None

    # Results.

    def compute(self, values: Sequence[Traced]) -> None:
        """Give the values, whose arrays are not known, the arrays that they have in this run."""
        outputs = self.outputs
        self.outputs = [(str(place), one.number) for place, one in enumerate(values)]
        try:
            session = _core.Session(self.graph(), "auto")
        finally:
            self.outputs = outputs
        results = session.run(dict(zip((name for name, _, _ in self.inputs), self._given, strict=True)))
        for place, one in enumerate(values):
            one.value, one.is_known = results[str(place)], True

    def graph(self) -> _core.Graph:
        """Return the graph; later records are not in it."""
        counts = {"input": 0, "constant": len(self.inputs), "result": len(self.inputs) + len(self.constants)}
        places = [counts[kind] + place for kind, place in self.values]
        nodes = [
            (op, name, [-1 if number < 0 else places[number] for number in inputs], attributes, outputs)
            for op, name, inputs, attributes, outputs in self.nodes
        ]
        outputs = [(name, places[number]) for name, number in self.outputs]
        return _core.Graph(self.name, self.inputs, self.constants, nodes, outputs)


def _stand_in(array: ndarray) -> ndarray:
    """Return an array of that dtype and shape without memory for its elements: one zero, repeated."""
    return _core.broadcast_to(_core.zeros((), array.dtype), array.shape)


def scope(path: str) -> _Scope:
    """Return a context in which operators are named after the module at that path."""
    return _Scope(path)


class _Scope:
    def __init__(self, path: str) -> None:
        self._path, self._before = path, ""

    def __enter__(self) -> None:
        trace = active_trace()
        if trace is not None:
            self._before, trace.path = trace.path, self._path

    def __exit__(self, *error: object) -> None:
        trace = active_trace()
        if trace is not None:
            trace.path = self._before


def random_state() -> Any:
    """Return key, stream and counter of fresh random numbers: int64 of shape (3,)."""
    trace = active_trace()
    if trace is not None:
        return trace.random_state()
    return fresh_random_state()


def fresh_random_state() -> ndarray:
    """Return a random state that the generator of walle.nn draws."""
    from walle.engine_ext.nn.generator import default_generator

    return default_generator().integers(-(1 << 63), (1 << 63) - 1, 3)


def stop_gradient(x: Any) -> Any:
    """Return the values unchanged; no gradient passes."""
    return _core.operator("StopGradient", [x]) if isinstance(x, Operand) else x


def _install() -> None:
    from walle.engine_ext.nn.recording import record

    _core.set_recorder(Operand, record)


_install()

"""Outputs of a session that take the place of its inputs, as the new parameters of a training step do."""

from typing import Any, cast

import numpy
import pytest

import walle.nn as nn
import walle.np as np
import walle.optim as optim
from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError, NonFiniteError, ShapeError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.nn.tracing import Trace

_SIZE = 40


def _values(count: int) -> dict[str, Any]:
    random = np.random.default_rng(2)
    return {f"w{i}": random.standard_normal((_SIZE, _SIZE)).astype("float32") for i in range(count)}


def _results(rule: Any, count: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the results of a rule of `count` arrays in separate memory, those in place, and the inputs after."""
    given = _values(count)
    with Trace("updates") as trace:
        for name, value in rule(*[trace.input(name, array) for name, array in given.items()]).items():
            trace.output(name, value)
    names = {name for name, _ in trace.outputs}
    apart = _core.Session(trace.graph(), "auto").run(given)
    session = _core.Session(trace.graph(), "auto", updates={name: name for name in given if name in names})
    return apart, session.run(given), given


def _swap(a: Any, b: Any) -> dict[str, Any]:
    return {"w0": b, "w1": a}


def _keep_old(a: Any, b: Any) -> dict[str, Any]:
    return {"w0": a - b * 0.5, "old": a, "part": a[3:5], "w1": b + a}


def _chain(a: Any, b: Any) -> dict[str, Any]:
    moment = b * 0.9 + a
    return {"w1": moment, "w0": a - moment * 0.1, "half": moment * 0.5}


def _transpose(a: Any, b: Any) -> dict[str, Any]:
    return {"w0": a.T - a * b, "w1": np.matmul(b, a)}


def _same(a: Any, b: Any) -> dict[str, Any]:
    both = a * b + 1.0
    return {"w0": both, "w1": both}


def _shape_only(a: Any, b: Any) -> dict[str, Any]:
    return {"w0": (a.reshape(-1) * 2.0 - b.reshape(-1)).reshape(_SIZE, _SIZE), "w1": np.zeros_like(b)}


def _old_and_new(a: Any, b: Any) -> dict[str, Any]:
    new = a * 2.0 + b
    return {"sum": new + a, "part": new[3:5], "w0": new, "w1": b + new * a, "flat": np.sum(b)}


@pytest.mark.parametrize("rule", [_swap, _keep_old, _chain, _transpose, _same, _shape_only, _old_and_new])
def test_updates_in_place_equal_those_in_separate_memory(rule: Any) -> None:
    apart, in_place, given = _results(rule, 2)
    for name, array in apart.items():
        assert numpy.asarray(in_place[name]).tobytes() == numpy.asarray(array).tobytes(), name
        if name in given:
            assert numpy.shares_memory(numpy.asarray(in_place[name]), numpy.asarray(given[name]))
            assert numpy.asarray(given[name]).tobytes() == numpy.asarray(array).tobytes(), name


def test_updates_run_only_where_the_condition_holds() -> None:
    given = _values(1) | {"limit": np.asarray(0.0, "float32")}
    with Trace("updates") as trace:
        weight, limit = (cast("Any", trace.input(name, array)) for name, array in given.items())
        trace.output("w0", weight * 2.0 + 1.0)
        trace.output("may change", np.sum(weight) < limit)
    session = _core.Session(trace.graph(), "auto", updates={"w0": "w0"}, condition="may change")
    before = numpy.asarray(given["w0"]).copy()
    session.run(given | {"limit": np.asarray(-1e9, "float32")})
    assert numpy.array_equal(numpy.asarray(given["w0"]), before)
    session.run(given | {"limit": np.asarray(1e9, "float32")})
    assert numpy.array_equal(numpy.asarray(given["w0"]), before * 2 + 1)


def _conditional(rule: Any) -> tuple[Any, dict[str, Any]]:
    """Return a session of one weight that it updates, and its inputs; `rule` returns the new one and the condition."""
    given = _values(1) | {"limit": np.asarray(0.0, "float32")}
    with Trace("updates") as trace:
        weight, limit = (cast("Any", trace.input(name, array)) for name, array in given.items())
        new, condition = rule(weight, limit)
        trace.output("w0", new)
        trace.output("half", new * 0.5 + weight)
        trace.output("may change", condition)
    return _core.Session(trace.graph(), "auto", updates={"w0": "w0"}, condition="may change"), given


def test_outputs_of_an_update_are_computed_where_the_condition_does_not_hold() -> None:
    session, given = _conditional(lambda weight, limit: (weight * 2.0, np.sum(weight) < limit))
    before = numpy.asarray(given["w0"]).copy()
    for limit, after in ((-1e9, before), (1e9, before * 2)):
        outputs = session.run(given | {"limit": np.asarray(limit, "float32")})
        assert numpy.array_equal(numpy.asarray(outputs["half"]), before * 2)
        assert numpy.array_equal(numpy.asarray(given["w0"]), after)


def test_a_condition_may_depend_on_the_update() -> None:
    session, given = _conditional(lambda weight, limit: (new := weight * 2.0, np.sum(new) < limit))
    before = numpy.asarray(given["w0"]).copy()
    for limit, after in ((-1e9, before), (1e9, before * 2)):
        session.run(given | {"limit": np.asarray(limit, "float32")})
        assert numpy.array_equal(numpy.asarray(given["w0"]), after)


def test_an_array_of_an_update_and_of_another_input_is_refused() -> None:
    given = _values(2)
    with Trace("updates") as trace:
        first, second = (cast("Any", trace.input(name, array)) for name, array in given.items())
        trace.output("w0", first * 2.0)
        trace.output("sum", second + 1.0)
    session = _core.Session(trace.graph(), "auto", updates={"w0": "w0"})
    both = np.asarray(numpy.zeros((2 * _SIZE, _SIZE), "float32"))
    halves = {"w0": both[:_SIZE], "w1": both[_SIZE:]}
    for one in (
        {"w0": given["w0"], "w1": given["w0"]},
        {"w0": both[:_SIZE], "w1": both[1 : _SIZE + 1]},
        {"w0": both[1 : _SIZE + 1], "w1": both[:_SIZE]},
    ):
        with pytest.raises(ModelError, match="'w0' is updated in place and shares memory with the input 'w1'"):
            session.run(one)
    session.run(halves)


def test_types_of_an_update_are_checked_where_shapes_depend_on_its_input() -> None:
    graph = GraphBuilder("updates")
    shape = graph.input("shape", (2,), "int64")
    graph.output("new", graph.op("Expand", [graph.constant("one", [1], "int64"), shape]))
    session = _core.Session(_core.Graph.open(graph.to_bytes()), "auto", updates={"new": "shape"})
    with pytest.raises(ShapeError, match="not those of the input that it replaces"):
        session.run({"shape": np.asarray([1, 3], "int64")})


def test_updates_that_cannot_be_are_refused() -> None:
    given = _values(1)
    with Trace("updates") as trace:
        weight: Any = trace.input("w0", given["w0"])
        trace.output("sum", np.sum(weight * 2.0))
    for updates in ({"no": "w0"}, {"sum": "no"}):
        with pytest.raises(ModelError, match="the model has no"):
            _core.Session(trace.graph(), "auto", updates=updates)
    with pytest.raises(ShapeError, match="not those of the input that it replaces"):
        _core.Session(trace.graph(), "auto", updates={"sum": "w0"})
    with Trace("updates") as trace:
        weight = trace.input("w0", given["w0"])
        for name in ("one", "two"):
            trace.output(name, weight * 2.0)
    with pytest.raises(ShapeError, match=r"output 1 .* is the condition of updates, which is one bool"):
        _core.Session(trace.graph(), "auto", updates={"one": "w0"}, condition="two")
    with pytest.raises(ModelError, match="two outputs replace the input 'w0'"):
        _core.Session(trace.graph(), "auto", updates={"one": "w0", "two": "w0"})
    with pytest.raises(ModelError, match="the output 'one' is the condition of updates, and cannot be one"):
        _core.Session(trace.graph(), "auto", updates={"one": "w0"}, condition="one")
    with Trace("updates") as trace:
        trace.output("w0", trace.input("w0", given["w0"]) * 2.0)
    given["w0"].setflags(write=False)
    with pytest.raises(ModelError, match="'w0' is updated in place and is read-only; copy it"):
        _core.Session(trace.graph(), "auto", updates={"w0": "w0"}).run(given)


def _step(optimizer: Any, model: Any = None) -> nn.TrainStep:
    nn.manual_seed(1)
    model = model or nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    return nn.TrainStep(model, nn.functional.mse_loss, optimizer)


def _places(step: nn.TrainStep) -> list[int]:
    """Return the addresses of all parameters and states."""
    arrays = [one.data for one in step.model.parameters()]
    arrays += [array for states in step.states.values() for array in states.values()]
    return [numpy.asarray(array).ctypes.data for array in arrays]


@pytest.fixture
def data() -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    return random.standard_normal((8, 64)).astype("float32"), random.standard_normal((8, 64)).astype("float32")


@pytest.mark.parametrize("optimizer", [optim.SGD(0.1), optim.SGD(0.1, 0.9), optim.Adam(), optim.AdamW()])
def test_later_steps_write_parameters_and_states_in_place(optimizer: Any, data: Any) -> None:
    step = _step(optimizer)
    step(*data)
    places = _places(step)
    live = _core.live_storage_bytes()
    for _ in range(3):
        step(*data)
    assert _core.live_storage_bytes() == live
    assert _places(step) == places


def test_arrays_that_are_held_do_not_change(data: Any) -> None:
    step = _step(optim.SGD(0.1, 0.9))
    first, _, last = cast("nn.Sequential", step.model)
    own = numpy.ones((64, 64), "float32")
    first.weight.data = np.asarray(own)  # the engine's array of NumPy's memory
    for _ in range(2):
        held = dict(zip(step.model.state_dict(), [one.data for one in step.model.parameters()], strict=True))
        held |= {f"{name}/{key}": array for name, one in step.states.items() for key, array in one.items()}
        before = {name: numpy.array(array) for name, array in held.items()}
        view, buffer = last.weight.data[1], memoryview(last.bias)
        step(*data)
        for name, array in held.items():
            assert numpy.array_equal(numpy.asarray(array), before[name]), name
        assert numpy.array_equal(numpy.asarray(view), before["2.weight"][1])
        assert numpy.array_equal(numpy.asarray(buffer), before["2.bias"])
        assert not numpy.array_equal(numpy.asarray(last.weight.data), before["2.weight"])
        del view, buffer
    assert (own == 1).all()


@pytest.mark.parametrize("optimizer", [optim.SGD(0.1, 0.9), optim.Adam()])
def test_a_gradient_that_is_not_finite_changes_nothing(optimizer: Any, data: Any) -> None:
    step = _step(optimizer)
    step(*data)
    before = {name: numpy.array(array) for name, array in step.state_dict().items()}
    with pytest.raises(NonFiniteError):
        step(data[0], data[1] * 1e30)
    for name, array in step.state_dict().items():
        assert numpy.array_equal(numpy.asarray(array), before[name]), name

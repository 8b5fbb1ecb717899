"""Outputs of a session that take the place of its inputs, as the new parameters of a training step do."""

from typing import Any, cast

import numpy
import pytest

import walle.nn as nn
import walle.np as np
import walle.optim as optim
from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError, NonFiniteError, ShapeError
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


@pytest.mark.parametrize("rule", [_swap, _keep_old, _chain, _transpose, _same, _shape_only])
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

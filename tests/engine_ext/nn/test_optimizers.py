"""Optimizers, limits of gradients and schedules give PyTorch's numbers."""

from pathlib import Path
from typing import Any

import numpy
import pytest

import walle.nn as nn
import walle.np as np
import walle.optim as optim
from tests.engine_ext.nn.torch_options import FROZEN, OPTIMIZERS, SCHEDULES
from tests.engine_ext.nn.torch_record import read_record
from walle.errors import EngineError


def run(optimizer: Any, dtype: str = "float32") -> list[Any]:
    record = read_record().arrays
    parameter = np.asarray(record["optimizers/first"]).astype(dtype)
    states = optimizer.states(parameter)
    path = []
    for count, gradient in enumerate(record["optimizers/gradients"], start=1):
        given = np.asarray(gradient).astype(dtype)
        parameter, states = optimizer.update(
            parameter, given, states, np.array(optimizer.lr, dtype="float64"), np.array(count)
        )
        path.append(parameter)
    return path


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_updates_are_those_of_pytorch(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    expected = read_record().arrays[f"optimizers/{name}"]
    for found, wanted in zip(run(getattr(optim, kind)(**options)), expected, strict=True):
        assert found.dtype == "float32"
        numpy.testing.assert_allclose(numpy.asarray(found), wanted, rtol=1e-5, atol=1e-6)


class Parts(nn.Module):
    """A parameter for each entry of FROZEN, the gradient of each of which is the input."""

    def __init__(self, start: Any) -> None:
        super().__init__()
        for name in FROZEN:
            setattr(self, name, nn.Parameter(np.asarray(start)))

    def forward(self, gradient: Any) -> Any:
        return sum(getattr(self, name) * gradient for name in FROZEN)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_parameters_that_are_frozen_at_times_are_those_of_pytorch(name: str, tmp_path: Path) -> None:
    record = read_record().arrays
    kind, options = OPTIMIZERS[name]

    def made() -> nn.TrainStep:
        model = Parts(record["optimizers/first"])
        return nn.TrainStep(model, lambda result, _target: result.sum(), getattr(optim, kind)(**options))

    step = made()
    for at, gradient in enumerate(record["optimizers/gradients"]):
        if at == 6:  # a checkpoint keeps the count of updates of each parameter
            nn.checkpoint(step, tmp_path / "c.walle")
            step = made()
            nn.resume(step, tmp_path / "c.walle")
        for part, frozen in FROZEN.items():
            getattr(step.model, part).requires_grad = at not in frozen
        step(gradient, np.zeros(1))
    for part, wanted in zip(FROZEN, record[f"frozen at times/{name}"], strict=True):
        found = numpy.asarray(getattr(step.model, part).data)
        numpy.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, err_msg=part)


def test_cleared_states_begin_again() -> None:
    gradient = read_record().arrays["optimizers/gradients"][0]
    moves = []
    step = nn.TrainStep(Parts(np.zeros((3, 4))), lambda result, _target: result.sum(), optim.Adam(lr=0.1))
    for _ in range(2):
        before = step.model.state_dict()["late"]
        step(gradient, np.zeros(1))
        moves.append(numpy.asarray(step.model.state_dict()["late"] - before))
        step(2 * gradient, np.zeros(1))
        step.states = {}
    numpy.testing.assert_allclose(moves[1], moves[0], rtol=1e-4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float64_stays_float64(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    path = run(getattr(optim, kind)(**options), "float64")
    assert all(found.dtype == "float64" for found in path)


def test_update_leaves_its_arguments_unchanged() -> None:
    optimizer = optim.Adam(amsgrad=True)
    parameter, gradient = np.ones((2, 2)), np.ones((2, 2))
    states = optimizer.states(parameter)
    optimizer.update(parameter, gradient, states, np.array(0.1), np.array(1))
    assert (parameter == 1).all()
    assert (gradient == 1).all()
    assert all((state == 0).all() for state in states.values())


@pytest.mark.parametrize("limit", [0.5, 100.0])
@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, float("inf")])
def test_clipped_gradients_are_those_of_pytorch(norm: float, limit: float) -> None:
    record = read_record().arrays
    gradients = [np.asarray(gradient) for gradient in record["optimizers/gradients"][:2]]
    clipped, total = optim.clip_grad_norm(gradients, limit, norm)
    numpy.testing.assert_allclose(numpy.asarray(total), record[f"clipping/{norm} {limit} total"], rtol=1e-6)
    for found, wanted in zip(clipped, record[f"clipping/{norm} {limit}"], strict=True):
        numpy.testing.assert_allclose(numpy.asarray(found), wanted, rtol=1e-5, atol=1e-7)


def test_clip_grad_value_limits_each_number() -> None:
    (clipped,) = optim.clip_grad_value([np.array([-3.0, 0.2, 2.0])], 0.5)
    assert clipped.tolist() == pytest.approx([-0.5, 0.2, 0.5])


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_pytorch(name: str) -> None:
    optimizer = optim.SGD(lr=0.4)
    schedule = SCHEDULES[name](optim, optimizer)
    rates = [optimizer.lr]
    for _ in range(14):
        schedule.step()
        rates.append(optimizer.lr)
    assert rates == pytest.approx(read_record().texts["schedules"][name], rel=1e-9)
    assert schedule.get_last_lr() == [optimizer.lr]


def test_warm_up_reaches_the_rate_at_its_last_step() -> None:
    optimizer = optim.SGD(lr=0.8)
    schedule = optim.LinearWarmup(optimizer, 4)
    rates = [optimizer.lr]
    for _ in range(4):
        schedule.step()
        rates.append(optimizer.lr)
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert optim.LinearWarmup(optimizer, 1).get_last_lr() == [0.8]


def test_schedule_continues_from_its_state() -> None:
    first = optim.SGD(lr=0.4)
    schedule = optim.StepLR(first, 2)
    for _ in range(5):
        schedule.step()
    second = optim.SGD(lr=0.4)
    resumed = optim.StepLR(second, 2)
    resumed.load_state_dict(schedule.state_dict())
    assert second.lr == first.lr == pytest.approx(0.004)
    with pytest.raises(EngineError, match="last_epoch None"):
        resumed.load_state_dict({})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.SGD(lr=-1.0), "SGD: lr -1.0"),
        (lambda: optim.SGD(nesterov=True), "nesterov"),
        (lambda: optim.Adam(betas=(0.9, 1.0)), "Adam: betas"),
        (lambda: optim.AdamW(eps=-1e-8), "AdamW: eps"),
        (lambda: optim.StepLR(optim.SGD(), 0), "step_size 0"),
        (lambda: optim.SequentialLR(optim.SGD(), [], [3]), "one milestone"),
        (lambda: optim.SequentialLR(optim.SGD(), [optim.StepLR(optim.SGD(), 1)], []), "another optimizer"),
        (lambda: optim.clip_grad_norm([], 1.0), "0 gradients"),
    ],
)
def test_wrong_option_is_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        make()

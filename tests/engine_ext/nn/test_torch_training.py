"""Ten steps of SGD from equal weights follow PyTorch's, layer by layer and loss by loss."""

from typing import Any

import numpy
import pytest

import walle.nn as nn
import walle.np as np
import walle.optim as optim
from tests.engine_ext.nn.torch_cases import CASES, fed, flat
from tests.engine_ext.nn.torch_record import read_record
from walle.engine_ext.errors import ShapeError

TRAINED = [name for name, case in CASES.items() if case.trains]


def train(name: str) -> tuple[Any, list[float]]:
    """Return the module and the losses after the record's steps."""
    record = read_record()
    steps = record.texts["steps"]
    inputs = [np.asarray(array) for array in record.listed(f"{name}/input ")]
    module = fed(nn, CASES[name], inputs)
    module.load_state_dict(record.named(f"{name}/first/"))
    rest = inputs if module.input is None else inputs[1:]
    target = record.arrays.get(f"{name}/target")

    def loss(result: Any, wanted: Any) -> Any:
        first = next(flat(result))
        return first if target is None else nn.functional.mse_loss(first, wanted)

    step = nn.TrainStep(Whole(module), loss, optim.SGD(steps["lr"], steps["momentum"]))
    last = np.zeros(1) if target is None else target
    return module, [float(step(np.zeros(1), *rest, last)) for _ in range(steps["count"])]


class Whole(nn.Module):
    """A module with a first input that it ignores, so that a step passes all others but the last one."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, _first: Any, *rest: Any) -> Any:
        return self.module(*rest)


@pytest.mark.parametrize("name", TRAINED)
def test_ten_steps_agree_with_pytorch(name: str) -> None:
    module, losses = train(name)
    record = read_record()
    expected = record.arrays[f"{name}/losses"]
    numpy.testing.assert_allclose(losses, expected, rtol=1e-5)
    state = module.state_dict()
    for path, last in record.named(f"{name}/last/").items():
        largest = float(numpy.abs(last).max()) if last.size else 0.0
        numpy.testing.assert_allclose(numpy.asarray(state[path]), last, rtol=0, atol=1e-5 * largest, err_msg=path)


def test_dropout_draws_a_new_mask_each_step_and_the_same_for_a_seed() -> None:
    def losses(seed: int) -> list[float]:
        layer = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Dropout(0.5))
        layer.load_state_dict({"0.weight": np.eye(8)})
        step = nn.TrainStep(layer, lambda y, _target: (y * np.arange(8)).sum(), optim.SGD(lr=0.0), seed=seed)
        return [float(step(np.ones((1, 8)), np.zeros(1))) for _ in range(4)]

    assert len(set(losses(0))) > 1
    assert losses(0) == losses(0) != losses(1)


def test_wrong_shape_in_a_step_names_the_layer() -> None:
    layer = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 1))
    step = nn.TrainStep(layer, nn.MSELoss(), optim.SGD(lr=0.1))
    with pytest.raises(ShapeError, match=r"layer '1' \(Linear\): input of shape \(2, 4\); it takes \(..., 5\)"):
        step(np.ones((2, 3)), np.ones((2, 1)))


@pytest.mark.parametrize("make", [lambda: optim.Adam(amsgrad=True), lambda: optim.RMSprop(momentum=0.9), optim.Adagrad])
def test_step_updates_as_the_rule_does_on_arrays(make: Any) -> None:
    nn.manual_seed(2)
    layer = nn.Linear(3, 2)
    x, y = np.random.default_rng(0).random((4, 3)), np.ones((4, 2))
    before = layer.weight.data.copy()
    step = nn.TrainStep(layer, nn.functional.mse_loss, make())
    gradient = step.gradients(x, y)["weight"]
    rule = make()
    expected, _ = rule.update(before, gradient, rule.states(before), np.array(rule.lr, dtype="float64"), np.array(1))
    step(x, y)
    numpy.testing.assert_allclose(numpy.asarray(layer.weight.data), numpy.asarray(expected), rtol=1e-6, atol=1e-7)


def test_class_out_of_range_stops_the_step_and_changes_nothing() -> None:
    layer = nn.Linear(2, 3)
    before = layer.state_dict()
    step = nn.TrainStep(layer, nn.functional.cross_entropy, optim.SGD(lr=0.1, momentum=0.9))
    with pytest.raises(ShapeError, match="index is out of range"):
        step(np.ones((2, 2)), np.array([0, 3]))
    assert all(np.array_equal(array, before[name]) for name, array in layer.state_dict().items())
    step(np.ones((2, 2)), np.array([0, -100]))  # an ignored class is not out of range
    assert not np.array_equal(layer.weight.data, before["weight"])


def test_schedule_changes_the_rate_of_a_planned_step() -> None:
    layer, optimizer = nn.Linear(1, 1, bias=False), optim.SGD(lr=0.5)
    schedule = optim.StepLR(optimizer, 1, 0.1)
    step = nn.TrainStep(layer, lambda y, t: (y * t).sum(), optimizer)
    moves = []
    for _ in range(3):
        before = layer.weight.data.item()
        step(np.ones((1, 1)), np.ones((1, 1)))
        moves.append(before - layer.weight.data.item())
        schedule.step()
    assert moves == pytest.approx([0.5, 0.05, 0.005], rel=1e-4)


def test_tied_weights_are_trained_as_one() -> None:
    nn.manual_seed(0)
    embedding, output = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    output.weight = embedding.weight
    model = nn.Sequential(embedding, output)
    step = nn.TrainStep(model, nn.functional.cross_entropy, optim.Adam(lr=0.05))
    losses = [float(step(np.arange(4), np.arange(1, 5))) for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]
    assert output.weight is embedding.weight
    assert np.array_equal(model.state_dict()["0.weight"], model.state_dict()["1.weight"])

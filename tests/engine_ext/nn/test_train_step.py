"""Training steps: what they refuse, what they keep, and files of models and of trainings."""

from pathlib import Path
from typing import Any

import numpy
import pytest

import walle.nn as nn
import walle.np as np
import walle.optim as optim
from walle.engine_ext.errors import DTypeError, ModelError, NonFiniteError, ShapeError, UnsupportedError
from walle.engine_ext.session import Session

F = nn.functional


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(4 * 3 * 3, 5)

    def forward(self, x: Any) -> Any:
        x = self.pool(F.relu(self.norm(self.conv(x))))
        return self.fc(self.drop(x.reshape(x.shape[0], -1)))


class Line(nn.Module):
    def __init__(self, *, unused: bool = False) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        if unused:
            self.other = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.fc(x)


@pytest.fixture
def data() -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    return random.standard_normal((8, 1, 6, 6)).astype("float32"), random.integers(0, 5, 8)


def made(**options: Any) -> nn.TrainStep:
    nn.manual_seed(5)
    return nn.TrainStep(Net(), F.cross_entropy, optim.Adam(lr=0.01), **options)


def test_training_lowers_the_loss_and_moves_every_parameter_and_running_statistic(data: tuple[Any, Any]) -> None:
    step = made()
    before = step.model.state_dict()
    losses = [float(step(*data)) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    after = step.model.state_dict()
    assert [name for name in before if bool((before[name] == after[name]).all())] == []
    assert step.plan().ops


@pytest.mark.parametrize("threads", [1, 2])
def test_equal_seeds_give_equal_weights_to_the_bit(data: tuple[Any, Any], threads: int) -> None:
    states = []
    for count in (1, threads):
        step = made(seed=4, threads=count)
        for _ in range(3):
            step(*data)
        states.append({name: array.tobytes() for name, array in step.model.state_dict().items()})
    assert states[0] == states[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [7, 44, 85, 256])
def test_products_are_equal_to_the_bit_for_any_number_of_threads(rows: int, dtype: str) -> None:
    """The last rows of a product, and its last columns, may be summed in another order than others."""
    states = []
    for threads in (1, 2, 3):
        nn.manual_seed(6)
        model = nn.Sequential(nn.Linear(96, 200), nn.ReLU(), nn.Linear(200, 40))
        for parameter in model.parameters():
            parameter.data = parameter.data.astype(dtype)
        random = np.random.default_rng(7)
        x, y = (random.standard_normal((rows, size)).astype(dtype) for size in (96, 40))
        step = nn.TrainStep(model, F.mse_loss, optim.SGD(lr=0.1), threads=threads)
        step(x, y)
        states.append({name: array.tobytes() for name, array in model.state_dict().items()})
        assert {str(array.dtype) for array in model.state_dict().values()} == {dtype}
    assert states[0] == states[1] == states[2]


def test_a_step_of_other_shapes_is_planned_for_itself(data: tuple[Any, Any]) -> None:
    step = made()
    x, y = data
    for count in (8, 3, 8):
        assert float(step(x[:count], y[:count])) > 0
    assert step.count == 3


def test_gradients_are_given_without_a_step(data: tuple[Any, Any]) -> None:
    step = nn.TrainStep(Line(), F.mse_loss, optim.SGD(lr=0.1))
    before = step.model.state_dict()
    gradients = step.gradients(np.ones((2, 3)), np.zeros((2, 3)))
    assert set(gradients) == {"fc.weight", "fc.bias"}
    assert step.count == 0
    assert all(bool((before[name] == array).all()) for name, array in step.model.state_dict().items())
    step(np.ones((2, 3)), np.zeros((2, 3)))
    moved = before["fc.bias"] - step.model.state_dict()["fc.bias"]
    assert float(np.abs(moved - 0.1 * gradients["fc.bias"]).max()) < 1e-6


def test_a_parameter_that_no_gradient_reaches_is_named() -> None:
    step = nn.TrainStep(Line(unused=True), F.mse_loss, optim.SGD(lr=0.1))
    with pytest.raises(UnsupportedError, match=r"no gradient reaches 'parameter other\.weight'.*freeze it, or use it"):
        step(np.ones((2, 3)), np.zeros((2, 3)))
    step.model.other.requires_grad_(False)
    assert float(step(np.ones((2, 3)), np.zeros((2, 3)))) > 0


def test_numbers_that_are_not_finite_are_named_and_change_nothing() -> None:
    class Root(Line):
        def forward(self, x: Any) -> Any:
            return np.log(self.fc(x) * 0 - 1)

    step = nn.TrainStep(Root(), F.mse_loss, optim.SGD(lr=0.1))
    before = step.model.state_dict()
    with pytest.raises(NonFiniteError, match=r"step 1: node 'Log' \(Log\) makes NaN"):
        step(np.ones((2, 3)), np.zeros((2, 3)))
    assert step.count == 0
    assert all(bool((before[name] == array).all()) for name, array in step.model.state_dict().items())
    with pytest.raises(NonFiniteError, match="'input 0' has NaN"):
        nn.TrainStep(Line(), F.mse_loss, optim.SGD(lr=0.1))(np.full((2, 3), np.nan), np.zeros((2, 3)))


def test_wrong_uses_are_errors_that_say_what_to_do() -> None:
    line = Line()
    with pytest.raises(DTypeError, match=r"input 0 is float64, .* parameters are float32; convert it with astype"):
        nn.TrainStep(line, F.mse_loss, optim.SGD(lr=0.1))(np.ones((2, 3), "float64"), np.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"the loss has shape \(2, 3\); it is one number"):
        nn.TrainStep(line, lambda a, b: a - b, optim.SGD(lr=0.1))(np.ones((2, 3)), np.zeros((2, 3)))

    class Looks(Line):
        def forward(self, x: Any) -> Any:
            return x if self.fc(x).sum() > 0 else -x

    with pytest.raises(UnsupportedError, match="code looks at the value of an array while a step is planned"):
        nn.TrainStep(Looks(), F.mse_loss, optim.SGD(lr=0.1))(np.ones((2, 3)), np.zeros((2, 3)))
    with pytest.raises(ModelError, match="Line has no parameter with requires_grad"):
        nn.TrainStep(Line().requires_grad_(False), F.mse_loss, optim.SGD(lr=0.1))(np.ones((2, 3)), np.zeros((2, 3)))


def test_arrays_that_the_loss_has_no_place_for_go_to_optional_arguments_of_forward() -> None:
    class Scaled(Line):
        def forward(self, x: Any, scale: Any = None, shift: Any = None) -> Any:
            y = self.fc(x) if scale is None else self.fc(x) * scale
            return y if shift is None else y + shift

    x, y, two, one = np.ones((2, 3)), np.zeros((2, 3)), np.full((2, 3), 2.0), np.ones((2, 3))
    wanted = [x, 2 * x, 2 * x + 1]
    for loss in (lambda result, target: F.mse_loss(result, target), nn.MSELoss()):
        for place, arrays in enumerate(([x, y], [x, two, y], [x, two, one, y])):
            step = nn.TrainStep(Scaled(), loss, optim.SGD(lr=0.0))
            step.model.load_state_dict({"fc.weight": np.eye(3), "fc.bias": np.zeros(3)})
            assert float(step(*arrays)) == pytest.approx(float((wanted[place] ** 2).mean()))

    def weighted(result: Any, target: Any, weight: Any = None) -> Any:
        return ((result - target) * weight).sum()

    step = nn.TrainStep(Scaled(), weighted, optim.SGD(lr=0.0))  # third array: the loss's weight, not a scale
    step.model.load_state_dict({"fc.weight": np.eye(3), "fc.bias": np.zeros(3)})
    assert float(step(x, y, two)) == 12
    assert float(nn.TrainStep(step.model, lambda result: result.sum(), optim.SGD(lr=0.0))(x, two)) == 12


def test_a_frozen_weight_that_is_loaded_again_reaches_the_next_step() -> None:
    line = Line()
    line.fc.weight.requires_grad = False
    step = nn.TrainStep(line, F.mse_loss, optim.SGD(lr=0.0))
    x, y = np.ones((2, 3)), np.zeros((2, 3))
    step(x, y)
    line.load_state_dict({"fc.weight": np.zeros((3, 3)), "fc.bias": np.zeros(3)})
    assert float(step(x, y)) == 0
    with pytest.raises(DTypeError, match="read-only"):
        line.fc.weight.data[...] = 1.0  # the plan would not see it


def test_a_file_for_inference_computes_what_the_model_does(data: tuple[Any, Any], tmp_path: Path) -> None:
    step = made()
    for _ in range(3):
        step(*data)
    path = tmp_path / "m.walle"
    nn.save(step.model, path)
    wanted = step.model.eval()(data[0])
    session = Session(path)
    assert session.inputs[0].shape == (None, 1, 6, 6)
    for count in (1, 8):
        numpy.testing.assert_allclose(
            session.run({"x": data[0][:count]})["output"], wanted[:count], rtol=1e-4, atol=1e-5
        )
    other = Net().eval()
    nn.load(other, path)
    assert bool((other(data[0]) == wanted).all())
    with pytest.raises(ModelError, match=r"has not been trained yet: give example inputs"):
        nn.save(Net(), tmp_path / "n.walle")


def test_an_onnx_file_computes_what_the_model_does(data: tuple[Any, Any], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = made().model.eval()
    path = tmp_path / "m.onnx"
    nn.to_onnx(model, path, data[0][:2])
    [output] = onnxruntime.InferenceSession(str(path)).run(None, {"x": numpy.asarray(data[0])})
    numpy.testing.assert_allclose(output, model(data[0]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["onnx", "walle"])
def test_the_last_layer_of_a_file_is_tuned_and_the_rest_stays(data: tuple[Any, Any], tmp_path: Path, kind: str) -> None:
    model, path = made().model.eval(), tmp_path / f"m.{kind}"
    (nn.to_onnx if kind == "onnx" else nn.to_walle)(model, path, data[0])
    tuned = nn.from_onnx(path, trainable=["fc"])
    numpy.testing.assert_allclose(tuned(data[0]), model(data[0]), rtol=1e-4, atol=1e-5)
    before = tuned.state_dict()
    step = nn.TrainStep(tuned, F.cross_entropy, optim.SGD(lr=0.5))
    losses = [float(step(*data)) for _ in range(10)]
    assert losses[-1] < losses[0]
    after = tuned.state_dict()
    assert {name for name in after if not bool((before[name] == after[name]).all())} == {"fc.weight", "fc.bias"}
    with pytest.raises(ModelError, match=r"no weight fits 'head'; the model has .*fc\.weight"):
        nn.from_onnx(path, trainable=["head"])


def test_a_training_continues_from_its_checkpoint(data: tuple[Any, Any], tmp_path: Path) -> None:
    step, path = made(seed=2), tmp_path / "training.walle"
    for _ in range(2):
        step(*data)
    nn.checkpoint(step, path, position=17)
    wanted = [float(step(*data)) for _ in range(3)]
    other = made(seed=9)
    assert nn.resume(other, path) == 17
    assert [float(other(*data)) for _ in range(3)] == wanted
    with pytest.raises(ModelError, match="state of Line cannot be loaded: unexpected: conv"):
        nn.resume(nn.TrainStep(Line(), F.mse_loss, optim.Adam()), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError):
        nn.resume(other, path)


def test_gradients_are_clipped_together() -> None:
    step = nn.TrainStep(Line(), lambda a, b: 1e3 * F.mse_loss(a, b), optim.SGD(lr=1.0), clip_grad_norm=0.5)
    before = step.model.state_dict()
    step(np.ones((2, 3)), np.full((2, 3), 9.0))
    moved = sum(float(np.sum((before[name] - array) ** 2)) for name, array in step.model.state_dict().items())
    assert moved**0.5 == pytest.approx(0.5, rel=1e-3)


def test_freezing_a_layer_between_steps_keeps_its_weights_and_states() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    step = nn.TrainStep(model, F.mse_loss, optim.Adam())
    x, y = np.ones((2, 3)), np.zeros((2, 3))
    step(x, y)
    model[0].requires_grad_(False)
    before = model.state_dict()
    step(x, y)
    after = model.state_dict()
    assert [name for name in after if not bool((before[name] == after[name]).all())] == ["1.weight", "1.bias"]


def test_states_of_another_optimizer_are_refused(tmp_path: Path) -> None:
    first = nn.TrainStep(Line(), F.mse_loss, optim.Adam())
    x, y = np.ones((2, 3)), np.zeros((2, 3))
    first(x, y)
    nn.checkpoint(first, tmp_path / "c.walle")
    second = nn.TrainStep(Line(), F.mse_loss, optim.SGD(momentum=0.9))
    nn.resume(second, tmp_path / "c.walle")
    with pytest.raises(ModelError, match=r"fc\.weight has the states .*exp_avg.* of another optimizer; SGD has"):
        second(x, y)


def test_later_settings_of_the_optimizer_reach_the_next_step() -> None:
    line = Line()
    step = nn.TrainStep(line, lambda a, b: 0.0 * F.mse_loss(a, b), optim.SGD(lr=1.0))
    x, y = np.ones((2, 3)), np.zeros((2, 3))
    step(x, y)
    before = line.state_dict()["fc.weight"]
    step.optimizer.weight_decay = 0.5
    step(x, y)
    assert float(np.abs(line.state_dict()["fc.weight"] - 0.5 * before).max()) < 1e-6


def test_a_module_that_keeps_a_value_of_the_step_is_named() -> None:
    class Keeps(Line):
        def forward(self, x: Any) -> Any:
            self.last = self.fc(x)
            return self.last

    model = Keeps()
    with pytest.raises(ModelError, match=r"Keeps\.last keeps a value of the step .*register_buffer"):
        nn.TrainStep(model, F.mse_loss, optim.SGD())(np.ones((2, 3)), np.zeros((2, 3)))
    assert model.last is None


def test_a_buffer_that_forward_assigns_is_carried_from_step_to_step() -> None:
    class Counts(Line):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", np.zeros(()))

        def forward(self, x: Any) -> Any:
            self.seen: Any = self.seen + 1.0
            return self.fc(x)

    step = nn.TrainStep(Counts(), F.mse_loss, optim.SGD())
    for _ in range(3):
        step(np.ones((2, 3)), np.zeros((2, 3)))
    assert float(step.model.seen) == 3


def test_a_weight_that_is_read_while_a_step_is_planned_is_refused() -> None:
    class Reads(Line):
        def forward(self, x: Any) -> Any:
            return self.fc(x) / max(1.0, float(self.fc.weight[0, 0]))

    with pytest.raises(UnsupportedError, match="looks at the value"):
        nn.TrainStep(Reads(), F.mse_loss, optim.SGD())(np.ones((2, 3)), np.zeros((2, 3)))


def test_a_copy_of_a_parameter_is_unchanged_by_later_writes() -> None:
    line = Line()
    before = line.fc.weight.copy()
    line.fc.weight[0, 0] = 7.0
    assert float(before[0, 0]) != 7


def test_tied_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    def tied() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    model = tied()
    nn.save(model, tmp_path / "m.walle", np.ones((2, 3)))
    other = tied()
    nn.load(other, tmp_path / "m.walle")
    assert all(bool((other.state_dict()[name] == array).all()) for name, array in model.state_dict().items())


def test_parameters_may_have_any_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.Parameter(np.ones(3))
            self.count = nn.Parameter(np.ones(3))

        def forward(self, x: Any) -> Any:
            return x * self.loss + self.count

    step = nn.TrainStep(Named(), F.mse_loss, optim.SGD(lr=0.1))
    losses = [float(step(np.ones((2, 3)), np.zeros((2, 3)))) for _ in range(2)]
    assert losses[0] == 4
    assert losses[1] < 4


def test_labels_do_not_count_from_the_end_and_certain_probabilities_train() -> None:
    with pytest.raises(ShapeError, match="index"):
        F.cross_entropy(np.zeros((2, 3)), np.asarray([0, -1]))
    with pytest.raises(ShapeError, match="index"):
        F.embedding(np.asarray([-1]), np.ones((3, 2)))
    [gradient] = nn.grad(lambda p: F.binary_cross_entropy(p, np.asarray([1.0, 0.0, 1.0, 0.5])))(
        np.asarray([1.0, 0.0, 0.0, 0.5])
    )
    assert np.isfinite(gradient).all()


class _Inverted(nn.Module):
    """Inverted residuals, whose depthwise convolutions read normalised and limited values."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(3, 20, 1, bias=False), nn.Conv2d(20, 4, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(20) for _ in range(3)])
        self.steps = nn.ModuleList([nn.Conv2d(20, 20, 3, stride, 1, groups=20, bias=False) for stride in (1, 2)])

    def forward(self, x: Any) -> Any:
        x = F.relu6(self.norms[0](self.wide(x)))
        for norm, layer in zip(list(self.norms)[1:], self.steps, strict=True):
            x = F.relu6(norm(layer(x)))
        return self.narrow(x).mean((2, 3))


@pytest.mark.parametrize("backend", ["auto", "scalar"])
def test_depthwise_layers_learn_the_same_bits_with_any_number_of_threads(backend: str) -> None:
    rng = np.random.default_rng(3)
    x = np.asarray(rng.standard_normal((3, 3, 13, 10)), "float32")
    y = np.asarray(rng.standard_normal((3, 4)), "float32")
    found = []
    for threads in (1, 2, 3):
        nn.manual_seed(3)
        model = _Inverted()
        step = nn.TrainStep(model, F.mse_loss, optim.SGD(lr=0.1), threads=threads, backend=backend)
        losses = [float(step(x, y)) for _ in range(4)]
        found.append((losses, {name: value.tobytes() for name, value in model.state_dict().items()}))
    assert found[1:] == found[:1] * 2
    assert found[0][0][-1] < found[0][0][0]
    assert [op.algorithm for op in step.plan().ops].count("normalised lanes") == 4
    assert "Gate" not in {op.op for op in step.plan().ops}


def test_the_gate_of_a_normalisation_of_single_elements_is_that_of_its_result() -> None:
    """Half of the results are exactly 0 by the two roundings of a row, and not by the one of a plane."""
    random, channels = numpy.random.default_rng(1), 256
    model = nn.Sequential(nn.BatchNorm1d(channels), nn.ReLU())
    value = random.uniform(0.5, 2, channels).astype("float32")
    x = numpy.stack([value, -value])
    variance = (value.astype("float64") ** 2).astype("float32")
    bias = -(1 / numpy.sqrt(variance.astype("float64") + 1e-5)).astype("float32") * value
    model.load_state_dict({**model.state_dict(), "0.bias": np.asarray(bias)})
    step = nn.TrainStep(model, lambda y, factors: (y * factors).sum(), optim.SGD(1.0))
    assert float(step(np.asarray(x), np.ones((2, channels), "float32"))) == 0
    assert numpy.array_equal(numpy.asarray(model.state_dict()["0.bias"]), bias)


_SCHEDULES: dict[str, Any] = {
    "StepLR": lambda optimizer: optim.StepLR(optimizer, 2, 0.5),
    "CosineLR": lambda optimizer: optim.CosineLR(optimizer, T_max=9),
    "LinearWarmup": lambda optimizer: optim.LinearWarmup(optimizer, 5),
    "warm-up and cosine": lambda optimizer: optim.SequentialLR(
        optimizer, [optim.LinearWarmup(optimizer, 3), optim.CosineLR(optimizer, T_max=6)], [3]
    ),
}


@pytest.mark.parametrize("resumes_first", [True, False])
@pytest.mark.parametrize("name", _SCHEDULES)
def test_a_schedule_continues_after_a_resume_as_without_it(tmp_path: Path, name: str, *, resumes_first: bool) -> None:
    random = np.random.default_rng(8)
    x, y = (random.standard_normal((4, 3)).astype("float32") for _ in range(2))

    def begin() -> tuple[nn.TrainStep, Any]:
        nn.manual_seed(8)
        step = nn.TrainStep(Line(), F.mse_loss, optim.SGD(lr=0.3, momentum=0.9))
        return step, _SCHEDULES[name](step.optimizer)

    def train(step: nn.TrainStep, schedule: Any, count: int) -> list[float]:
        rates = []
        for _ in range(count):
            step(x, y)
            schedule.step()
            rates.append(step.optimizer.lr)
        return rates

    whole, schedule = begin()
    expected = train(whole, schedule, 8)
    first, schedule = begin()
    rates = train(first, schedule, 4)
    nn.checkpoint(first, tmp_path / "training.walle", position=4)
    kept = schedule.state_dict()
    second, schedule = begin()
    if resumes_first:
        assert nn.resume(second, tmp_path / "training.walle") == 4
        schedule.load_state_dict(kept)
    else:
        schedule.load_state_dict(kept)
        assert nn.resume(second, tmp_path / "training.walle") == 4
    assert rates + train(second, schedule, 4) == expected
    assert len(set(expected)) > 2
    for key, array in whole.model.state_dict().items():
        assert second.model.state_dict()[key].tobytes() == array.tobytes(), key

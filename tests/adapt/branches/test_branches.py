"""A model with branches: where it is split, its one file, and runs that switch."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.adapt.networks import Recurrent, Residual, network
from walle import nn, np, optim
from walle.adapt.branches.build import Branched, BranchSettings, make_branches
from walle.adapt.branches.features import features_of
from walle.adapt.branches.file import read_branches
from walle.adapt.branches.monitor import Budget
from walle.adapt.branches.plan import plan_branches
from walle.adapt.branches.session import BranchSession
from walle.adapt.branches.training import Joined, distil, resized
from walle.adapt.branches.widths import factors_of, plan_widths
from walle.adapt.costs.formula import CostFormula
from walle.adapt.dataset import Dataset
from walle.adapt.goals.config import Training
from walle.adapt.source import load_model
from walle.adapt.structure.network import find_structure
from walle.cli import app
from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.nn.export import add_nodes, inference_trace
from walle.engine_ext.session import Module
from walle.errors import ConfigError


def dataset(seed: int = 0, count: int = 64) -> Dataset:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, count)
    images = random.normal(size=(count, 1, 8, 8)).astype("float32")
    images[:, 0, 0, 0] = labels.astype("float32") * 3.0
    return Dataset((images,), labels)


TRAINING = Training(steps=6, batch=16, learning_rate=0.01)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Branched, nn.Module]:
    """Return five branches on a residual network, and the network."""
    model, _ = network("residual")
    path = tmp_path_factory.mktemp("branches") / "new" / "net.walle"
    return make_branches(model, dataset(), dataset(1), path, BranchSettings(5, 6.0, TRAINING)), model


@given(st.integers(2, 9))
def test_costs_go_from_a_third_to_three_times(count: int) -> None:
    factors = factors_of(count)
    assert len(factors) == count
    assert math.isclose(factors[0], 1 / 3)
    assert math.isclose(factors[-1], 3.0)
    assert (count % 2 == 1) == any(math.isclose(one, 1.0) for one in factors)


@given(st.integers(2, 7), st.floats(1.5, 16.0))
def test_planned_widths_meet_their_costs_and_the_limit(count: int, limit: float) -> None:
    structure = find_structure(Residual(), [dataset().inputs[0][:2]])
    formula = CostFormula(structure, None)
    whole = formula.whole()
    factors = factors_of(count)
    planned = plan_widths(structure, factors, limit * whole["parameters"])
    if planned is None:
        assert limit < 12.0
        return
    for factor, widths in zip(factors, planned, strict=True):
        assert factor / 1.201 <= formula.of(widths)["operations"] / whole["operations"] <= factor * 1.201
    assert sum(formula.of(one)["parameters"] for one in planned) <= limit * whole["parameters"]


def stacked() -> nn.Module:
    """Return convolutions of growing widths, of which the first have few parameters."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 8), (8, 8), (8, 8), (8, 24), (24, 48)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 4)).eval()


def test_a_plan_keeps_to_the_limit_of_parameters_and_names_the_least() -> None:
    images = dataset().inputs
    wide, narrow = (plan_branches(stacked(), images, factors_of(3), limit) for limit in (4.0, 0.5))
    assert narrow.added <= 0.5 < wide.added <= 4.0
    assert narrow.end is not None
    assert wide.range > narrow.range > 1.2
    with pytest.raises(ConfigError, match=r"3 branches add at least \d+% of the parameters; the limit is 1%"):
        plan_branches(stacked(), images, factors_of(3), 0.01)
    with pytest.raises(ConfigError, match="no part of Recurrent can be"):
        plan_branches(Recurrent(), network("recurrent")[1], factors_of(3), 9.0)


def test_a_narrower_branch_loses_the_channels_that_are_read_least() -> None:
    model, inputs = network("residual")
    unread = np.asarray([1, 2, 5, 6, 7, 9])
    model.second.weight.data[:, unread] = 0.0
    plan = plan_branches(model, inputs, factors_of(3), 6.0)
    features = features_of(plan.base, inputs)
    smaller = Joined(resized(plan, (6,), features, 0), plan.end)
    assert np.allclose(smaller(plan.base(*inputs)), model(*inputs), rtol=1e-4, atol=1e-5)
    wider = Joined(resized(plan, (20,), features, 0), plan.end)(plan.base(*inputs))
    assert np.allclose(wider, model(*inputs), atol=1.0)
    assert not np.allclose(wider, model(*inputs), atol=1e-3)


def test_distillation_leaves_the_end_and_brings_a_branch_closer_to_the_teacher() -> None:
    nn.manual_seed(2)
    model, data = stacked(), dataset()
    step = nn.TrainStep(model, nn.functional.cross_entropy, optim.Adam(lr=0.01))
    for _ in range(40):
        step(data.inputs[0], data.labels)
    plan = plan_branches(model, data.inputs, factors_of(3), 0.5)
    assert plan.end is not None
    features, teacher = plan.base(*data.inputs), model(*data.inputs)
    student = Joined(resized(plan, plan.widths[0], features[:2], 0), plan.end)
    random = np.random.default_rng(3)
    for one in student.middle.parameters():
        one.data = random.normal(0.0, 0.2, one.shape).astype("float32")
    end = [one.data.copy() for one in plan.end.parameters()]
    softmax = nn.functional.softmax

    def distance() -> float:
        return float(np.mean(np.square(softmax(student(features), -1) - softmax(teacher, -1))))

    before, steps = distance(), list[int]()
    training = Training(steps=60, learning_rate=0.01)
    distil(student, Dataset((features,), data.labels), teacher, training, 0, lambda: steps.append(1))
    assert len(steps) == 60
    assert distance() < 0.5 * before
    assert all(np.array_equal(one.data, old) for one, old in zip(plan.end.parameters(), end, strict=True))
    with pytest.raises(ConfigError, match="has no loss 'none'"):
        distil(student, data, teacher, Training(loss="none"), 0)


def test_branches_have_the_costs_that_are_said(made: tuple[Branched, nn.Module]) -> None:
    branched, model = made
    whole = CostFormula(find_structure(model, [dataset().inputs[0][:2]]), None).whole()["operations"]
    assert branched.operations == whole
    operations = [one.operations for one in branched.branches]
    assert operations == sorted(operations)
    assert operations[branched.own] == whole
    assert read_branches(branched.file) == list(branched.branches)


def test_the_file_has_the_base_once(made: tuple[Branched, nn.Module]) -> None:
    branched, model = made
    parameters = branched.parameters * (1 + branched.added)
    size = Path(branched.file).stat().st_size
    assert 4 * parameters <= size <= 4 * parameters + 64 * 200
    constants = {name: array for name, _, _, _, array in _core.Graph.open(branched.file).values() if array is not None}
    assert np.array_equal(constants["stem.0.weight"], dict(model.named_parameters())["stem.0.weight"].data)


def test_each_branch_gives_other_outputs_and_the_own_one_the_models(made: tuple[Branched, nn.Module]) -> None:
    branched, model = made
    images = dataset(1).inputs[0]
    session = Module(branched.file)
    outputs = [
        session.run({"x": images, "branch": np.asarray(at, "int64")})["output"] for at in range(len(branched.branches))
    ]
    assert np.allclose(outputs[branched.own], model(images), rtol=1e-4, atol=1e-4)
    assert all(not np.allclose(outputs[at], outputs[at + 1], atol=1e-3) for at in range(len(outputs) - 1))
    labels = dataset(1).labels
    for output, branch in zip(outputs, branched.branches, strict=True):
        assert float(np.mean((np.argmax(output, axis=1) == labels).astype("float32"))) == pytest.approx(branch.accuracy)
    alone = session.run({"x": images[:1], "branch": np.asarray(4, "int64")})["output"]
    assert np.allclose(alone, outputs[4][:1], rtol=1e-3, atol=1e-3)


class Clock:
    """A clock that shows as many seconds more at each look as the test says."""

    def __init__(self) -> None:
        self.now_s, self.step_s = 0.0, 0.001

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_a_session_switches_by_its_latency_and_gives_the_branchs_outputs(made: tuple[Branched, nn.Module]) -> None:
    branched, _ = made
    clock, images = Clock(), dataset(1).inputs[0][:2]
    session = BranchSession(branched.file, {"x": images}, Budget(0.0015), runs=3, clock=clock)
    assert session.branch == 4
    assert [need.latency_s for need in session.needs] == pytest.approx([0.001] * 5)
    expected = [session.run_branch(at, {"x": images})["output"] for at in range(5)]
    clock.step_s = 0.002  # all branches take as long by this clock: none meets the budget
    assert np.array_equal(session.run({"x": images})["output"], expected[4])
    assert (session.branch, session.switches) == (0, 1)
    clock.step_s = 0.001
    for _ in range(3):
        assert np.array_equal(session.run({"x": images})["output"], expected[0])
    assert session.branch == 4
    session.budget = Budget(1.0, 4 * branched.branches[1].parameters)
    assert (session.branch, session.switches) == (1, 3)
    assert np.array_equal(session.run({"x": images})["output"], expected[1])
    with pytest.raises(ModelError, match="branch 5; the model has 5"):
        session.run_branch(5, {"x": images})


def test_a_session_looks_at_the_memory_that_is_left(made: tuple[Branched, nn.Module]) -> None:
    branched, _ = made
    left = [1e9]
    images = dataset(1).inputs[0][:2]
    session = BranchSession(branched.file, {"x": images}, Budget(), memory=lambda: left[0], clock=Clock())
    session.run({"x": images})
    assert session.branch == 4
    left[0] = 4 * branched.branches[2].parameters
    session.run({"x": images})
    assert session.branch == 2


def test_a_model_of_a_file_keeps_the_names_of_its_inputs_and_outputs(tmp_path: Path) -> None:
    model, inputs = network("residual")
    graph = GraphBuilder("file")
    graph.output("scores", add_nodes(graph, inference_trace(model, inputs), [graph.input("image", (None, 1, 8, 8))])[0])
    graph.save(str(tmp_path / "net.walle"))
    settings = BranchSettings(3, 6.0, Training(steps=1, batch=16))
    read = load_model("net.walle", tmp_path)
    made = make_branches(read, dataset(), dataset(1), tmp_path / "branches.walle", settings)
    images = dataset(1).inputs[0]
    outputs = Module(made.file).run({"image": images, "branch": np.asarray(made.own, "int64")})
    assert list(outputs) == ["scores"]
    assert np.allclose(outputs["scores"], model(images), rtol=1e-4, atol=1e-4)


def test_a_file_without_branches_is_refused(tmp_path: Path) -> None:
    model, inputs = network("residual")
    nn.to_walle(model, tmp_path / "net.walle", *inputs)
    with pytest.raises(ModelError, match="has no branches"):
        read_branches(tmp_path / "net.walle")


class Named(nn.Module):
    """A network whose input has the name that chooses branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, branch: Any) -> Any:
        hidden = nn.functional.relu(self.stem(branch.reshape(branch.shape[0], -1)))
        return self.second(nn.functional.relu(self.first(hidden)))


def test_an_input_of_the_name_branch_and_wrong_counts_are_refused(tmp_path: Path) -> None:
    settings = BranchSettings(3, 5.0, Training(steps=1))
    with pytest.raises(ModelError, match="has an input 'branch'"):
        make_branches(Named(), dataset(), dataset(), tmp_path / "net.walle", settings)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"net\.walle: .*file"):
        make_branches(Residual(), dataset(), dataset(), tmp_path / "file" / "net.walle", BranchSettings(),
                      lambda _done, _steps: pytest.fail("it trains"))  # fmt: skip
    with pytest.raises(ConfigError, match="1 branches; 2 to 9 are made"):
        make_branches(Named(), dataset(), dataset(), tmp_path / "net.walle", BranchSettings(1))


NET = """
from tests.adapt.branches.test_branches import dataset
from tests.adapt.networks import network

def make():
    return network("residual")[0]

def data():
    one = dataset()
    return one.inputs[0], one.labels
"""


def test_the_command_writes_the_file_that_make_branches_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    line = "adapt branches net.py:make --data net.py:data --test net.py:data --added 4 --steps 2 --batch 16 -o b.walle"
    shown = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert shown.exit_code == 0
    assert "1 (the model)" in shown.output
    first = (tmp_path / "b.walle").read_bytes()
    shown = CliRunner().invoke(app, [*line.split(), "--json"], catch_exceptions=False)
    document = json.loads(shown.output)
    assert [asdict(one) for one in read_branches("b.walle")] == document["branches"]
    assert document["own"] == 1
    assert (tmp_path / "b.walle").read_bytes() == first  # the same seed

"""The contract of adaptation algorithms: goals met, fewer parameters, states, the seed's bits, refusals by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.adapt.networks import network
from walle import nn, np
from walle.adapt.adaptation import Progress, adapt
from walle.adapt.algorithms import ALGORITHMS, find_algorithm
from walle.adapt.collective.schedule import LossSchedule
from walle.adapt.costs.hardware import Hardware
from walle.adapt.dataset import Dataset
from walle.adapt.executor import AdaptationExecutor, Settings
from walle.adapt.goals.config import Adaptation, Training
from walle.adapt.goals.goal import Goal
from walle.errors import ConfigError

NET = """
from tests.adapt.networks import Residual
from walle import nn, np

def make():
    nn.manual_seed(1)
    return Residual()

def data(seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, 64)
    images = random.normal(size=(64, 1, 8, 8)).astype("float32")
    images[:, 0, 0, 0] = labels.astype("float32") * 3.0
    return images, labels
"""
QUICK: dict[str, dict[str, Any]] = {
    "morphnet": {"iteration_steps": 4, "init_reg_strength": 4.0},
    "chamnet": {"samples": 4, "sample_steps": 2, "population": 8, "generations": 3, "finalists": 2},
    "slimmable": {"shared_steps": 6, "slice": 0.4},
}
GOALS = (
    Goal("half", {"operations": 45e3}),
    Goal("small", {"operations": 20e3, "parameters": 900}),
    Goal("narrow", {"parameters": 500}),
    Goal("quick", {"latency": 2.5e-6}),
)


def settings_of(name: str, kind: str = "residual", **changes: Any) -> Settings:
    model, inputs = network(kind)
    random = np.random.default_rng(0)
    places = random.integers(0, 5, 64)
    data = Dataset(tuple(one[places] for one in inputs), (places % 4).astype("uint8"))
    training = Training(steps=8, batch=16, learning_rate=0.01)
    given = Settings(model, data, data, Hardware(50e9, 8e9), training, QUICK[name])
    return dataclasses.replace(given, **changes)


def executor_of(name: str, settings: Settings) -> AdaptationExecutor:
    executor = find_algorithm(name, Path())
    executor.init(settings)
    return executor


def reach(executor: AdaptationExecutor, goal: Goal) -> nn.Module:
    """Return the model of a goal, as the loop over goals makes it."""
    schedule = LossSchedule(goal, executor.costs())
    steps = 0
    for _ in range(200):
        if goal.is_met_by(executor.costs()):
            break
        executor.adjust(executor.costs(), goal, schedule.update(executor.costs(), steps))
        steps += executor.iterate()
    return executor.fitted(goal, 4)[0]


@pytest.mark.parametrize("name", ALGORITHMS)
class TestExecutor:
    @pytest.mark.parametrize("kind", ["residual", "depthwise", "attention", "words"])
    def test_models_of_a_path_meet_their_goals_with_fewer_parameters(self, name: str, kind: str) -> None:
        settings = settings_of(name, kind)
        executor = executor_of(name, settings)
        whole, least = executor.formula.whole(), executor.formula.least()
        counted = []
        for share in (0.6, 0.2):
            budgets = {key: least[key] + share * (whole[key] - least[key]) for key in ("operations", "parameters")}
            model = reach(executor, Goal(f"{share}", budgets))
            counted.append(sum(one.size for one in model.parameters()))
            found = executor.measure(model)
            assert all(found[key] <= budget for key, budget in budgets.items())
            assert counted[-1] == found["parameters"]
            assert model(*(one[:3] for one in settings.test.inputs)).shape == (3, 4)
        assert counted[1] < counted[0] < sum(one.size for one in settings.model.parameters())

    def test_a_state_leads_to_the_same_models(self, name: str) -> None:
        settings = settings_of(name)
        executor = executor_of(name, settings)
        first = executor.state()
        half = reach(executor, GOALS[0])
        kept = {key: np.asarray(one).copy() for key, one in executor.state().items()}
        small = reach(executor, GOALS[1])
        executor.restore(first)
        narrow = reach(executor, GOALS[2])

        other = executor_of(name, settings)
        other.restore(kept)
        assert_equal(reach(other, GOALS[1]), small)
        other.restore(first)
        assert_equal(reach(other, GOALS[2]), narrow)
        other.restore(first)
        assert_equal(reach(other, GOALS[0]), half)

    @pytest.mark.night
    def test_a_resumed_run_makes_the_same_files(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "net.py").write_text(NET)
        job = Adaptation(
            "net.py:make", "net.py:data", "net.py:data", name, QUICK[name], GOALS, Hardware(50e9, 8e9),
            Training(steps=8, batch=16, learning_rate=0.01), folder=tmp_path,
        )  # fmt: skip
        whole = adapt(job, tmp_path / "whole")
        for done in (1, 2, 3):

            def stop(progress: Progress, done: int = done) -> None:
                if progress.done == done:
                    raise KeyboardInterrupt

            folder = tmp_path / f"{done}"
            with pytest.raises(KeyboardInterrupt):
                adapt(job, folder, on_progress=stop)
            resumed = adapt(job, folder, resume=True)
            assert [one.costs for one in resumed.fitted] == [one.costs for one in whole.fitted]
            for one in whole.fitted:
                assert one.meets_budgets
                assert (folder / one.file).read_bytes() == (tmp_path / "whole" / one.file).read_bytes()

    def test_the_seed_determines_the_bits(self, name: str) -> None:
        first, again, other = (
            reach(executor_of(name, settings_of(name, seed=seed)), GOALS[1]).state_dict() for seed in (3, 3, 4)
        )
        assert {key: one.tolist() for key, one in first.items()} == {key: one.tolist() for key, one in again.items()}
        assert first["dense.bias"].tolist() != other["dense.bias"].tolist()

    def test_unknown_and_wrong_options_are_refused(self, name: str) -> None:
        own = type(find_algorithm(name, Path())).__name__
        with pytest.raises(ConfigError, match=f"{own} has no option 'depth'; it takes "):
            executor_of(name, settings_of(name, options={"depth": 3}))
        for option in QUICK[name]:
            for wrong in (0, -1, "4", True):
                with pytest.raises(ConfigError, match=f"{own}'s option {option} is .*; give a number above 0"):
                    executor_of(name, settings_of(name, options={option: wrong}))

    def test_a_model_without_channels_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match="nothing can be removed from Recurrent: "):
            executor_of(name, settings_of(name, "recurrent"))

    @pytest.mark.night
    def test_digits_are_read_nearly_as_well_as_by_the_others(self, name: str, tmp_path: Path) -> None:
        from benchmarks.mistify_parts import digits

        (tmp_path / "net.py").write_text(
            "from benchmarks.mistify_parts.digits import *\n\ndef make():\n    return trained(8, 200)\n"
        )
        goals = (Goal("large", {"operations": 60e3}), Goal("small", {"operations": 20e3}))
        job = Adaptation(
            "net.py:make", "net.py:train", "net.py:test", name, {}, goals, None,
            Training(steps=200, learning_rate=2e-3), folder=tmp_path,
        )  # fmt: skip
        own = {one.goal: one.costs["accuracy"] for one in adapt(job, tmp_path / "own").fitted}
        other = adapt(dataclasses.replace(job, algorithm="morphnet"), tmp_path / "morphnet")
        assert len(digits.test()[1]) == 360
        for one in other.fitted:
            assert own[one.goal] > one.costs["accuracy"] - 0.04


@pytest.mark.parametrize("name", ["chamnet", "slimmable"])
def test_other_losses_than_cross_entropy_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="it takes the loss cross_entropy, not mse_loss"):
        executor_of(name, settings_of(name, training=Training("mse_loss")))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chamnet", {"samples": 3}, "ChamNet's option samples is 3; it takes 4 or more"),
        ("chamnet", {"crossover_rate": 2}, "ChamNet's option crossover_rate is 2; it is a part, up to 1"),
        ("chamnet", {"mutation": 1.1}, "ChamNet's option mutation is 1.1; it is a part, up to 1"),
        ("slimmable", {"narrowest": 1.5}, "Slimmable's option narrowest is 1.5; it is a part, below 1"),
        ("slimmable", {"slice": 1}, "Slimmable's option slice is 1; it is a part, below 1"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        executor_of(name, settings_of(name, options=options))


def test_an_evolution_changes_by_its_options() -> None:
    def tried(**options: float) -> list[tuple[int, ...]]:
        executor: Any = executor_of("chamnet", settings_of("chamnet", options=QUICK["chamnet"] | options))
        executor.adjust(executor.costs(), GOALS[0], {"operations": 1.0})
        found: list[tuple[int, ...]] = executor._evolved(lambda points: -points.sum(-1))
        return found

    usual = tried()
    assert len(set(usual)) > 1
    assert tried(mutation=1e-9) == usual[:1]  # only the widths in the proportions of the model
    assert tried(crossover_rate=1e-9) != usual


@pytest.mark.parametrize(("name", "shared", "own"), [("chamnet", 8, (3, 6)), ("slimmable", 6, (0, 0))])
def test_goals_that_share_a_start_are_trained_for_once(name: str, shared: int, own: tuple[int, int]) -> None:
    executor = executor_of(name, settings_of(name))
    first = executor.state()
    taken = []
    for goal in (GOALS[0], GOALS[2]):
        executor.restore(first)
        executor.adjust(executor.costs(), goal, dict.fromkeys(goal.budgets, 1.0))
        taken.append(0)
        while not goal.is_met_by(executor.costs()):
            taken[-1] += executor.iterate()
    assert taken == [shared + own[0], own[1]]  # a deeper cut compares candidates after longer training


@pytest.mark.parametrize("name", ["chamnet", "slimmable"])
def test_channels_without_influence_are_cut_first(name: str) -> None:
    settings = settings_of(name)
    dead = [1, 4, 7, 10]
    weight = dict(settings.model.named_parameters())["second.weight"]
    weight.data = weight.data.copy()
    weight.data[:, dead] = 0.0
    executor: Any = executor_of(name, settings)
    (group,) = (at for at, one in enumerate(executor.structure.groups) if ("second.weight", 1) in one.consumers)
    assert sorted(executor.ranked()[group][-len(dead) :]) == dead


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert np.array_equal(array, theirs[name]), name

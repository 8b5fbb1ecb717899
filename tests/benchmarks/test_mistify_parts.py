"""Parts of the figures of adaptation that do not train: files of goals, even cuts, and summaries of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.mistify_parts import convergence, docstrings, effort, front
from tests.adapt.networks import network
from walle import np
from walle.adapt.algorithms import find_algorithm
from walle.adapt.dataset import Dataset
from walle.adapt.executor import Settings
from walle.adapt.goals.config import Training, parse_config
from walle.adapt.goals.goal import Goal

EVEN = "even.py:Even"


@pytest.mark.parametrize("goals", effort.GOALS)
def test_files_of_goals_have_the_lines_of_the_table(goals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "whole_costs", lambda _name: {"operations": 763e3})
    for ranges, lines in ((True, 5), (False, goals + 4)):
        text = effort.file_of(goals, ranges=ranges)
        assert len(text.splitlines()) == lines
        (found,) = parse_config(text, Path(), "goals", is_json=False)
        assert len({goal.budgets["operations"] for goal in found.goals}) == goals


def test_an_even_cut_keeps_the_same_part_of_each_group_and_meets_the_goal() -> None:
    model, inputs = network("residual")
    data = Dataset(tuple(inputs), np.asarray([0, 1, 2, 3, 0]))
    executor: Any = find_algorithm(EVEN, Path(front.__file__).parent)
    executor.init(Settings(model, data, data, None, Training(steps=2, batch=5)))
    whole = executor.costs()
    goal = Goal("half", {"operations": whole["operations"] / 2})
    executor.adjust(whole, goal, {"operations": 1.0})
    assert executor.iterate() == 0
    widths = [len(one) for one in executor.channels()]
    shares = [width / group.count for width, group in zip(widths, executor.structure.groups, strict=True)]
    assert max(shares) - min(shares) < 0.2
    fitted, _ = executor.fitted(goal, 2)
    assert whole["operations"] / 4 < executor.measure(fitted)["operations"] <= whole["operations"] / 2


def test_operations_saved_are_those_of_the_smallest_goal_that_is_nearly_as_accurate() -> None:
    one = {
        "cost": "operations",
        "whole": {"operations": 100.0, "accuracy": 0.9},
        "budgets": [5.0, 20.0, 50.0],
        "accuracies": {"ours": [[0.7], [0.86, 0.88], [0.9]], front.EVEN: [[0.6], [0.87], [0.92]]},
    }
    assert front.saved(one, "ours") == 5.0
    assert front.differences(one, "ours") == pytest.approx([0.1, 0.0, -0.02])


def test_steps_are_those_of_the_first_evaluation_at_the_level() -> None:
    assert convergence._reached([0.1, 0.5, 0.4, 0.6], 0.5, 6) == 12
    assert convergence._reached([0.1], 0.5, 6) is None


def test_curves_of_training_that_ended_before_keep_their_last_value() -> None:
    assert convergence._smoothed([[0.2, 0.4], [0.4]]) == pytest.approx([0.3, 0.35])


def test_texts_that_are_tested_are_apart_from_those_that_are_learnt() -> None:
    (words, labels), (tested, _) = docstrings.train(), docstrings.test()
    assert words.shape[1] == tested.shape[1] == 24
    assert set(labels.tolist()) == set(range(len(docstrings.PACKAGES)))
    assert len(words) > 2 * len(tested) > 200

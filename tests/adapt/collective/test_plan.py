"""Passes over goals, the weights of constraints, and goals that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.adapt.collective.checks import problems_of
from walle.adapt.collective.plan import METHODS, Stop, plan_stops
from walle.adapt.collective.schedule import LossSchedule
from walle.adapt.goals.goal import Goal, budget_rows

WHOLE = {"operations": 10.0, "parameters": 10.0}
ROWS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=12)


def goals_of(rows: list[tuple[int, int]]) -> list[Goal]:
    return [Goal(str(at), {"operations": float(a), "parameters": float(b)}) for at, (a, b) in enumerate(rows)]


@given(rows=ROWS, method=st.sampled_from(METHODS))
def test_each_goal_comes_once_after_the_goal_that_it_continues(rows: list[tuple[int, int]], method: str) -> None:
    goals = goals_of(rows)
    done: set[int] = set()
    for stops in plan_stops(goals, WHOLE, method):
        for stop in stops:
            assert stop.goal not in done
            if stop.before is not None:
                assert stop.before in done
                before, after = goals[stop.before].budgets, goals[stop.goal].budgets
                assert all(after[name] <= before[name] for name in after)
            done.add(stop.goal)
    assert done == set(range(len(goals)))


@given(rows=ROWS)
def test_chains_take_at_most_the_passes_of_the_tree(rows: list[tuple[int, int]]) -> None:
    goals = goals_of(rows)
    assert len(plan_stops(goals, WHOLE, "chains")) <= len(plan_stops(goals, WHOLE, "tree")) <= len(goals)


def test_goals_that_differ_in_one_constraint_are_one_pass() -> None:
    goals = goals_of([(1, 3), (3, 3), (2, 3)])
    assert plan_stops(goals, WHOLE) == [[Stop(1, None), Stop(2, 1), Stop(0, 2)]]


def test_a_goal_without_a_budget_is_looser_in_it() -> None:
    goals = [Goal("tight", {"operations": 1.0, "parameters": 2.0}), Goal("loose", {"operations": 3.0})]
    assert budget_rows(goals, WHOLE) == [[0.1, 0.2], [0.3, float("inf")]]
    assert plan_stops(goals, WHOLE, "tree") == [[Stop(1, None), Stop(0, 1)]]


def test_weights_are_the_shares_of_the_ways_that_are_left() -> None:
    goal = Goal("it", {"operations": 2.0, "parameters": 4.0})
    schedule = LossSchedule(goal, {"operations": 10.0, "parameters": 8.0}, period_steps=200)
    assert schedule.weights == {"operations": 0.5, "parameters": 0.5}
    now = {"operations": 4.0, "parameters": 7.0}  # a quarter and three quarters of the ways are left
    assert schedule.update(now, 199) == {"operations": 0.5, "parameters": 0.5}
    assert schedule.update(now, 200) == pytest.approx({"operations": 0.25, "parameters": 0.75})
    assert schedule.update({"operations": 1.0, "parameters": 5.0}, 400) == {"operations": 0.0, "parameters": 1.0}
    assert schedule.update({"operations": 1.0, "parameters": 1.0}, 600) == {"operations": 0.0, "parameters": 1.0}


def test_goals_that_cannot_be_met_are_named() -> None:
    least = {"operations": 2.0, "parameters": 2.0}
    goals = [
        Goal("tiny", {"operations": 1.0}),
        Goal("exact", {"operations": 3.0}, accuracy=0.95),
        Goal("other", {"operations": 5.0}),
        Goal("again", {"operations": 5.0}),
    ]
    assert problems_of(goals, least, 0.9) == [
        "goal 'tiny': operations 1 is below 2 FLOP, which the model costs with one channel in each layer",
        "goal 'exact': accuracy 0.95 is above that of the whole model, 0.9",
        "goals 'other' and 'again' have the same budgets",
    ]
    assert problems_of([Goal("it", {"operations": 3.0}, 0.9)], least, 0.9) == []

"""The order of goals: nearest looser goals, and the fewest chains."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.adapt import GoalTree
from walle.engine_ext.errors import ShapeError

NUMBERS = st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, math.inf, -math.inf])
GOALS = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(NUMBERS, min_size=width, max_size=width), min_size=1, max_size=9)
)


def looser(one: list[float], other: list[float]) -> bool:
    return all(a > b for a, b in zip(one, other, strict=True))


@given(goals=GOALS)
def test_a_parent_is_an_immediate_looser_goal(goals: list[list[float]]) -> None:
    tree = GoalTree(goals)
    for index, goal in enumerate(goals):
        above = [at for at, one in enumerate(goals) if looser(one, goal)]
        immediate = [at for at in above if not any(looser(goals[at], goals[other]) for other in above)]
        parent = tree.parent(index)
        assert (parent is None) == (not immediate)
        assert parent is None or parent in immediate


@given(goals=GOALS, split=st.integers(1, 8))
def test_goals_that_come_later_make_the_same_tree(goals: list[list[float]], split: int) -> None:
    tree, grown = GoalTree(goals), GoalTree(goals[:split])
    assert [grown.insert(goal) for goal in goals[split:]] == list(range(split, len(goals)))
    assert [grown.parent(at) for at in range(len(goals))] == [tree.parent(at) for at in range(len(goals))]


@given(goals=GOALS)
def test_paths_go_from_roots_to_leaves(goals: list[list[float]]) -> None:
    tree = GoalTree(goals)
    paths = tree.paths()
    parents = {tree.parent(at) for at in range(len(goals))}
    assert {path[-1] for path in paths} == set(range(len(goals))) - parents
    for path in paths:
        assert tree.parent(path[0]) is None
        assert [tree.parent(at) for at in path[1:]] == path[:-1]


@given(goals=GOALS)
def test_chains_are_the_fewest(goals: list[list[float]]) -> None:
    chains = GoalTree(goals).chains()
    assert sorted(at for chain in chains for at in chain) == list(range(len(goals)))
    for chain in chains:
        assert all(looser(goals[a], goals[b]) for a, b in pairwise(chain))
    # Dilworth: as many as the largest set of goals of which none is looser than another.
    largest = max(
        size
        for size in range(1, len(goals) + 1)
        for some in combinations(goals, size)
        if not any(looser(a, b) or looser(b, a) for a, b in combinations(some, 2))
    )
    assert len(chains) == largest


def test_budgets_whose_sums_are_rounded_are_ordered() -> None:
    tree = GoalTree([[1e18, 1.0], [math.nextafter(1e18, 2e18), 2.0]])
    assert [tree.parent(0), tree.parent(1)] == [1, None]


def test_arrays_of_numpy_are_taken() -> None:
    assert GoalTree(numpy.array([[1, 2], [3, 4]])).parent(0) == 1


@pytest.mark.parametrize(
    ("goals", "message"),
    [([1.0, 2.0], "shape"), ([[]], "shape"), ([[math.nan, 1.0]], "a budget is not a number")],
)
def test_budgets_that_are_none_are_refused(goals: list[float], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        GoalTree(goals)


def test_wrong_goals_are_refused() -> None:
    tree = GoalTree([[1.0, 2.0]])
    with pytest.raises(ShapeError, match="a goal of 3 constraints; the others have 2"):
        tree.insert([1.0, 2.0, 3.0])
    for index in (-1, 1):
        with pytest.raises(IndexError, match=f"no goal {index}"):
            tree.parent(index)

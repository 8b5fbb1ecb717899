"""The order in which goals are adapted, and from which earlier goal each goes on (§4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from walle.adapt.goals.goal import Goal, budget_rows
from walle.adapt.goals.tree import GoalTree
from walle.engine_ext import _core

METHODS = ("chains", "tree", "alone")


class Stop(NamedTuple):
    """A goal, and the goal whose model it goes on from; None for the model that was given."""

    goal: int
    before: int | None


def plan_stops(goals: Sequence[Goal], whole: Mapping[str, float], method: str = "chains") -> list[list[Stop]]:
    """Return passes over the goals, each goal once: "tree" follows the ways of the tree of nearest looser goals,
    "chains" the fewest chains, and "alone" adapts each goal from the model.

    A chain begins at the nearest looser goal that has been adapted before. Equal budgets count as looser here: goals of
    one constraint that differ, and others that do not, make one chain.
    """
    if method == "alone":
        return [[Stop(at, None)] for at in range(len(goals))]
    rows = _ordered_rows(budget_rows(goals, whole))
    if method == "tree":
        tree = GoalTree(rows)
        return _passes_of_tree([tree.parent(at) for at in range(len(goals))])
    order = _core.GoalOrder(rows)
    chains = sorted(order.chains(), key=lambda chain: -sum(rows[chain[0]]))
    done: list[int] = []
    passes = []
    for chain in chains:
        before = _nearest(rows, chain[0], done)
        stops = []
        for goal in chain:
            stops.append(Stop(goal, before))
            before = goal
        done += chain
        passes.append(stops)
    return passes


def _ordered_rows(rows: list[list[float]]) -> list[list[float]]:
    """Return rows that are strictly ordered where the given ones are ordered but for equal numbers.

    A number becomes its place among all of its column, twice, and one more for each goal that is as loose in it and
    looser in another column, which comes later in the order of all columns.
    """
    columns = []
    for at in range(len(rows[0]) if rows else 0):
        order = sorted(range(len(rows)), key=lambda goal: (rows[goal][at], *rows[goal], goal))
        places = [0.0] * len(rows)
        for place, goal in enumerate(order):
            places[goal] = float(place)
        columns.append(places)
    return [[column[goal] for column in columns] for goal in range(len(rows))]


def _nearest(rows: list[list[float]], goal: int, done: list[int]) -> int | None:
    looser = [one for one in done if all(a > b for a, b in zip(rows[one], rows[goal], strict=True))]
    return min(looser, key=lambda one: sum(rows[one]), default=None)


def _passes_of_tree(parents: Sequence[int | None]) -> list[list[Stop]]:
    """Return the tree depth first: a pass goes on as long as each goal is below the one before."""
    children: dict[int | None, list[int]] = {}
    for goal, parent in enumerate(parents):
        children.setdefault(parent, []).append(goal)
    passes: list[list[Stop]] = []
    waiting: list[tuple[int, int | None]] = [(goal, None) for goal in reversed(children.get(None, []))]
    last: int | None = None
    while waiting:
        goal, parent = waiting.pop()
        if not passes or parent is None or parent != last:
            passes.append([])
        passes[-1].append(Stop(goal, parent))
        waiting += [(child, goal) for child in reversed(children.get(goal, []))]
        last = goal
    return passes

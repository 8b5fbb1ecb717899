"""The tree of adaptation goals: each below an immediate looser one (§4.3, Fig. 4)."""

from __future__ import annotations

from typing import Any

from walle.engine_ext import _core

__all__ = ["GoalTree"]


class GoalTree:
    """Goals as rows of budgets, float64 (goals, constraints), each below an immediate looser goal.

    One goal is looser than another if it is larger in every constraint. Of several immediate looser goals the parent
    is that with the smallest sum of budgets: give constraints in like units, such as shares of the model's own costs.

    Raises:
        ShapeError: the array is not of that shape, or has a number that is not one.
    """

    def __init__(self, goals: Any) -> None:
        self._order = _core.GoalOrder(goals)

    def __len__(self) -> int:
        return len(self._order)

    def parent(self, index: int) -> int | None:
        """Return the index of an immediate looser goal; None for a root.

        Raises:
            IndexError: there is no goal of that index.
        """
        if index < 0:
            raise IndexError(f"no goal {index}")
        found = self._order.parent(index)
        return None if found < 0 else found

    def insert(self, goal: Any) -> int:
        """Add a goal, one number for each constraint, and return its index; the others keep theirs.

        Raises:
            ShapeError: it has another number of constraints.
        """
        return self._order.insert(goal)

    def paths(self) -> list[list[int]]:
        """Return the ways from each root to each leaf, the loosest goal first; a goal may be on several."""
        return self._order.paths()

    def chains(self) -> list[list[int]]:
        """Return the fewest ways that have each goal once, the loosest first, each goal looser than the next.

        The paper takes the tree's ways, for the best mapping to a tree is NP-hard; the fewest chains of a partial
        order are a maximum matching (Dilworth), which is found in polynomial time.
        """
        return self._order.chains()

"""A model with branches at run time: runs are timed, and the monitor chooses the branch of the next (§6)."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from walle import np
from walle.adapt.branches.file import BRANCH, Branch, read_branches
from walle.adapt.branches.monitor import Budget, Monitor, Need
from walle.adapt.costs.formula import WEIGHT_BYTES
from walle.engine_ext.errors import ModelError
from walle.engine_ext.session import Module

_TIMED_RUNS = 5


class BranchSession:
    """A file of `walle adapt branches`, of which each run takes the branch that the budget allows.

    Opening runs each branch a few times on `example`, inputs by name in the shapes of later runs: their latencies are
    what the monitor expects, and no later run plans or sets up anything. To switch is another value of an input.

    `memory` gives the bytes that a run can have now; a branch needs those of the weights that it reads. Not
    thread-safe.

    Raises:
        ModelError: the file is broken, or has no branches.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        example: Mapping[str, Any],
        budget: Budget,
        *,
        backend: str = "auto",
        threads: int = 1,
        runs: int = 8,
        margin: float = 0.1,
        hold_s: float = 10.0,
        memory: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.branches: list[Branch] = read_branches(path)
        self._module = Module(path, backend=backend, threads=threads)
        self._numbers = [np.asarray(at, "int64") for at in range(len(self.branches))]
        self._memory, self._clock = memory, clock
        self.switches = 0
        needs = []
        for number, branch in enumerate(self.branches):
            self.run_branch(number, example)  # plans
            times = [self._timed(number, example)[1] for _ in range(_TIMED_RUNS)]
            needs.append(Need(max(statistics.median(times), 1e-9), branch.parameters * WEIGHT_BYTES))
        self._monitor = Monitor(needs, budget, runs=runs, margin=margin, hold_s=hold_s)

    @property
    def branch(self) -> int:
        """The branch of the next run."""
        return self._monitor.branch

    @property
    def needs(self) -> tuple[Need, ...]:
        """Seconds of each branch, measured at opening, and bytes."""
        return self._monitor.needs

    @property
    def budget(self) -> Budget:
        """Limits that the next runs shall meet."""
        return self._monitor.budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self.switches += self._monitor.branch != self._monitor.change(budget)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of the branch at hand, and let the monitor choose the next; raises as Module.run."""
        before = self._monitor.branch
        outputs, latency_s = self._timed(before, inputs)
        memory_bytes = float("inf") if self._memory is None else self._memory()
        self.switches += before != self._monitor.observe(latency_s, self._clock(), memory_bytes)
        return outputs

    def run_branch(self, branch: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of a branch by its number, whatever the budget; raises as Module.run, and
        ModelError for a number that no branch has.
        """
        if not 0 <= branch < len(self._numbers):
            raise ModelError(f"branch {branch}; the model has {len(self._numbers)}, from 0")
        return self._module.run({**inputs, BRANCH: self._numbers[branch]})

    def _timed(self, branch: int, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        begin_s = self._clock()
        outputs = self.run_branch(branch, inputs)
        return outputs, self._clock() - begin_s

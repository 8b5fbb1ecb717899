"""Measured latency of models on the machine at hand: runs of one sample, and the steps of their plans one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from walle.engine_ext.session import Module, Session

_MOST_ROUNDS = 200
_LEAST_ROUNDS = 5
_ROUND_NS = 100_000  # least work of a model in a round; a clock's reading takes 0.3 µs
_TOTAL_NS = 200_000_000  # work of a model in all rounds, beyond which it has fewer of them

type Inputs = Mapping[str, Any]


class Measured(NamedTuple):
    """Seconds of a run of one sample, and of the steps of a run; None for a Module, whose steps cannot be timed."""

    run_s: float
    steps_s: float | None


def measure(models: Sequence[Session | Module], inputs: Sequence[Inputs]) -> list[Measured]:
    """Return the times of each model, the least of rounds in which models take turns: a slow moment slows all alike.

    A round is the mean of some warmed runs, in CPU time of this thread; steps are timed by the clock in other runs.
    """
    works: list[Callable[[int], float]] = []
    for model, given in zip(models, inputs, strict=True):
        works.append(_Runs(model, given))
        if isinstance(model, Session):
            works.append(_Steps(model, given))
    least = iter(_take_turns(works))
    return [Measured(next(least), next(least) if isinstance(model, Session) else None) for model in models]


class _Runs:
    """Mean CPU seconds of some runs; one more before them is not counted."""

    def __init__(self, model: Session | Module, inputs: Inputs) -> None:
        self._model, self._inputs = model, inputs

    def __call__(self, runs: int) -> float:
        run, inputs = self._model.run, self._inputs
        run(inputs)
        begin_ns = time.thread_time_ns()
        for _ in range(runs):
            run(inputs)
        return (time.thread_time_ns() - begin_ns) / runs / 1e9


class _Steps:
    """Mean seconds of all steps in some runs; one more before them is not counted."""

    def __init__(self, model: Session, inputs: Inputs) -> None:
        self._model, self._inputs = model, inputs

    def __call__(self, runs: int) -> float:
        profile, inputs = self._model.profile, self._inputs
        profile(inputs)
        return sum(sum(profile(inputs)) for _ in range(runs)) / runs / 1e6


def _take_turns(works: Sequence[Callable[[int], float]]) -> list[float]:
    """Return the least result of each `work(runs)`, called in rounds."""
    for work in works:
        work(1)  # plans
    once_ns = [max(1, int(work(1) * 1e9)) for work in works]
    counts = [max(1, _ROUND_NS // one) for one in once_ns]
    longest_ns = max((one * count for one, count in zip(once_ns, counts, strict=True)), default=1)
    least = [float("inf")] * len(works)
    for _ in range(max(_LEAST_ROUNDS, min(_MOST_ROUNDS, _TOTAL_NS // longest_ns))):
        least = [min(one, work(count)) for one, work, count in zip(least, works, counts, strict=True)]
    return least

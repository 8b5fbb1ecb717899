"""Latency of models as the engine predicts it, beside the measured one, on the machine at hand.

Rates (eq. 3 of Walle's §4.1) choose backends and algorithms. They leave out the fixed time of a step, half of a
small network. So a second prediction sums the times of the steps of a model's plan, each timed by itself, and adds the
time that a run takes outside of its steps; that is taken from other models, never from the one that is predicted.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walle import np
from walle.adapt.costs.measured import Measured, measure
from walle.engine_ext.rates import cpu_model
from walle.engine_ext.session import Module, Session, load

_AT_ONCE = 16  # models that are open at the same time


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of a run of one sample on one thread of `cpu`, that of the machine which ran the adaptation.

    `rates_s` is the prediction by rates, and `source` where these come from (`Plan.source`). `steps_s` is the
    prediction by timed steps: None for a model with control flow, and where no other model was measured with it.
    `measured_s` is the least CPU time of warmed runs.
    """

    model: str
    rates_s: float
    source: str
    steps_s: float | None
    measured_s: float
    cpu: str

    @property
    def error(self) -> float | None:
        """Return how far the prediction by timed steps is from the measured time, as a share of this."""
        return None if self.steps_s is None else self.steps_s / self.measured_s - 1


def latencies_of(files: Sequence[tuple[str, Path]], inputs: Sequence[Any]) -> list[Latency]:
    """Return the latency of each (name, file) for one sample, given as inputs in the order of the models' own.

    Raises:
        EngineError: a file is broken, or does not run on the inputs.
    """
    found: list[Latency] = []
    for first in range(0, len(files), _AT_ONCE):
        begin = max(0, min(first, len(files) - _AT_ONCE))  # the last ones are measured with enough others
        found += _measured(files[begin : begin + _AT_ONCE], inputs)[first - begin :]
    return found


def _measured(files: Sequence[tuple[str, Path]], inputs: Sequence[Any]) -> list[Latency]:
    sessions = [load(str(path)) for _, path in files]
    given = [
        {one.name: np.asarray(array) for one, array in zip(session.inputs, inputs, strict=True)} for session in sessions
    ]
    times = measure(sessions, given)
    by_steps, cpu = predicted_by_steps(times), cpu_model()
    return [
        Latency(name, *_by_rates(session), steps_s, own.run_s, cpu)
        for (name, _), session, steps_s, own in zip(files, sessions, by_steps, times, strict=True)
    ]


def predicted_by_steps(times: Sequence[Measured]) -> list[float | None]:
    """Return for each model the seconds of its steps, and the median of the others' seconds outside of steps."""
    outside = {at: one.run_s - one.steps_s for at, one in enumerate(times) if one.steps_s is not None}
    found: list[float | None] = []
    for at, one in enumerate(times):
        others = [seconds for other, seconds in outside.items() if other != at]
        found.append(None if one.steps_s is None or not others else one.steps_s + statistics.median(others))
    return found


def _by_rates(session: Session | Module) -> tuple[float, str]:
    """Return the prediction by rates in seconds, and the source of the rates."""
    plan = session.plan()
    assert plan is not None  # a plan of its runs
    return plan.costs.get(plan.backend, 0.0) / 1e6, plan.source

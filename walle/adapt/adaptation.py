"""Adaptation of one model to many goals: passes over the goals, checkpoints, and what came of each (§4)."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from walle import nn, np
from walle.adapt.algorithms import find_algorithm
from walle.adapt.arrays import read_arrays, write_arrays
from walle.adapt.collective.checks import UnmetGoalError, problems_of
from walle.adapt.collective.plan import Stop, plan_stops
from walle.adapt.collective.schedule import LossSchedule
from walle.adapt.costs.engine import Latency, latencies_of
from walle.adapt.costs.formula import CostFormula, Costs
from walle.adapt.dataset import load_data
from walle.adapt.executor import AdaptationExecutor, Settings, traced_structure
from walle.adapt.expand import widths_for
from walle.adapt.goals.config import Adaptation, read_config
from walle.adapt.goals.goal import Goal
from walle.adapt.masked.evaluation import outputs_of
from walle.adapt.report import GIVEN, write_report
from walle.adapt.source import load_model
from walle.adapt.structure.widen import widen
from walle.base.durable_file import write_file
from walle.errors import ConfigError

__all__ = ["Fitted", "Outcome", "Progress", "adapt", "read_outcomes", "run"]

_MAX_ITERATIONS = 500  # limit for one goal, beyond those of the executor's preparation
_FOLLOWS = 1.2  # limit of a goal's training after another one's, whose weights were trained just before
_LEAST_STEPS = 6  # training of a goal that is close to the goal before it
_NOISE = 0.1  # deviation of the noise on copied channels, as a share of their array's
_RECORD = "adaptation.json"
_REPORT = "report.json"


@dataclass(frozen=True, slots=True)
class Fitted:
    """The model of one goal: its file, its costs with accuracy, and whether it meets the goal."""

    goal: str
    file: str
    costs: Costs
    meets_budgets: bool
    meets_accuracy: bool
    steps: int  # training steps, with those of the pass since the goal before
    seconds: float
    latency_budget: float | None = None  # seconds that the goal allows


@dataclass(frozen=True, slots=True)
class Outcome:
    """All fitted models of an adaptation, and the costs of the model that was given.

    `latencies` are those of the machine that finished the adaptation: of the given model, then of each fitted one.
    """

    whole: Costs
    fitted: tuple[Fitted, ...]
    passes: int
    seconds: float
    latencies: tuple[Latency, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """Goals that are done, of how many; the goal at hand with its costs, and the seconds so far."""

    done: int
    goals: int
    goal: str
    costs: Mapping[str, float]
    seconds: float


def run(
    config: Path | str | Adaptation,
    out: Path | str = "adapted",
    *,
    method: str = "chains",
    on_progress: Callable[[Progress], None] = lambda _progress: None,
    resume: bool = False,
) -> list[Outcome]:
    """Adapt the model of each adaptation of a file to its goals, and write one `.walle` file for each goal.

    Files are in `out`, in a folder for each adaptation where there are several. `resume` goes on from the last goal of
    an interrupted run of the same model and data, and adapts goals that were added or changed since, each from the goal
    before it in its pass; without it the record of an earlier run is removed.

    Raises:
        ConfigError: the file is wrong; an UnmetGoalError where goals of any adaptation cannot be met. Nothing is
            adapted then.
    """
    jobs = [config] if isinstance(config, Adaptation) else read_config(Path(config))
    folder = Path(out)
    ready = [_prepared(job, method) for job in jobs]
    return [
        _adapted(one, folder / str(at + 1) if len(jobs) > 1 else folder, on_progress, resume=resume)
        for at, one in enumerate(ready)
    ]


def read_outcomes(folder: Path) -> list[Outcome]:
    """Return what a run has made in a folder.

    Raises:
        ConfigError: the folder has no report, or one that cannot be read.
    """
    paths = [folder / _REPORT] if (folder / _REPORT).exists() else sorted(folder.glob(f"*/{_REPORT}"))
    if not paths:
        raise ConfigError(f"{folder} has no {_REPORT}: walle adapt run writes it when all goals are done")
    return [_read_outcome(path) for path in paths]


def _read_outcome(path: Path) -> Outcome:
    try:
        document = json.loads(path.read_text())
        fitted = tuple(Fitted(**one) for one in document.pop("fitted"))
        latencies = tuple(Latency(**one) for one in document.pop("latencies", ()))
        return Outcome(fitted=fitted, latencies=latencies, **document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def adapt(
    job: Adaptation,
    out: Path,
    *,
    method: str = "chains",
    on_progress: Callable[[Progress], None] = lambda _progress: None,
    resume: bool = False,
    measure_latency: bool = True,
) -> Outcome:
    """Adapt one model to its goals; see `run`. Latencies take about 0.1 s of a CPU for each model."""
    return _adapted(_prepared(job, method), out, on_progress, resume=resume, measure_latency=measure_latency)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An adaptation whose goals can be met: its executor, the given model's costs and accuracy, and the passes."""

    job: Adaptation
    method: str
    executor: AdaptationExecutor
    whole: Costs
    accuracy: float
    passes: list[list[Stop]]


def _prepared(job: Adaptation, method: str) -> _Prepared:
    model, train = load_model(job.model, job.folder), load_data(job.train, job.folder)
    test = load_data(job.test, job.folder, train.classes)
    settings = Settings(model, train, test, job.hardware, job.training, job.settings, job.seed, job.folder)
    formula = CostFormula(traced_structure(settings, model), job.hardware)
    if (widths := widths_for(formula, job.goals, job.training.widen)) != list(formula.structure.widths):
        settings = replace(
            settings, model=widen(model, formula.structure, widths, noise=_NOISE, seed=job.seed), teacher=model
        )
    executor = find_algorithm(job.algorithm, job.folder)
    executor.init(settings)
    whole = formula.whole()
    own = settings.objective.measure(outputs_of(model, test.inputs), test.labels)
    if problems := problems_of(job.goals, executor.formula.least(), own):
        raise UnmetGoalError("; ".join(problems))
    return _Prepared(job, method, executor, whole, own, plan_stops(job.goals, whole, method))


def _adapted(
    one: _Prepared,
    out: Path,
    on_progress: Callable[[Progress], None],
    *,
    resume: bool,
    measure_latency: bool = True,
) -> Outcome:
    out.mkdir(parents=True, exist_ok=True)
    record = _Record(out, one.job.goals, _identity(one.job, one.executor.settings, one.method), resume=resume)
    work = _Work(one.executor, one.job, one.whole, one.passes, record, on_progress)
    fitted = work.run()
    in_order = tuple(fitted[goal.name] for goal in one.job.goals)
    outcome = Outcome(
        one.whole | {"accuracy": one.accuracy}, in_order, len(one.passes), work.seconds,
        _latencies(one.executor.settings, in_order, out) if measure_latency else (),
    )  # fmt: skip
    write_report(outcome, out)
    write_file(out / _REPORT, json.dumps(asdict(outcome), indent=1) + "\n", mode=0o644)
    return outcome


def _latencies(settings: Settings, fitted: tuple[Fitted, ...], out: Path) -> tuple[Latency, ...]:
    """Return the latencies of the given model and of those of the goals, on this machine."""
    example = [one[:1] for one in settings.test.inputs]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.walle"
        nn.to_walle(settings.given, str(path), *example)
        files = [(GIVEN, path), *((one.goal, out / one.file) for one in fitted)]
        return tuple(latencies_of(files, example))


class _Work:
    """The passes of one adaptation."""

    def __init__(self, executor: AdaptationExecutor, job: Adaptation, whole: Costs, passes: list[list[Stop]],
                 record: _Record, on_progress: Callable[[Progress], None]) -> None:  # fmt: skip
        self._executor, self._job, self._whole, self._passes = executor, job, whole, passes
        self._first = executor.costs()  # costs of the given model, or of a wider one for looser goals
        self._record, self._on_progress = record, on_progress
        self._begin_s = time.monotonic()
        starts = {stops[0].before for stops in passes}
        self._kept = {goal for goal in starts if goal is not None}  # goals that a later pass begins at
        self._before = {stop.goal: stop.before for stops in passes for stop in stops}

    @property
    def seconds(self) -> float:
        """Seconds of this run and of those that it goes on from."""
        return self._record.seconds + time.monotonic() - self._begin_s

    def run(self) -> dict[str, Fitted]:
        """Return the fitted models by goal."""
        executor, record, goals = self._executor, self._record, self._job.goals
        first = executor.state()
        at: int | None = None  # goal whose state the executor has, None for the given model's
        for stops in self._passes:
            for stop in stops:
                if goals[stop.goal].name in record.fitted:
                    continue
                if stop.before != at:
                    executor.restore(first if stop.before is None else record.state(goals[stop.before]))
                self._adapt(goals[stop.goal], stop)
                at = stop.goal
                record.keep(goals[stop.goal], executor.state(), is_start=stop.goal in self._kept, seconds=self.seconds)
        return record.fitted

    def _adapt(self, goal: Goal, stop: Stop) -> None:
        executor = self._executor
        begin_s = time.monotonic()
        costs = executor.costs()
        before = costs if stop.before is None else self._record.fitted[self._job.goals[stop.before].name].costs
        schedule = LossSchedule(goal, costs)
        steps = 0
        for _ in range(executor.preparation() + _MAX_ITERATIONS):
            self._on_progress(Progress(len(self._record.fitted), len(self._job.goals), goal.name, costs, self.seconds))
            if goal.is_met_by(costs):
                break
            executor.adjust(costs, goal, schedule.update(costs, steps))
            steps += executor.iterate()
            costs = executor.costs()
        most = self._most_steps(goal, before, follows=self._is_trained(stop.before))
        if steps:  # those changed the weights for channels that are cut
            most = max(most, _LEAST_STEPS)
        model, training = executor.fitted(goal, most)
        costs = executor.measure(model)
        file = f"{goal.name}.walle"
        nn.to_walle(model, self._record.folder / file, *(one[:1] for one in self._job_inputs()))
        self._record.fitted[goal.name] = Fitted(
            goal.name, file, costs, goal.is_met_by(costs), goal.accuracy is None or costs["accuracy"] >= goal.accuracy,
            steps + training, time.monotonic() - begin_s, goal.budgets.get("latency"),
        )  # fmt: skip

    def _is_trained(self, goal: int | None) -> bool:
        """Return whether a goal, or one that it goes on from, was trained: not where all are as loose as the model."""
        while goal is not None:
            if self._record.fitted[self._job.goals[goal].name].steps:
                return True
            goal = self._before[goal]
        return False

    def _job_inputs(self) -> tuple[Any, ...]:
        return self._executor.settings.test.inputs

    def _most_steps(self, goal: Goal, before: Mapping[str, float], *, follows: bool) -> int:
        """Return the most steps of training after the channels are chosen: by the part of the costs that went, or that
        a wider model has more than the given one. A goal that is as loose as the model has none.

        After another goal a small cut needs no more than any algorithm's, and fewer the closer the goal is to the first
        model: a wide network forgets little, and its steps take the longest. The algorithm takes fewer of them where
        the cut has added little loss.
        """
        if follows:
            share = goal.reduction(before) * _FOLLOWS * goal.reduction(self._first)
        else:
            widened = max(1 - self._whole[name] / max(before[name], self._whole[name]) for name in goal.budgets)
            share = max(goal.reduction(before), widened) * self._executor.tuning
        return max(_LEAST_STEPS, round(self._job.training.steps * share)) if share > 0 else 0


def _identity(job: Adaptation, settings: Settings, method: str) -> str:
    """Return the job but for its goals, and a SHA-256 of the contents: Python files, weights, buffers and data."""
    contents = hashlib.sha256()
    for source in (job.model, job.algorithm, job.training.loss, job.training.metric):
        path, _, name = source.partition(":")
        contents.update((job.folder / path).read_bytes() if name else b"")
    arrays = settings.model.state_dict()
    for part, data in (("train", settings.train), ("test", settings.test)):
        arrays |= {f"{part} {at}": one for at, one in enumerate((*data.inputs, data.labels))}
    for name, array in arrays.items():
        contents.update(f"{name} {array.dtype} {array.shape}".encode() + np.asarray(array).tobytes())
    same = {name: value for name, value in asdict(job).items() if name != "goals"}
    document = {"job": same, "method": method, "contents": contents.hexdigest()}
    return json.dumps(document, default=str, sort_keys=True)


class _Record:
    """The goals that are done, in files of the folder that a later run reads."""

    def __init__(self, folder: Path, goals: Sequence[Goal], identity: str, *, resume: bool) -> None:
        self.folder = folder
        self.fitted: dict[str, Fitted] = {}
        self.seconds = 0.0
        self._goals = {goal.name: {"budgets": dict(goal.budgets), "accuracy": goal.accuracy} for goal in goals}
        self._identity = identity
        self._states: dict[str, Mapping[str, Any]] = {}
        if resume:
            self._load()
            return
        for name in (_RECORD, _REPORT):
            (folder / name).unlink(missing_ok=True)

    def state(self, goal: Goal) -> Mapping[str, Any]:
        """Return the executor's state after a goal."""
        if goal.name not in self._states:
            self._states[goal.name] = read_arrays(self._path(goal.name))
        return self._states[goal.name]

    def keep(self, goal: Goal, state: Mapping[str, Any], *, is_start: bool, seconds: float) -> None:
        """Write the state after a goal, and that the goal is done."""
        write_arrays(self._path(goal.name), state)
        if is_start:
            self._states[goal.name] = state
        fitted = [{**asdict(one), "of": self._goals[one.goal]} for one in self.fitted.values()]
        document = {"adaptation": self._identity, "seconds": seconds, "fitted": fitted}
        write_file(self.folder / _RECORD, json.dumps(document) + "\n", mode=0o644)

    def _path(self, goal: str) -> Path:
        return self.folder / f"state-{goal}.npz"

    def _load(self) -> None:
        path = self.folder / _RECORD
        if not path.exists():
            return
        try:
            document = json.loads(path.read_text())
            done = {one["goal"]: one.pop("of") for one in document["fitted"]}
            fitted = [Fitted(**one) for one in document["fitted"]]
            identity, self.seconds = document["adaptation"], float(document["seconds"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} cannot be read ({error}); begin again in another folder") from error
        if identity != self._identity:
            raise ConfigError(f"{path} is of other settings, data or another model; begin again in another folder")
        self.fitted = {
            one.goal: one
            for one in fitted
            if self._goals.get(one.goal) == done[one.goal] and (self.folder / one.file).exists()
        }

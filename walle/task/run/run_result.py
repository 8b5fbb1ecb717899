"""Results of runs as they come out of a VM, checked: a task may have changed the runtime of its VM."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from walle.errors import VMError
from walle.pipeline.features.put import Put
from walle.pipeline.features.topics import TopicError, own_topic
from walle.pipeline.stream.context import MAX_METRICS
from walle.pipeline.trigger.task_output import TaskOutput
from walle.protocol import LATENCY_MS, PHASES, Manifest, StatePolicy, is_metric_name
from walle.task.run.log import parse_lines

_NO_STATE = StatePolicy()


class TaskOutputError(VMError):
    """A run returned another value than the runtime does: the task has changed the runtime of its VM."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """One step of a task's training: what it put, and its checkpoint, a list of one, empty where it has used none.

    `wants_more` says whether it wants another step now. `cpu_s`, `run_ms` and `metrics` as in `TaskOutput`.
    """

    puts: Sequence[Put]
    checkpoint: Sequence[Any]
    wants_more: bool
    cpu_s: float
    run_ms: float
    metrics: Mapping[str, float]


def output_of(result: Any, manifest: Manifest, *, timed: bool = False) -> TaskOutput:
    """Return the output of a run; with `timed` it has the time of each phase.

    Raises:
        TaskOutputError: the task has changed its runtime, and put features of other tasks, or nothing readable.
        PayloadError: the task put a value that cannot be stored.
    """
    try:
        parse_lines(result["log"])
        puts = _puts(result, manifest)
        times = result["phase_ms"] if timed else {}
        phase_ms = {phase: float(times[phase]) for phase in PHASES if phase in times}
        cpu_s, run_ms, metrics = _numbers(result)
        return TaskOutput(
            result["output"],
            puts,
            result.get("state"),
            phase_ms,
            cpu_s,
            manifest.output.destination,
            run_ms,
            metrics,
            manifest.version,
            manifest.state or _NO_STATE,
        )
    except (LookupError, TypeError, ValueError, TopicError) as error:
        raise output_error(f"{manifest.name} {manifest.version}", result, error) from error


def trained_step_of(result: Any, manifest: Manifest) -> TrainedStep:
    """Return one step of training; raises as `output_of`."""
    try:
        parse_lines(result["log"])
        puts = _puts(result, manifest)
        checkpoint = [] if result.get("checkpoint") is None else [result["checkpoint"]]
        cpu_s, run_ms, metrics = _numbers(result)
        return TrainedStep(
            puts=puts,
            checkpoint=checkpoint,
            wants_more=result["wants_more"] is True,
            cpu_s=cpu_s,
            run_ms=run_ms,
            metrics=metrics,
        )
    except (LookupError, TypeError, ValueError, TopicError) as error:
        raise output_error(f"{manifest.name} {manifest.version}", result, error) from error


def output_error(version: str, result: object, error: Exception) -> TaskOutputError:
    """Return the error of a result that only a changed runtime returns."""
    return TaskOutputError(f"{version} returned a {type(result).__name__} from its runtime ({error!r})")


def _puts(result: Any, manifest: Manifest) -> list[Put]:
    """Return what the run put. `ctx.store.put` has checked the topics, but a VM is not trusted."""
    puts = [Put.of(own_topic(manifest.name, topic), value, version=manifest.version) for topic, value in result["puts"]]
    return puts + [Put.of(own_topic(manifest.name, topic), value, upload=False) for topic, value in result["local"]]


def _numbers(result: Any) -> tuple[float, float, dict[str, float]]:
    """Return CPU seconds, milliseconds and metrics of a run."""
    cpu_s = result["cpu_s"]
    if not is_cpu_time(cpu_s):
        raise ValueError(f"cpu_s is {cpu_s!r}")
    run_ms, metrics = result["run_ms"], _metrics(result.get("metrics", {}))
    if not is_cpu_time(run_ms):
        raise ValueError(f"run_ms is {run_ms!r}")
    return cpu_s, run_ms, metrics


def is_cpu_time(value: object) -> bool:
    """Return whether a VM's time is one: what a task could falsify."""
    return isinstance(value, float) and 0 <= value < math.inf


def _metrics(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a run, which `ctx.metric` has checked; but a VM is not trusted. Raises ValueError."""
    if not isinstance(found, dict) or len(found) > MAX_METRICS:
        raise ValueError("metrics are not what ctx.metric makes")
    for name, value in found.items():
        known = isinstance(name, str) and is_metric_name(name) and name != LATENCY_MS
        if not known or not isinstance(value, float) or not math.isfinite(value):
            raise ValueError(f"the metric {str(name)[:80]!r} is {value!r}"[:200])
    return found

"""Outcomes of task versions, which devices report in batches (§6)."""

import dataclasses
import enum
import math
import re
from collections.abc import Mapping
from typing import Any, Self

from walle.protocol.fields import ProtocolError, take, take_id, take_map, take_optional, whole_characters
from walle.protocol.traces import DeviceTrace
from walle.protocol.trust import Alarm

REPORT_INTERVAL_HEADER = "X-Walle-Report-Interval"
"""Header of the answer to a report: after how many seconds the cloud wants the next one, 0 for the device's choice."""
LONGEST_REPORT_INTERVAL_S = 3600  # longest interval that a device takes from a cloud


class OutcomeKind(enum.StrEnum):
    """The kinds of outcome of a task version on a device."""

    INSTALLED = "installed"  # pulled, verified, checked and activated
    REJECTED = "rejected"  # refused before activation: signature, hash, check
    RUN = "run"  # executions since the last report: `ok` and `failed` of them
    REVERTED = "reverted"  # activated, failed here, and left for the version before it
    REMOVED = "removed"


class FailureClass(enum.StrEnum):
    """Fault for which a version was refused or left: its own, or one that says nothing of it."""

    VERSION = "version"
    DEVICE = "device"  # a full disk, a clock that is wrong, memory, a file that is corrupted there
    NETWORK = "network"
    CLOUD = "cloud"  # the store has not the file, or serves other bytes than were signed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A failure of task code: the type of its error, its text, where it happened, and what led to it.

    In a report it stands for `count` failures of one type at one place, and its texts are those of the last one. They
    come from task code and are hostile: escape control characters before a terminal or a log file gets them.
    """

    error_type: str  # the name of its class, such as ZeroDivisionError; empty where a device does not report it
    error: str  # first MAX_ERROR_CHARS of its message
    place: str = ""  # "file:line in function" of the task's code, empty if it is unknown
    traceback: str = ""  # last MAX_TRACEBACK_CHARS; empty where there is none, such as for a deadline
    log: str = ""  # the last lines that the failing run logged, its last MAX_LOG_CHARS
    count: int = 1

    MAX_TYPE_CHARS = 200
    MAX_ERROR_CHARS = 2000
    MAX_PLACE_CHARS = 300
    MAX_TRACEBACK_CHARS = 4000
    MAX_LOG_CHARS = 2000

    def bounded(self) -> Self:
        """Return the failure within its bounds, in whole characters."""
        return dataclasses.replace(
            self,
            error_type=whole_characters(self.error_type[: self.MAX_TYPE_CHARS]),
            error=whole_characters(self.error[: self.MAX_ERROR_CHARS]),
            place=whole_characters(self.place[: self.MAX_PLACE_CHARS]),
            traceback=whole_characters(self.traceback[-self.MAX_TRACEBACK_CHARS :]),
            log=whole_characters(self.log[-self.MAX_LOG_CHARS :]),
        )

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Parse a failure and bound it. Raises ProtocolError, which names the part."""
        if not isinstance(value, dict):
            raise ProtocolError(where, f"must be an object, is {type(value).__name__}")
        count = take(value, "count", int, where)
        if not 0 < count <= Outcome.MAX_COUNT:
            raise ProtocolError(f"{where}.count", f"must be from 1 to {Outcome.MAX_COUNT}, is {count}")
        texts = {key: take(value, key, str, where) for key in ("error_type", "error")}
        texts |= {key: take_optional(value, key, where) for key in ("place", "traceback", "log")}
        return cls(**texts, count=count).bounded()


LATENCY_MS = "latency_ms"  # the metric that a device measures of every task
_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MOST_VALUE = 1e100  # further out, a mean has no meaning, and two values no sum
METRIC_NAME_RULE = "lower-case letters, digits and _, at most 64, the first a letter"


def is_metric_name(name: str) -> bool:
    """Return whether `name` may name a metric."""
    return _METRIC_NAME.fullmatch(name) is not None


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number of a version's runs on a device since the last report, of `count` runs that ended well.

    `value` is the median in milliseconds of LATENCY_MS, and the mean of what a task reports by `ctx.metric`. Both are
    what the device says: a hostile one may say anything.
    """

    name: str
    count: int
    value: float

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Parse a metric. Raises ProtocolError, which names the part."""
        if not isinstance(value, dict):
            raise ProtocolError(where, f"must be an object, is {type(value).__name__}")
        name, count = take(value, "name", str, where), take(value, "count", int, where)
        if not is_metric_name(name):
            raise ProtocolError(f"{where}.name", f"{name[:80]!r} is not a metric's name ({METRIC_NAME_RULE})")
        if not 0 < count <= Outcome.MAX_COUNT:
            raise ProtocolError(f"{where}.count", f"must be from 1 to {Outcome.MAX_COUNT}, is {count}")
        number: Any = value.get("value")
        try:
            is_finite = type(number) in (int, float) and math.isfinite(number)
        except OverflowError:  # a whole number may be too large for a float
            is_finite = False
        if not is_finite:
            raise ProtocolError(f"{where}.value", "must be a finite number")
        return cls(name, count, float(number))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of a task version on a device. `error`, `place` and `log` are of the last failure.

    `failures` are the different ones among them, as `Failure`; devices before it was added report none. A cloud of that
    time ignores it. `failure_class` is of a version that was refused or left; devices of before report VERSION, as what
    has no class is. `metrics` are of its runs, one of a name; devices of before report none. `dropped` are triggers
    of the version that had no room on the device and gave no run, `uploads_dropped` outputs that are stored there
    alone, `entries_evicted` entries of its state that were removed at its bound; devices of before report none.
    `state_bytes` is the size of its state at the report and `state_max_bytes` its bound, 0 without one.
    """

    task: str
    version: str
    release: str
    kind: OutcomeKind
    ok: int = 0
    failed: int = 0
    error: str = ""
    place: str = ""
    log: str = ""
    failures: tuple[Failure, ...] = ()
    failure_class: FailureClass = FailureClass.VERSION
    metrics: tuple[Metric, ...] = ()
    dropped: int = 0
    uploads_dropped: int = 0
    entries_evicted: int = 0
    state_bytes: int = 0
    state_max_bytes: int = 0

    MAX_FAILURES = 10
    MAX_METRICS = 17  # metrics of a version: those of the task, and its latency
    MAX_COUNT = 10**9  # a report of more executions is forged


@dataclasses.dataclass(frozen=True)
class OutcomeBatch:
    """One report of a device. `batch_id` is unique to it, so that a repeated report counts once.

    `groups` are what the device has in common with others, such as its app version, operating system and model: a
    version may fail on one group only. `traces` are the times of installs and runs that the cloud asked to follow. A
    cloud from before there were alarms, groups or traces ignores them.
    """

    device_id: str
    batch_id: str
    outcomes: tuple[Outcome, ...]
    alarms: tuple[Alarm, ...] = ()
    groups: Mapping[str, str] = dataclasses.field(default_factory=dict)
    traces: tuple[DeviceTrace, ...] = ()

    MAX_ALARMS = 10
    MAX_TRACES = 20
    MAX_GROUPS = 8
    MAX_GROUP_CHARS = 64  # length of a key, and of a value

    def to_json(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        if not self.traces:
            del plain["traces"]
        return plain

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse a report. Raises ProtocolError, which names the part."""
        if not isinstance(value, dict):
            raise ProtocolError("outcomes", f"must be an object, is {type(value).__name__}")
        outcomes = []
        for index, entry in enumerate(take(value, "outcomes", list, "batch")):
            where = f"batch.outcomes[{index}]"
            if not isinstance(entry, dict):
                raise ProtocolError(where, f"must be an object, is {type(entry).__name__}")
            try:
                kind = OutcomeKind(take(entry, "kind", str, where))
            except ValueError as error:
                raise ProtocolError(f"{where}.kind", str(error)) from error
            ok, failed = (take(entry, key, int, where) for key in ("ok", "failed"))
            if ok < 0 or failed < 0:
                raise ProtocolError(where, "ok and failed count executions and cannot be negative")
            if max(ok, failed) > Outcome.MAX_COUNT:
                raise ProtocolError(where, f"ok and failed count executions of one report, {Outcome.MAX_COUNT} at most")
            outcomes.append(
                Outcome(
                    task=take(entry, "task", str, where),
                    version=take(entry, "version", str, where),
                    release=take(entry, "release", str, where),
                    kind=kind,
                    ok=ok,
                    failed=failed,
                    error=take(entry, "error", str, where)[: Failure.MAX_ERROR_CHARS],
                    place=take_optional(entry, "place", where)[: Failure.MAX_PLACE_CHARS],
                    log=take_optional(entry, "log", where)[-Failure.MAX_LOG_CHARS :],
                    failures=_failures(entry, where),
                    failure_class=_failure_class(entry, where),
                    metrics=_metrics(entry, where),
                    dropped=_count(entry, "dropped", where),
                    uploads_dropped=_count(entry, "uploads_dropped", where),
                    entries_evicted=_count(entry, "entries_evicted", where),
                    state_bytes=_count(entry, "state_bytes", where),
                    state_max_bytes=_count(entry, "state_max_bytes", where),
                )
            )
        found = take(value, "alarms", list, "batch") if "alarms" in value else []
        if len(found) > cls.MAX_ALARMS:
            raise ProtocolError("batch.alarms", f"{len(found)} alarms, more than {cls.MAX_ALARMS}")
        alarms = tuple(Alarm.from_json(one, f"batch.alarms[{index}]") for index, one in enumerate(found))
        groups = take_map(value, "groups", (str,), "batch") if "groups" in value else {}
        if len(groups) > cls.MAX_GROUPS:
            raise ProtocolError("batch.groups", f"{len(groups)} groups, more than {cls.MAX_GROUPS}")
        if any(len(text) > cls.MAX_GROUP_CHARS for pair in groups.items() for text in pair):
            raise ProtocolError("batch.groups", f"a key or a value has more than {cls.MAX_GROUP_CHARS} characters")
        device_id, batch_id = (take_id(value, key, "batch") for key in ("device_id", "batch_id"))
        traced = take(value, "traces", list, "batch") if "traces" in value else []
        if len(traced) > cls.MAX_TRACES:
            raise ProtocolError("batch.traces", f"{len(traced)} traces, more than {cls.MAX_TRACES}")
        traces = tuple(DeviceTrace.from_json(one, f"batch.traces[{index}]") for index, one in enumerate(traced))
        return cls(device_id, batch_id, tuple(outcomes), alarms, groups, traces)


def _count(entry: dict[str, Any], key: str, where: str) -> int:
    count = take(entry, key, int, where) if key in entry else 0
    if not 0 <= count <= Outcome.MAX_COUNT:
        raise ProtocolError(f"{where}.{key}", f"must be from 0 to {Outcome.MAX_COUNT}, is {count}")
    return count


def _failure_class(entry: dict[str, Any], where: str) -> FailureClass:
    try:
        return FailureClass(take_optional(entry, "failure_class", where) or FailureClass.VERSION)
    except ValueError as error:
        raise ProtocolError(f"{where}.failure_class", str(error)) from error


def mean_with(before: tuple[int, float], count: int, value: float) -> tuple[int, float]:
    """Return count and mean of a number of values and of `count` more of mean `value`, which is cut at ±1e100."""
    number, mean = before
    value = math.copysign(min(abs(value), _MOST_VALUE), value)
    return number + count, mean + (value - mean) * count / (number + count)


def _metrics(entry: dict[str, Any], where: str) -> tuple[Metric, ...]:
    values = take(entry, "metrics", list, where) if "metrics" in entry else []
    if len(values) > Outcome.MAX_METRICS:
        raise ProtocolError(f"{where}.metrics", f"{len(values)} metrics, more than {Outcome.MAX_METRICS}")
    found = [Metric.from_json(value, f"{where}.metrics[{index}]") for index, value in enumerate(values)]
    return tuple({one.name: one for one in found}.values())


def _failures(entry: dict[str, Any], where: str) -> tuple[Failure, ...]:
    values = take(entry, "failures", list, where) if "failures" in entry else []
    if len(values) > Outcome.MAX_FAILURES:
        raise ProtocolError(f"{where}.failures", f"{len(values)} failures, more than {Outcome.MAX_FAILURES}")
    return tuple(Failure.from_json(value, f"{where}.failures[{index}]") for index, value in enumerate(values))

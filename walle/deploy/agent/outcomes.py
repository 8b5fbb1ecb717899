"""Outcomes of a device's tasks since its last report (§6, exception handling), in bounded memory.

Executions are counted, not listed. Nothing here is on disk: unconfirmed counts of executions are lost when the process
dies. Installations, rejections, reverts and removals are in the installed state, and the agent reports them again after
a restart. An unconfirmed report is sent again as the same batch with the same id, so that the cloud counts it once.
"""

import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping

from walle.deploy.agent.run_metrics import RunMetrics
from walle.protocol import Alarm, Attribute, Failure, Outcome, OutcomeBatch, OutcomeKind, whole_characters
from walle.protocol.traces import DeviceTrace

_MAX_BATCH_BYTES = 512 << 10  # limit of a report's JSON; the cloud takes 1 MiB
_MAX_KEYS = 1000  # different (task, version, release, kind) between two reports; a device has tens


type StateOf = Callable[[str, str], tuple[int, int] | None]


def _no_state(_task: str, _version: str) -> None:
    """Return None: the task has no state."""


def _random_id() -> str:
    return uuid.uuid4().hex


def device_groups(app_version: str, attributes: Mapping[str, Attribute]) -> dict[str, str]:
    """Return the groups that a device reports: its app version and its first attributes, but for fractions."""
    named = {"app_version": app_version, **{key: str(one) for key, one in attributes.items() if type(one) is not float}}
    most = OutcomeBatch.MAX_GROUP_CHARS
    cut = {whole_characters(key[:most]): whole_characters(one[:most]) for key, one in named.items() if one}
    return dict(list(cut.items())[: OutcomeBatch.MAX_GROUPS])


class OutcomeReport:
    """Gathers outcomes between reports. `dropped` counts those that did not fit since the last confirmed report.

    `lost` counts the outcomes since the start that reach no cloud: they did not fit, or their report was refused.
    `state_of(task, version)` returns the bytes of the version's state and their bound, None without a state.
    """

    def __init__(
        self,
        device_id: str,
        groups: Mapping[str, str] | None = None,
        *,
        new_id: Callable[[], str] = _random_id,
        max_keys: int = _MAX_KEYS,
        state_of: StateOf = _no_state,
    ) -> None:
        self.device_id = device_id
        self._groups = dict(groups or {})
        self.dropped = 0
        self.lost = 0
        self._new_id = new_id
        self._max_keys = max_keys
        self._state_of = state_of
        self._gathered: dict[tuple[str, str, str, OutcomeKind], Outcome] = {}
        self._metrics: dict[tuple[str, str, str, OutcomeKind], RunMetrics] = {}  # metrics of gathered outcomes
        self._sent: OutcomeBatch | None = None
        self._alarms: dict[str, Alarm] = {}
        self._traces: list[DeviceTrace] = []

    def count_run(
        self,
        task: str,
        version: str,
        release: str,
        failure: Failure | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Count one execution, which failed if there is a `failure`; `metrics` are those of one that ended well."""
        failed = int(failure is not None)
        outcome = Outcome(
            task=task, version=version, release=release, kind=OutcomeKind.RUN, ok=1 - failed, failed=failed
        )
        self.add(outcome, failure)
        key = (task, version, release, OutcomeKind.RUN)
        if metrics and key in self._gathered:
            self._metrics.setdefault(key, RunMetrics()).add(metrics)

    def count_dropped(
        self, task: str, version: str, release: str, *, triggers: int = 0, uploads: int = 0, entries: int = 0
    ) -> None:
        """Count triggers without a run, outputs that are not uploaded, and evicted entries of a state: without room."""
        self.add(
            Outcome(
                task=task,
                version=version,
                release=release,
                kind=OutcomeKind.RUN,
                dropped=min(triggers, Outcome.MAX_COUNT),
                uploads_dropped=min(uploads, Outcome.MAX_COUNT),
                entries_evicted=min(entries, Outcome.MAX_COUNT),
            )
        )

    def add(self, outcome: Outcome, failure: Failure | None = None) -> None:
        """Add `outcome` to the next report, with the failure that led to it, if any.

        Runs of a version are summed, and their failures by type and place; of other equal outcomes the last is kept.
        """
        if failure is not None:
            failure = failure.bounded()
            error = outcome.error or failure.error
            outcome = dataclasses.replace(
                outcome, error=error, place=failure.place, log=failure.log, failures=(failure,)
            )
        outcome = dataclasses.replace(outcome, error=whole_characters(outcome.error[: Failure.MAX_ERROR_CHARS]))
        key = (outcome.task, outcome.version, outcome.release, outcome.kind)
        before = self._gathered.pop(key, None)  # moved to the end: a report is ordered by time
        if before is None and len(self._gathered) >= self._max_keys:
            self.dropped += 1
            self.lost += 1
            return
        if before is not None and outcome.kind is OutcomeKind.RUN:
            latest = outcome if outcome.failed else before
            outcome = dataclasses.replace(
                outcome,
                ok=before.ok + outcome.ok,
                failed=before.failed + outcome.failed,
                dropped=min(Outcome.MAX_COUNT, before.dropped + outcome.dropped),
                uploads_dropped=min(Outcome.MAX_COUNT, before.uploads_dropped + outcome.uploads_dropped),
                entries_evicted=min(Outcome.MAX_COUNT, before.entries_evicted + outcome.entries_evicted),
                error=latest.error,
                place=latest.place,
                log=latest.log,
                failures=_summed(before.failures, outcome.failures),
            )
        self._gathered[key] = outcome

    def alarm(self, alarm: Alarm) -> None:
        """Add `alarm` to the next report; of each kind, the last one is kept."""
        text = whole_characters(alarm.text[: Alarm.MAX_TEXT_CHARS])
        self._alarms[alarm.kind] = dataclasses.replace(alarm, text=text)

    def trace(self, trace: DeviceTrace) -> None:
        """Add the times of an install or a run to the next report; those that do not fit are dropped."""
        if len(self._traces) < OutcomeBatch.MAX_TRACES:
            self._traces.append(trace)

    def take_batch(self) -> OutcomeBatch | None:
        """Return what to send now, or None where there is nothing to report.

        Until `confirm`, the same batch is returned again, and later outcomes wait for the next one: a sender that fails
        or is cancelled need not return the batch.
        """
        if self._sent is None and (self._gathered or self._alarms or self._traces):
            alarms, self._alarms = tuple(self._alarms.values()), {}
            traces, self._traces = tuple(self._traces), []
            outcomes = self._take_outcomes()
            self._sent = OutcomeBatch(self.device_id, self._new_id(), outcomes, alarms, self._groups, traces)
        return self._sent

    def _take_outcomes(self) -> tuple[Outcome, ...]:
        """Remove and return the oldest outcomes, as many as the cloud takes in one batch."""
        taken: list[Outcome] = []
        size_bytes = 0
        while self._gathered:
            key, outcome = next(iter(self._gathered.items()))
            if (metrics := self._metrics.get(key)) is not None:
                outcome = dataclasses.replace(outcome, metrics=metrics.to_report())
            if outcome.kind is OutcomeKind.RUN and (size := self._state_of(outcome.task, outcome.version)) is not None:
                outcome = dataclasses.replace(outcome, state_bytes=size[0], state_max_bytes=size[1])
            size_bytes += len(json.dumps(dataclasses.asdict(outcome)))
            if taken and size_bytes > _MAX_BATCH_BYTES:
                break
            del self._gathered[key]
            self._metrics.pop(key, None)
            taken.append(outcome)
        return tuple(taken)

    def refused(self, batch: OutcomeBatch) -> None:
        """Discard a batch that the cloud refuses permanently, and count its outcomes."""
        self.lost += len(batch.outcomes)
        self.confirm(batch.batch_id)

    def confirm(self, batch_id: str) -> None:
        """Discard the batch that the cloud has received. An id that is not pending is ignored."""
        if self._sent is not None and self._sent.batch_id == batch_id:
            self._sent = None
            self.dropped = 0


def _summed(before: tuple[Failure, ...], after: tuple[Failure, ...]) -> tuple[Failure, ...]:
    """Return the failures of both, the latest last, one of each type and place; beyond the limit, the latest."""
    found = {(one.error_type, one.place): one for one in before}
    for one in after:
        earlier = found.pop((one.error_type, one.place), None)
        count = one.count + (earlier.count if earlier is not None else 0)
        found[one.error_type, one.place] = dataclasses.replace(one, count=count)
    return tuple(found.values())[-Outcome.MAX_FAILURES :]

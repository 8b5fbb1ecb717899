"""Outcomes of a device's tasks since its last report (§6, exception handling), in bounded memory.

Executions are counted, not listed. Nothing here is on disk: unconfirmed counts of executions are lost when the process
dies. Installations, rejections, reverts and removals are in the installed state, and the agent reports them again after
a restart. An unconfirmed report is sent again as the same batch with the same id, so that the cloud counts it once.
"""

import dataclasses
import uuid
from collections.abc import Callable

from walle.protocol import Outcome, OutcomeBatch, OutcomeKind, whole_characters

_MAX_KEYS = 1000  # different (task, version, release, kind) between two reports; a device has tens


def _random_id() -> str:
    return uuid.uuid4().hex


class OutcomeReport:
    """Gathers outcomes between reports. `dropped` counts those that did not fit since the last confirmed report."""

    def __init__(self, device_id: str, *, new_id: Callable[[], str] = _random_id, max_keys: int = _MAX_KEYS) -> None:
        self.device_id = device_id
        self.dropped = 0
        self._new_id = new_id
        self._max_keys = max_keys
        self._gathered: dict[tuple[str, str, str, OutcomeKind], Outcome] = {}
        self._sent: OutcomeBatch | None = None

    def count_run(
        self, task: str, version: str, release: str, *, ok: bool, error: str = "", place: str = "", log: str = ""
    ) -> None:
        """Count one execution; of the failures, the last one's `error`, `place` and `log` are kept."""
        self.add(
            Outcome(
                task=task,
                version=version,
                release=release,
                kind=OutcomeKind.RUN,
                ok=int(ok),
                failed=int(not ok),
                error=error,
                place=place,
                log=log,
            )
        )

    def add(self, outcome: Outcome) -> None:
        """Add `outcome` to the next report. Runs of a version are summed; of other equal outcomes the last is kept."""
        outcome = dataclasses.replace(
            outcome,
            error=whole_characters(outcome.error[: Outcome.MAX_ERROR_CHARS]),
            place=whole_characters(outcome.place[: Outcome.MAX_PLACE_CHARS]),
            log=whole_characters(outcome.log[-Outcome.MAX_LOG_CHARS :]),
        )
        key = (outcome.task, outcome.version, outcome.release, outcome.kind)
        before = self._gathered.pop(key, None)  # moved to the end: a report is ordered by time
        if before is None and len(self._gathered) >= self._max_keys:
            self.dropped += 1
            return
        if before is not None and outcome.kind is OutcomeKind.RUN:
            failure = outcome if outcome.failed else before
            outcome = dataclasses.replace(
                outcome,
                ok=before.ok + outcome.ok,
                failed=before.failed + outcome.failed,
                error=failure.error,
                place=failure.place,
                log=failure.log,
            )
        self._gathered[key] = outcome

    def take_batch(self) -> OutcomeBatch | None:
        """Return what to send now, or None where there is nothing to report.

        Until `confirm`, the same batch is returned again, and later outcomes wait for the next one: a sender that fails
        or is cancelled need not return the batch.
        """
        if self._sent is None and self._gathered:
            self._sent = OutcomeBatch(self.device_id, self._new_id(), tuple(self._gathered.values()))
            self._gathered = {}
        return self._sent

    def confirm(self, batch_id: str) -> None:
        """Discard the batch that the cloud has received. An id that is not pending is ignored."""
        if self._sent is not None and self._sent.batch_id == batch_id:
            self._sent = None
            self.dropped = 0

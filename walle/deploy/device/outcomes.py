"""What befell the tasks of one device since its last report (§6, exception handling), gathered in bounded memory.

Executions are counted, not listed. Nothing here is on disk: counts of executions that were not confirmed are lost when
the process dies; what was installed, rejected, reverted or removed stands in the installed state, and the agent tells
it again after a restart. A report that was sent and not confirmed is given out again as the same batch, with the same
id, so that the cloud counts it once however often it arrives.
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

    def count_run(self, task: str, version: str, release: str, *, ok: bool, error: str = "") -> None:
        """Count one execution; of the failures, the last one's `error` is kept."""
        self.add(
            Outcome(
                task=task,
                version=version,
                release=release,
                kind=OutcomeKind.RUN,
                ok=int(ok),
                failed=int(not ok),
                error=error,
            )
        )

    def add(self, outcome: Outcome) -> None:
        """Take `outcome` into the next report. Runs of one version add up; of other equal ones, the last is told."""
        outcome = dataclasses.replace(outcome, error=whole_characters(outcome.error[: Outcome.MAX_ERROR_CHARS]))
        key = (outcome.task, outcome.version, outcome.release, outcome.kind)
        before = self._gathered.pop(key, None)  # it moves to the end: a report tells things in the order they befell
        if before is None and len(self._gathered) >= self._max_keys:
            self.dropped += 1
            return
        if before is not None and outcome.kind is OutcomeKind.RUN:
            outcome = dataclasses.replace(
                outcome,
                ok=before.ok + outcome.ok,
                failed=before.failed + outcome.failed,
                error=outcome.error or before.error,
            )
        self._gathered[key] = outcome

    def take_batch(self) -> OutcomeBatch | None:
        """Return what to send now, or None where there is nothing to tell.

        Until `confirm`, the same batch is returned again, and what happens meanwhile waits for the next one: a sender
        that failed, or was cancelled, has nothing to put back.
        """
        if self._sent is None and self._gathered:
            self._sent = OutcomeBatch(self.device_id, self._new_id(), tuple(self._gathered.values()))
            self._gathered = {}
        return self._sent

    def confirm(self, batch_id: str) -> None:
        """Forget the batch that the cloud has taken. An id that is not out any more is no error."""
        if self._sent is not None and self._sent.batch_id == batch_id:
            self._sent = None
            self.dropped = 0

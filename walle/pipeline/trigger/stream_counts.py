"""Counts of a device's stream, with what was dropped by task."""

import collections
import dataclasses
import enum
import logging

_LOG = logging.getLogger("walle.pipeline.trigger.stream_engine")


class LossKind(enum.StrEnum):
    """Kind of a task's loss.

    Triggers that gave no run, uploads whose outputs are stored on the device alone, or evicted entries of its state.
    """

    TRIGGERS = "triggers"
    UPLOADS = "uploads"
    ENTRIES = "entries"


_TEXTS = {
    LossKind.TRIGGERS: "triggers were dropped: there was no room for them, or their events are not kept",
    LossKind.UPLOADS: "outputs were stored and not uploaded, because the outbox was full",
    LossKind.ENTRIES: "entries of its state were evicted, the oldest first, because it reached its max_bytes",
}

_COUNTERS = {
    LossKind.TRIGGERS: "dropped",
    LossKind.UPLOADS: "uploads_dropped",
    LossKind.ENTRIES: "entries_evicted",
}


@dataclasses.dataclass(slots=True)
class StreamCounts:
    """`replayed` events are among `events`; `triggers` are task runs, `failures` those that raised.

    `without_visit` are triggers that were refused because their event's page has no open visit, `cut_visits` those that
    were passed on with a visit that was cut. `dropped` are triggers that had no room, by the policy of their queue or
    at a bound, and those whose events a kill or a damaged journal took, `uploads_dropped` outputs that a full outbox
    refused, `entries_evicted` entries of states at their bound: all by task.
    """

    events: int = 0
    ticks: int = 0
    replayed: int = 0
    triggers: int = 0
    failures: int = 0
    without_visit: int = 0
    cut_visits: int = 0
    dropped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    uploads_dropped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    entries_evicted: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def add_loss(self, task: str, kind: LossKind, count: int) -> None:
        """Count a loss, and log whenever the count has doubled."""
        counter: collections.Counter[str] = getattr(self, _COUNTERS[kind])
        before = counter[task]
        counter[task] += count
        if before.bit_length() != counter[task].bit_length():
            _LOG.warning("task %s: %d %s", task, counter[task], _TEXTS[kind])

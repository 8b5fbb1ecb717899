"""Counts of a device, and the snapshot of them that an app or a person sees."""

import collections
import dataclasses

from walle.pipeline.features.task_states import StateSize

_LATENCIES_KEPT = 10_000


@dataclasses.dataclass(kw_only=True)
class DeviceCounts:
    """Counts since a device's start, and `produced` since its folder was made.

    Latencies in ms, the latest few thousand of each.
    """

    produced: int = 0  # task outputs put for the cloud, without those lost in a crash before they were durable
    runs_ok: int = 0
    runs_failed: int = 0
    training_steps: int = 0  # steps of training that were stored
    escalated: int = 0
    last_error: str = ""
    bare_events: int = 0  # events while no task was active, although one had been before
    to_feature_ms: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_LATENCIES_KEPT)
    )
    to_ack_ms: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_LATENCIES_KEPT)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceSummary:
    """A snapshot of a device. `stored` features are in its file, `unsent` ones are not acknowledged.

    `queued` are the triggers of each task that are not done. `dropped`, `uploads_dropped`, `without_visit` and
    `cut_visits` as in `StreamCounts`, `visits_cut` are visits that were evicted. `late`, `out_of_order`,
    `duplicates` and `clock_jumps` as in `LiveCounts`. `history_dropped` are events that `ctx.history` lacks,
    because they could not be written, `rejected` those in JSON that could not be read. `timers` of conditions are
    running; `timers_evicted` were removed at a bound, by task. By task, `window_late` is how often an event came
    too late for a window, and `window_evicted` the events that were removed from windows at a bound. `states` are
    the sizes of tasks' states beside their bounds. `discarded` are interpreters that could not be reset after a
    task, by its version. The rest as in `DeviceCounts`.
    """

    device_id: str
    tasks: dict[str, str]
    produced: int
    stored: int
    unsent: int
    runs_ok: int
    runs_failed: int
    training_steps: int
    escalated: int
    bare_events: int
    last_error: str
    to_feature_ms: tuple[float, ...]  # time from an event's arrival to the end of its task's run
    to_ack_ms: tuple[float, ...]
    queued: dict[str, int]
    dropped: dict[str, int]
    uploads_dropped: dict[str, int]
    without_visit: int
    cut_visits: int
    visits_cut: int
    late: int
    out_of_order: int
    duplicates: int
    clock_jumps: int
    history_dropped: int
    timers: int
    timers_evicted: dict[str, int]
    window_late: dict[str, int]
    window_evicted: dict[str, int]
    states: dict[str, StateSize]
    rejected: int
    discarded: dict[str, int]
    losses: tuple[str, ...]  # a line for each loss since the start: of the store (`StoreReport`), history and journal
    lost_uploads: dict[str, int]  # lost uploads by cause: at least these, where a loss is open
    open_losses: dict[str, int]  # the number of losses by cause whose end is unknown yet

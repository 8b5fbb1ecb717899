"""Policy for the events of a live source: late, out of order, duplicate, and from a clock that jumped (ADR 19).

Events are processed in the order of their arrival; nothing waits for an earlier one. Times are the events' own. An
event is out of order if its time is before the latest one so far, and late if it is before that, and before the
device's clock, by more than `late_ms`, however much: one event from the future makes none of the present late. An
event is kept whatever its time, unless the app chose otherwise. What an earlier process took is taken again.
"""

import contextlib
import dataclasses
import enum
from collections.abc import Iterator
from typing import ClassVar

from walle.base import plain
from walle.base.clock import JUMP_MS
from walle.pipeline.events.event import Event
from walle.pipeline.events.event_faults import DuplicateWindow, Fault, digest_of
from walle.pipeline.events.transient_events import RecordedEvent

_CLOCK_STEP_S = 1.0  # changes of the device's clock below it are slow corrections


class LatePolicy(enum.StrEnum):
    """The treatment of a late event: it is dropped and counted, or taken and counted."""

    DROP = "drop"
    TAKE = "take"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LivePolicy:
    """The bounds of a live source.

    Args:
        late_ms: an event whose time is before the latest one, and the device's clock, by more than this is late.
        late: what becomes of late events, all of them.
        jump_ms: an event whose time is after the latest one by more than this shows that the clock jumped.
        duplicates: latest events among which a duplicate is looked for; 0: none.
        id_field: key of the contents that names an event; events with equal ids are duplicates.
        drop_equal: events without such an id are duplicates if they are equal in id, page, time and contents, for an
            app that repeats its calls. Those with arrays are not. False: equal events are different events.

    Raises:
        ValueError: a bound is negative, or `jump_ms` is not above `late_ms`.
    """

    late_ms: int = 60_000
    late: LatePolicy = LatePolicy.TAKE
    jump_ms: int = JUMP_MS
    duplicates: int = 1024
    id_field: str = ""
    drop_equal: bool = False

    MAX_DUPLICATES: ClassVar = 65_536

    def __post_init__(self) -> None:
        if not 0 <= self.late_ms < self.jump_ms:
            what = f"late_ms {self.late_ms} and jump_ms {self.jump_ms}"
            raise ValueError(f"{what}: late_ms must be 0 or more, and jump_ms above it")
        if not 0 <= self.duplicates <= self.MAX_DUPLICATES:
            raise ValueError(f"duplicates {self.duplicates} must be 0 to {self.MAX_DUPLICATES}")


@dataclasses.dataclass(slots=True, kw_only=True)
class LiveCounts:
    """Events of a live source. `late` ones are dropped or taken by the policy, `duplicates` are dropped.

    Those `out_of_order` and within the bound are taken. `clock_jumps` are found in event times and in the device's
    clock; a device that was suspended may count one.
    """

    late: int = 0
    out_of_order: int = 0
    duplicates: int = 0
    clock_jumps: int = 0


class LiveSource:
    """The state of a device's live source: the latest event time, and the digests of the latest events."""

    def __init__(self, policy: LivePolicy) -> None:
        self.policy = policy
        self.counts = LiveCounts()
        self._latest_ms: int | None = None
        self._clock_ms: float | None = None  # the device's
        self._clock_offset_s: float | None = None
        self._seen = DuplicateWindow(policy.duplicates)

    @property
    def remembered(self) -> int:
        """The latest events that the next process must have seen to know duplicates of them."""
        return self.policy.duplicates if self.policy.id_field or self.policy.drop_equal else 0

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Take back what the block has noted and counted, if it raises."""
        counts, latest_ms = dataclasses.replace(self.counts), self._latest_ms
        try:
            with self._seen.undone_on_error():
                yield
        except BaseException:
            self.counts, self._latest_ms = counts, latest_ms
            raise

    def check(self, event: Event) -> Fault | None:
        """Return why the event is dropped, and count it; None if it is to be taken."""
        if self.policy.duplicates and (digest := self._digest(event)) is not None and digest in self._seen:
            self.counts.duplicates += 1
            return Fault.DUPLICATE
        if self.policy.late is LatePolicy.DROP and self._is_late(event.ts_ms):
            self.counts.late += 1
            return Fault.OUT_OF_ORDER
        return None

    def take(self, event: Event) -> None:
        """Note an event that is taken."""
        latest_ms, ts_ms = self._latest_ms, event.ts_ms
        if latest_ms is None:
            self._latest_ms = ts_ms
        elif ts_ms >= latest_ms:
            self.counts.clock_jumps += ts_ms - latest_ms > self.policy.jump_ms
            self._latest_ms = ts_ms
        elif self._is_late(ts_ms):
            self.counts.late += 1
        else:
            self.counts.out_of_order += 1
        if self.policy.duplicates and (digest := self._digest(event)) is not None:
            self._seen.add(digest)

    def restore(self, event: Event) -> None:
        """Note an event that an earlier process has taken."""
        self.take(event)
        self.counts = LiveCounts()

    def note_clock(self, time_s: float, monotonic_s: float) -> None:
        """Compare the device's clock with its monotonic one. If it was set, the latest event time moves as it did."""
        self._clock_ms = time_s * 1000
        offset_s = time_s - monotonic_s
        if self._clock_offset_s is None:
            self._clock_offset_s = offset_s
            return
        step_s = offset_s - self._clock_offset_s
        if abs(step_s) >= _CLOCK_STEP_S:
            self._clock_offset_s = offset_s
            self.counts.clock_jumps += 1
            if self._latest_ms is not None:
                self._latest_ms += round(step_s * 1000)

    def _is_late(self, ts_ms: int) -> bool:
        if self._latest_ms is None:
            return False
        latest_ms = self._latest_ms if self._clock_ms is None else min(self._latest_ms, self._clock_ms)
        return latest_ms - ts_ms > self.policy.late_ms

    def _digest(self, event: Event) -> bytes | None:
        """Return the digest by which duplicates are found; None if the event is a duplicate of no other."""
        field = self.policy.id_field
        if field and field in event.contents:
            with contextlib.suppress(plain.PlainDataError):  # `encode` reports the same fault as an EventError
                return digest_of(plain.encode(event.contents[field]))
        if not self.policy.drop_equal or isinstance(event, RecordedEvent):
            return None
        return digest_of(event.encode())

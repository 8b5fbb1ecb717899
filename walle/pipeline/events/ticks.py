"""Ticks: entries of the event stream that have a time and no event (ADR 19).

A tick moves the time of the stream on where no event comes, so that timers become due. It enters no sequence and
matches no trigger id. It has a position, so that a replay finds it where it was.
"""

import dataclasses

from walle.pipeline.events.event import MAX_TS_MS, EventError


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """The time of the stream, in milliseconds since the epoch.

    Raises:
        EventError: the time is not a whole number, negative or larger than MAX_TS_MS.
    """

    ts_ms: int

    def __post_init__(self) -> None:
        if type(self.ts_ms) is not int or not 0 <= self.ts_ms <= MAX_TS_MS:
            raise EventError("ts_ms", f"{self.ts_ms!r} is not milliseconds since the epoch")

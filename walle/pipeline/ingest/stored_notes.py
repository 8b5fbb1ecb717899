"""Notes on stored uploads that a tunnel process passes on: delays, and what spans of sampled runs are made of."""

import collections
import time

from walle.pipeline.features.topics import owner
from walle.pipeline.tunnel.received import Received
from walle.protocol.traces import TraceKind, is_sampled, trace_id

_DELAYS_KEPT = 1000  # delays of uploads kept between two reports
_TRACED_KEPT = 1000  # uploads of sampled runs, likewise


class StoredNotes:
    """Notes since the last `take`, of bounded size. `trace_ratio` is the share of runs that are followed."""

    def __init__(self, trace_ratio: float) -> None:
        self._trace_ratio = trace_ratio
        self._delays_ms: collections.deque[float] = collections.deque(maxlen=_DELAYS_KEPT)
        self._traced: collections.deque[list[object]] = collections.deque(maxlen=_TRACED_KEPT)

    async def add(self, batch: list[Received]) -> None:
        """Note a batch of uploads that were stored just now."""
        self._delays_ms.extend(received.received_ms - received.sent_ms for received in batch)
        if not self._trace_ratio:
            return
        stored_s = time.time()
        for one in batch:
            trace = trace_id(TraceKind.RUN, one.device_id, owner(one.topic), str(one.sent_ms))
            if is_sampled(trace, self._trace_ratio):
                self._traced.append(
                    [one.device_id, one.epoch, one.seq, one.topic, one.sent_ms, one.received_ms, stored_s]
                )

    def take(self) -> tuple[list[float], list[list[object]]]:
        """Return the delays in milliseconds, and the uploads of sampled runs without payloads, and forget them."""
        notes = list(self._delays_ms), list(self._traced)
        self._delays_ms.clear()
        self._traced.clear()
        return notes

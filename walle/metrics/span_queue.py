"""Queue of spans before an OTLP exporter: bounded, and what is lost is counted by its cause.

OpenTelemetry's batch processor drops the oldest span of a full queue and writes a warning, at most one in 20 s; a batch
that the receiver does not take is lost with a line in the log. Here a span is refused before that queue is full, and
batches are counted where they are handed on. docs/adr/0031-operation.md says why the SDK's own counts do not do.
"""

import collections
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from walle.metrics.table import counter, counter_of, gauge_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter

MAX_SPANS = 8192  # each has 1.4 KB; at 2,000 spans/s, 4 s of a receiver that does not answer
CAUSES = ("device", "queue", "export")


class SpanQueue:
    """Sends spans in batches by `exporter`, in a separate thread. The length is OTEL_BSP_MAX_QUEUE_SIZE, if set.

    `dropped` counts spans by cause: `device` (its spans of a minute), `queue` (it was full), `export` (the receiver did
    not take them).
    """

    def __init__(self, exporter: "SpanExporter", *, max_spans: int = MAX_SPANS) -> None:
        from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self.dropped = collections.Counter[str]()
        self.exported = 0  # spans that the receiver took
        self._added = 0
        self._taken = 0  # spans that the exporter took
        own = None if OTEL_BSP_MAX_QUEUE_SIZE in os.environ else max_spans
        self._processor: SpanProcessor = BatchSpanProcessor(self._counting(exporter), max_queue_size=own)
        self.max_spans = own or int(os.environ[OTEL_BSP_MAX_QUEUE_SIZE])

    def __len__(self) -> int:
        return self._added - self._taken

    def add(self, span: "ReadableSpan") -> None:
        """Send a span with a later batch; where the queue is full, drop it."""
        if len(self) >= self.max_spans:
            self.dropped["queue"] += 1
            return
        self._added += 1
        self._processor.on_end(span)

    def flush(self) -> None:
        """Send all spans; this blocks for as long as the exporter's timeout."""
        self._processor.force_flush()

    def close(self) -> None:
        """Send what is left, and end the thread; this blocks for as long as the exporter's timeout."""
        self._processor.shutdown()

    def health(self) -> Mapping[str, Any]:
        """Return the state: a cloud works without its traces."""
        return {"ok": True}

    def metrics(self) -> list[Metric]:
        """Return the counts for a scrape."""
        dropped = counter("walle_trace_spans_dropped_total")
        for cause in CAUSES:
            dropped.add_metric([cause], self.dropped[cause])
        return [
            counter_of("walle_trace_spans_exported_total", self.exported),
            dropped,
            gauge_of("walle_trace_queue_spans", len(self)),
        ]

    def _counting(self, exporter: "SpanExporter") -> "SpanExporter":
        """Return an exporter that counts. Its class is made here, as OpenTelemetry is an extra."""
        from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

        queue = self

        class Counting(SpanExporter):
            def export(self, spans: "Sequence[ReadableSpan]") -> SpanExportResult:
                queue._taken += len(spans)
                result = SpanExportResult.FAILURE
                try:
                    result = exporter.export(spans)
                finally:
                    if result is SpanExportResult.SUCCESS:
                        queue.exported += len(spans)
                    else:
                        queue.dropped["export"] += len(spans)
                return result

            def shutdown(self) -> None:
                exporter.shutdown()

            def force_flush(self, timeout_millis: int = 30_000) -> bool:
                return exporter.force_flush(timeout_millis)

        return Counting()

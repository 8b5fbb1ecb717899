"""Traces across gateway, device, tunnel, ingest and consumer, exported by OpenTelemetry's OTLP over HTTP.

The cloud makes all spans, from what it sees and from the times that devices report. Ids are computed from names that
both sides know (`walle.protocol.traces`), so that a consumer in another process adds to the same trace.

    push.answer ─► device.verify, device.pull, device.check, device.activate                  one install
    device.trigger ─► vm.run, feature.put, tunnel.frame ─► ingest.store ─► consume            one run
"""

import collections
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from walle.base.clock import Clock
from walle.base.extras import install_hint
from walle.errors import ConfigError
from walle.metrics.span_queue import SpanQueue
from walle.pipeline.features.topics import owner
from walle.pipeline.tunnel.received import Received
from walle.protocol import Directive, OutcomeBatch, printable
from walle.protocol.traces import TraceKind, install_key, is_sampled, span_id, trace_id

FROM_ENVIRONMENT = "env"  # replaces an address: OTEL_EXPORTER_OTLP_ENDPOINT and the other variables decide alone
_SPANS_PER_MINUTE = 600  # spans of one device: more are dropped, so that it cannot crowd others out
_MAX_DEVICES = 10_000  # devices counted in a minute; the spans of others are dropped
_MAX_ANSWERS = 10_000  # installs whose answer has a span already
_ROOT = {TraceKind.INSTALL: "push.answer", TraceKind.RUN: "device.trigger"}


def exporter(address: str) -> SpanQueue:
    """Return what sends spans in batches to the collector at `address`, in a separate thread.

    `address` is that of an OTLP receiver, such as http://127.0.0.1:4318, or FROM_ENVIRONMENT. Headers, certificates,
    timeouts, queue and batch sizes come from the standard OTEL_* variables.

    Raises:
        ConfigError: OpenTelemetry is not installed, or the address is not one of HTTP.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(f"traces need OpenTelemetry ({error}); install it with: {install_hint('traces')}") from error
    if address == FROM_ENVIRONMENT:
        return SpanQueue(OTLPSpanExporter())
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"{address[:200]!r} is not the address of an OTLP receiver; such as http://127.0.0.1:4318")
    whole = address if address.endswith("/v1/traces") else f"{address.rstrip('/')}/v1/traces"
    return SpanQueue(OTLPSpanExporter(endpoint=whole))


class Tracer:
    """Makes the spans of the traces of which `ratio` are sampled, and passes them to `queue`."""

    def __init__(self, ratio: float, queue: SpanQueue, clock: Clock) -> None:
        from opentelemetry.sdk.resources import Resource

        if not 0 < ratio <= 1:
            raise ConfigError(f"the share of traces, {ratio}, must be above 0 and at most 1")
        self.ratio = ratio
        self.queue = queue
        self._clock = clock
        name = os.environ.get("OTEL_SERVICE_NAME", "walle")
        self._resource = Resource.create({"service.name": name})
        self._answered: collections.OrderedDict[bytes, None] = collections.OrderedDict()
        self._spans = collections.Counter[str]()  # spans of each device in this minute
        self._minute = 0

    # --- what the cloud sees ------------------------------------------------------------------------------------------

    def answered(self, device_id: str, directives: Iterable[Directive]) -> None:
        """Take note of directives in a push answer. The first answer with a directive is the root of its install."""
        now_ns = int(self._clock.time() * 1e9)
        for directive in directives:
            key = install_key(directive.release, directive.version)
            trace = trace_id(TraceKind.INSTALL, device_id, directive.task, key)
            if trace in self._answered or not is_sampled(trace, self.ratio):
                continue
            if len(self._answered) >= _MAX_ANSWERS:
                self._answered.popitem(last=False)
            self._answered[trace] = None
            named = {
                "walle.task": directive.task,
                "walle.version": directive.version,
                "walle.release": directive.release,
            }
            self._add(device_id, trace, "push.answer", None, now_ns, now_ns, named)

    def reported(self, batch: OutcomeBatch) -> None:
        """Make the spans of the times in a device's report."""
        for one in batch.traces:
            trace = trace_id(one.kind, batch.device_id, one.task, one.key)
            if not is_sampled(trace, self.ratio):
                continue
            root = _ROOT[one.kind]
            for span in one.spans:
                start_ns = span.start_us * 1000
                parent = None if span.name == root else root
                named = {"walle.task": one.task, "walle.base.clock": "device"}
                self._add(batch.device_id, trace, span.name, parent, start_ns, start_ns + span.length_us * 1000, named)

    def stored(self, batch: Sequence[Received], at_s: float) -> None:
        """Make the spans of uploads that were received, and stored at `at_s`, in seconds since the epoch."""
        for upload in batch:
            task = owner(upload.topic)
            trace = trace_id(TraceKind.RUN, upload.device_id, task, str(upload.sent_ms))
            if not is_sampled(trace, self.ratio):
                continue
            received_ns = upload.received_ms * 1_000_000
            frame, store = _upload_spans(upload)
            named = {"walle.task": task, "walle.topic": upload.topic, "walle.upload": upload.seq}
            sent_ns = max(0, min(upload.sent_ms * 1_000_000, received_ns))  # OTLP has no time before 1970
            self._add(upload.device_id, trace, frame, "device.trigger", sent_ns, received_ns, named)
            self._add(upload.device_id, trace, store, frame, received_ns, max(received_ns, int(at_s * 1e9)), named)

    def consumed(self, group: str, uploads: Iterable[Received], began_s: float, ended_s: float) -> None:
        """Make the spans of uploads that a consumer group used between these times, in seconds since the epoch."""
        for upload in uploads:
            task = owner(upload.topic)
            trace = trace_id(TraceKind.RUN, upload.device_id, task, str(upload.sent_ms))
            if is_sampled(trace, self.ratio):
                _, store = _upload_spans(upload)
                named = {"walle.task": task, "walle.group": group, "walle.upload": upload.seq}
                name = f"consume {group} {upload.epoch} {upload.seq}"
                self._add(upload.device_id, trace, name, store, int(began_s * 1e9), int(ended_s * 1e9), named)

    def flush(self) -> None:
        """Send what was made so far; this blocks for as long as the exporter's timeout."""
        self.queue.flush()

    def close(self) -> None:
        """Send what is left; this blocks for as long as the exporter's timeout."""
        self.queue.close()

    # --- spans --------------------------------------------------------------------------------------------------------

    def _add(
        self,
        device_id: str,
        trace: bytes,
        name: str,
        parent: str | None,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Any],
    ) -> None:
        """Make a span. Its id is of the whole `name`, of which what is seen is the first word."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, TraceFlags

        if not self._admits(device_id):
            return

        def context(of: str) -> SpanContext:
            sampled = TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(int.from_bytes(trace), int.from_bytes(span_id(trace, of)), False, sampled)

        span = ReadableSpan(
            name.partition(" ")[0],
            context=context(name),
            parent=None if parent is None else context(parent),
            resource=self._resource,
            attributes={
                key: printable(value) if isinstance(value, str) else value
                for key, value in {"walle.device": device_id, **attributes}.items()
            },
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=InstrumentationScope("walle"),
        )
        self.queue.add(span)

    def _admits(self, device_id: str) -> bool:
        minute = int(self._clock.monotonic() // 60)
        if minute != self._minute:
            self._minute = minute
            self._spans.clear()
        if self._spans[device_id] >= _SPANS_PER_MINUTE or (
            device_id not in self._spans and len(self._spans) >= _MAX_DEVICES
        ):
            self.queue.dropped["device"] += 1
            return False
        self._spans[device_id] += 1
        return True


def _upload_spans(upload: Received) -> tuple[str, str]:
    """Return the names of an upload's spans, of which a run may have several."""
    return f"tunnel.frame {upload.epoch} {upload.seq}", f"ingest.store {upload.epoch} {upload.seq}"

"""Traces of installs and of runs: ids that both sides compute, and the times that a device reports.

No message has the id of a trace. It is the digest of what names the install or the run on both sides: the device, which
its session or certificate proves, the task, and the release's version or the time of the event, which are in the
directive and in the upload's frame. So a device can add to its own traces only, and older peers see no difference.
"""

import dataclasses
import enum
import hashlib
from typing import Any, Self

from walle.protocol.fields import ProtocolError, shorten, take

TRACE_HEADER = "X-Walle-Trace"
MAX_TIME_US = 1 << 53


class TraceKind(enum.StrEnum):
    """Kind of what a trace follows."""

    INSTALL = "install"  # way from the answer with a directive to the activation; its key is RELEASE:VERSION
    RUN = "run"  # way from an event to the consumer of its outputs; its key is the event's arrival in ms since 1970


SPANS = {
    TraceKind.INSTALL: ("device.verify", "device.pull", "device.check", "device.activate"),
    TraceKind.RUN: ("device.trigger", "vm.run", "feature.put"),
}


def trace_id(kind: TraceKind, device_id: str, task: str, key: str) -> bytes:
    """Return the 16 bytes of a trace's id in W3C Trace Context."""
    parts = f"{kind.value}\0{device_id}\0{task}\0{key}".encode(errors="replace")
    return hashlib.blake2b(parts, digest_size=16, person=b"walle trace").digest()


def span_id(trace: bytes, name: str) -> bytes:
    """Return the 8 bytes of the id of the span of that name in a trace."""
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=8, key=trace, person=b"walle span").digest()


def is_sampled(trace: bytes, ratio: float) -> bool:
    """Return whether a trace is one of the share `ratio` that is kept, as every party decides it."""
    return ratio > 0 and int.from_bytes(trace[8:]) < ratio * (1 << 64)


def install_key(release: str, version: str) -> str:
    return f"{release}:{version}"


def run_key(came_s: float) -> str:
    """Return the key of a run; an upload of the run has the same milliseconds as its `sent_ms`."""
    return str(int(came_s * 1000))


def ratio_from_header(header: str) -> float:
    """Return the share of traces that the cloud asks for, 0 for a header that is empty or wrong."""
    try:
        ratio = float(header or "0")
    except ValueError:
        return 0.0
    return ratio if 0 <= ratio <= 1 else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class TracedSpan:
    """A part of a trace on a device, in microseconds since the Unix epoch by the device's clock."""

    name: str
    start_us: int
    length_us: int


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceTrace:
    """The times of one install or run. The cloud knows the parents of the spans by their names."""

    kind: TraceKind
    task: str
    key: str
    spans: tuple[TracedSpan, ...]

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Parse a trace. Raises ProtocolError, which names the part, for a span whose name is not of its kind."""
        if not isinstance(value, dict):
            raise ProtocolError(where, f"must be an object, is {type(value).__name__}")
        kind, task, key = (take(value, name, str, where) for name in ("kind", "task", "key"))
        if kind not in set(TraceKind):
            raise ProtocolError(f"{where}.kind", f"{shorten(kind)} is not one of {', '.join(TraceKind)}")
        if len(task) > 200 or len(key) > 200:
            raise ProtocolError(where, "task and key have 200 characters at most")
        allowed = SPANS[TraceKind(kind)]
        entries = take(value, "spans", list, where)
        if len(entries) > len(allowed):
            raise ProtocolError(f"{where}.spans", f"{len(entries)} spans, more than {len(allowed)}")
        spans: list[TracedSpan] = []
        for index, entry in enumerate(entries):
            at = f"{where}.spans[{index}]"
            if not isinstance(entry, dict):
                raise ProtocolError(at, f"must be an object, is {type(entry).__name__}")
            name = take(entry, "name", str, at)
            if name not in allowed or any(span.name == name for span in spans):
                raise ProtocolError(f"{at}.name", f"{shorten(name)} is not a span of {kind}, or is there twice")
            start_us, length_us = (take(entry, field, int, at) for field in ("start_us", "length_us"))
            if not 0 <= start_us <= MAX_TIME_US or not 0 <= length_us <= MAX_TIME_US:
                raise ProtocolError(at, f"times are from 0 to {MAX_TIME_US} microseconds")
            spans.append(TracedSpan(name, start_us, length_us))
        return cls(TraceKind(kind), task, key, tuple(spans))

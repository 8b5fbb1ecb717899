"""Values of a tunnel server: a received upload, and where a device's uploads continue."""

from typing import NamedTuple


class Received(NamedTuple):
    """One received upload. `sent_ms` is by the device's clock, `received_ms` by the cloud's.

    `packed` is the compressed body of its frame where a store may keep that in place of the payload; else empty: see
    `walle.pipeline.ingest.store.packed_payload`. `version` is that of the task which made it, "" if that is unknown.
    """

    device_id: str
    epoch: str
    seq: int
    topic: str
    payload: bytes
    sent_ms: int
    received_ms: int
    packed: bytes = b""
    version: str = ""


def memory_bytes(topic: str, payload: bytes) -> int:
    """Return what an upload or a request takes of the byte budget."""
    return len(topic.encode()) + len(payload)


class ResumePoint(NamedTuple):
    """The highest durable number of a (device, epoch), and the chain value there."""

    seq: int
    chain: int

"""Bounds of the quarantine: uploads that the database refuses for their contents and that are set aside.

A device's numbers continue after such an upload. One with MAX_OF_DEVICE of them is refused at its next one and keeps
its uploads; so is every device once MAX_REFUSED are set aside, since the fault is then the database's.
"""

from collections.abc import Iterable

from walle.base import plain
from walle.pipeline.ingest.store.receipt import MAX_READ_BYTES, RefusedUpload
from walle.pipeline.tunnel.received import Received
from walle.protocol import printable

MAX_OF_DEVICE = 16
MAX_REFUSED = 256
_MAX_CONTENTS_BYTES = (1 << 20) + 1024  # the longest feature that a device makes, and its topic
_MAX_REASON_CHARS = 500


def refused_upload(received: Received, reason: str, now_ms: int) -> RefusedUpload:
    """Return the upload as it is set aside: in bytes and printable text, which every database takes."""
    contents: bytes | None
    try:
        parts = [received.topic, received.payload, received.sent_ms, received.received_ms, received.version]
        contents = plain.encode(parts)
    except plain.PlainDataError:
        contents = None
    if contents is not None and len(contents) > _MAX_CONTENTS_BYTES:
        contents = None
    reason = printable(reason[:_MAX_REASON_CHARS])
    return RefusedUpload(received.device_id, received.epoch, received.seq, reason, contents, now_ms)


def devices_of_page(sizes: Iterable[tuple[str, int]]) -> list[str]:
    """Return the devices whose uploads one read returns: the first, and those after it that fit MAX_READ_BYTES.

    `sizes` are the devices with the bytes of their contents, by the age of their oldest upload. A device's uploads are
    returned together, so that they can be removed once they are read.
    """
    devices: list[str] = []
    total_bytes = 0
    for device_id, size_bytes in sizes:
        total_bytes += size_bytes
        if devices and total_bytes > MAX_READ_BYTES:
            break
        devices.append(device_id)
    return devices

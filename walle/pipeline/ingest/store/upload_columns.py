"""Stored uploads in columns: a sequence for each field, for readers of many uploads."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from walle.pipeline.tunnel.received import Received


class UploadColumns(NamedTuple):
    """The fields of uploads that a feature shows, each with one value for each upload, in the order of the positions.

    `sent_ms` is by the devices' clocks, `received_ms` by the cloud's, in milliseconds since the epoch.
    """

    positions: Sequence[int] = ()
    devices: Sequence[str] = ()
    topics: Sequence[str] = ()
    payloads: Sequence[bytes] = ()
    sent_ms: Sequence[int] = ()
    received_ms: Sequence[int] = ()
    versions: Sequence[str] = ()


def upload_columns(uploads: Sequence[tuple[int, Received]]) -> UploadColumns:
    """Return uploads, with their positions, in columns."""
    if not uploads:
        return UploadColumns()
    positions, received = zip(*uploads, strict=True)
    devices, _, _, topics, payloads, sent_ms, received_ms, _, versions = zip(*received, strict=True)
    return UploadColumns(positions, devices, topics, payloads, sent_ms, received_ms, versions)


def within_bytes(uploads: Sequence[tuple[int, Received]], max_bytes: int) -> Sequence[tuple[int, Received]]:
    """Return the first uploads, up to that with which the payloads have `max_bytes`."""
    sizes = itertools.accumulate(len(received.payload) for _, received in uploads)
    return uploads[: next((count for count, size in enumerate(sizes, 1) if size >= max_bytes), len(uploads))]

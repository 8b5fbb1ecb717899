"""Payloads that the SQLite store keeps compressed, as they came.

A commit is synced before its uploads are acknowledged, and takes the longer the more pages it writes. A large upload
comes compressed, so its row has the body of the frame in place of the payload: the zstd frame of an `Upload` (kind 3 of
docs/protocol.md), which no dictionary is needed to read. The column `packed` says which rows are so: 1; it is 2 where
the body was damaged and is set aside (`sqlite_quarantine`).
"""

import sqlite3

import zstandard

from walle.pipeline.tunnel.layouts import MAX_BODY_BYTES, FrameError, upload_fields

PACKED_FROM_BYTES = 8 << 10  # smallest payload that is kept compressed, as `upload_scan.cpp` decides
MOST_TIMES_PACKED = 16  # a payload's size in that of its body, rounded down


class DamagedPayloadError(sqlite3.DatabaseError):
    """A stored body, of the upload at `position`, from which no payload can be read."""

    def __init__(self, position: int, what: str) -> None:
        super().__init__(f"the compressed payload of the upload at position {position} is damaged: {what}")
        self.position = position


def unpack_payload(position: int, body: bytes) -> bytes:
    """Return the payload of the upload whose compressed frame's body is stored at `position`.

    Raises:
        DamagedPayloadError: the body is damaged.
    """
    try:
        size_bytes = zstandard.frame_content_size(body)
        if 0 <= size_bytes <= MAX_BODY_BYTES:
            unpacked = zstandard.ZstdDecompressor().decompress(body, max_output_size=size_bytes, allow_extra_data=False)
            return upload_fields(unpacked)[2]
        what = f"it states {size_bytes} bytes, of at most {MAX_BODY_BYTES}"
    except (zstandard.ZstdError, FrameError) as error:
        what = str(error)
    raise DamagedPayloadError(position, what)

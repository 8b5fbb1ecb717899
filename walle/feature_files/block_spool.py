"""Blocks of features in a spool: each is its length in 8 bytes and an Arrow IPC stream of one batch."""

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTH_BYTES = 8


def encoded(block: "pa.RecordBatch") -> bytes:
    """Return a block as it is appended to a spool."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_batch(block)
    data: bytes = sink.getvalue().to_pybytes()
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def blocks(file: IO[bytes]) -> Iterator[tuple["pa.RecordBatch", int]]:
    """Yield the blocks from the file's place on, each with the place after it, up to one that is cut or damaged."""
    import pyarrow as pa

    while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
        data = file.read(length) if (length := int.from_bytes(head, "big")) < 1 << 40 else b""
        if len(data) < length:
            return
        try:
            (block,) = pa.ipc.open_stream(pa.py_buffer(data))
        except (pa.ArrowInvalid, ValueError, OSError):
            return
        yield block, file.tell()

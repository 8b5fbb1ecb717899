"""Uploads, clocks and a source of batches for tests of the stores of uploads."""

import asyncio
import collections
import random
from collections.abc import Callable, Mapping, Sequence

from walle.base.clock import SystemClock
from walle.pipeline.features.checksums import first_link, next_link, row_checksum
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.tunnel.frames import Decoder, Encoder
from walle.pipeline.tunnel.received import Received
from walle.protocol import Upload

type MakeStore = Callable[[], UploadStore]
type RefuseTopic = Callable[[str], None]


def received(seq: int, *, device: str = "d", epoch: str = "e", topic: str = "t", payload: bytes = b"x") -> Received:
    return Received(device, epoch, seq, topic, payload, 10 * seq, 10 * seq + 1)


def came_compressed(
    seq: int, *, device: str = "d", epoch: str = "e", topic: str = "t", payload: bytes = b""
) -> Received:
    """Return an upload, of 20,000 bytes without `payload`, as the tunnel reads it from a frame whose body it keeps."""
    upload = Upload(seq, topic, payload or random.Random(seq).randbytes(10_000).hex().encode(), 10 * seq)
    decoder = Decoder()
    decoder.add(Encoder().encode(upload))
    ((record,), _) = decoder.records(Received, (device, epoch, 10 * seq + 1), (seq, seq), 1, 1 << 20)
    assert record.packed
    return record


def as_read(uploads: Sequence[Received]) -> list[Received]:
    """Return uploads as a store returns them: without their compressed bodies."""
    return [upload._replace(packed=b"") for upload in uploads]


def moved(uploads: list[Received], epoch: str) -> list[Received]:
    """Return the uploads as a new epoch numbers them, from 1."""
    return [upload._replace(epoch=epoch, seq=seq) for seq, upload in enumerate(uploads, 1)]


def chain_of(rows: list[Received], epoch: str = "e") -> int:
    chain = first_link(epoch)
    for row in rows:
        chain = next_link(chain, row_checksum(row.topic, row.payload, row.sent_ms))
    return chain


async def stored(store: UploadStore) -> list[Received]:
    return [row for _, row in await store.query(limit=10**6)]


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Return once `condition` holds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - the condition is of an object under test, which sets no event
            await asyncio.sleep(0.005)


def is_measuring(store: UploadStore) -> bool:
    """Return whether a device's stored uploads are being summed."""
    assert store._quota is not None
    return bool(store._quota._measuring)


class SetClock(SystemClock):
    """A clock whose times are set; sleeps are real."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.monotonic_s = 0.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.monotonic_s


class Batches:
    """A tunnel server's side of the pump: batches in, acknowledgements and refusals out. It ends after the last one."""

    def __init__(self, *batches: list[Received]) -> None:
        self.batches = collections.deque(batches)
        self.acked: dict[str, int] = {}
        self.refusals: list[tuple[str, str]] = []
        self.returned: list[Received] = []

    async def arrived(self, limit: int) -> list[Received]:
        return self.batches.popleft() if self.batches else []

    def put_back(self, batch: list[Received]) -> None:
        self.returned += batch

    def acknowledge_all(self, highest: Mapping[tuple[str, str], int]) -> None:
        self.acked |= {device_id: seq for (device_id, _), seq in highest.items()}

    async def disconnect(self, device_id: str, epoch: str, code: str, message: str, retry_s: float) -> None:
        self.refusals.append((device_id, code))

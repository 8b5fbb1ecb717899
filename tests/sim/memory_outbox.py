"""An outbox in memory, for tests of the tunnel alone. It outlives a client, as the SQLite one outlives a process."""

import asyncio

from walle.pipeline.features.checksums import first_link, next_link, row_checksum
from walle.protocol import Origin, OutboxMark, Upload


class MemoryOutbox:
    def __init__(self, epoch: str = "epoch-1") -> None:
        self.epoch = epoch
        self.last_seq = 0
        self.forgotten = 0
        self.uploads: list[Upload] = []
        self.origins: tuple[Origin, ...] = ()
        self.chains = [first_link(epoch)]
        self._more = asyncio.Event()

    @property
    def mark(self) -> OutboxMark:
        return OutboxMark(self.epoch, self.forgotten, self.chains[self.forgotten], self.origins)

    def add(self, topic: str, payload: bytes) -> int:
        self.last_seq += 1
        self.uploads.append(Upload(self.last_seq, topic, payload, 1000 + self.last_seq))
        checksum = row_checksum(topic, payload, 1000 + self.last_seq)
        self.chains.append(next_link(self.chains[-1], checksum))
        self._more.set()
        self._more = asyncio.Event()
        return self.last_seq

    async def put(self, topic: str, payload: bytes) -> int:
        return self.add(topic, payload)

    async def batch(self, after_seq: int, limit: int) -> list[Upload]:
        skipped = max(0, after_seq - self.forgotten)
        return self.uploads[skipped : skipped + limit]

    async def forget(self, upto_seq: int) -> None:
        gone = max(0, min(upto_seq, self.last_seq) - self.forgotten)
        del self.uploads[:gone]
        self.forgotten += gone

    async def reconcile(self, acked: int, chain: int) -> bool:
        if acked < self.forgotten:
            return False
        if acked <= self.last_seq and self.chains[acked] == chain:
            return True
        self.origins = (Origin(self.epoch, self.forgotten, self.forgotten, self.last_seq - self.forgotten),)
        self.epoch += "+"
        self.chains = [first_link(self.epoch)]
        self.last_seq, self.forgotten, moved, self.uploads = 0, 0, self.uploads, []
        for upload in moved:
            self.last_seq += 1
            self.uploads.append(upload.__class__(self.last_seq, upload.topic, upload.payload, upload.sent_ms))
            checksum = row_checksum(upload.topic, upload.payload, upload.sent_ms)
            self.chains.append(next_link(self.chains[-1], checksum))
        return False

    async def wait_for_more(self, after_seq: int) -> None:
        while self.last_seq <= after_seq:
            await self._more.wait()

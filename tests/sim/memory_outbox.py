"""An outbox in memory, for tests of the tunnel alone. It outlives a client, as the SQLite one outlives a process."""

import asyncio

from walle.protocol import Upload


class MemoryOutbox:
    def __init__(self, epoch: str = "epoch-1") -> None:
        self.epoch = epoch
        self.last_seq = 0
        self.forgotten = 0
        self.uploads: list[Upload] = []
        self._more = asyncio.Event()

    def add(self, topic: str, payload: bytes) -> int:
        self.last_seq += 1
        self.uploads.append(Upload(self.last_seq, topic, payload, 1000 + self.last_seq))
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

    async def wait_for_more(self, after_seq: int) -> None:
        while self.last_seq <= after_seq:
            await self._more.wait()

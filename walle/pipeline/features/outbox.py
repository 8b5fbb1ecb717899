"""The outbox: a device's uploads that the cloud has not acknowledged yet; the tunnel's interface to the feature store.

Sending is oldest first, so that no old feature starves. Rows are numbered from 1 without gaps within an epoch, which
lasts as long as the store's file is neither restored from a copy nor damaged. Bounded by the store's
`max_outbox_bytes`: at the bound `FeatureStore.put` blocks; nothing is dropped.
"""

from walle.pipeline.features.store import FeatureStore
from walle.protocol import OutboxMark, Upload

MAX_BATCH_BYTES = 1 << 20


class Outbox:
    """The unsent uploads of an open store."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store

    @property
    def epoch(self) -> str:
        """The id under which uploads are numbered now: random hex."""
        return self._store.state.epoch

    @property
    def mark(self) -> OutboxMark:
        state = self._store.state
        return OutboxMark(state.epoch, state.acked, state.acked_chain, state.origins)

    @property
    def last_seq(self) -> int:
        """The highest number assigned so far, 0 before the first."""
        return self._store.state.last_seq

    @property
    def size_bytes(self) -> int:
        """The bytes that are not acknowledged yet."""
        return self._store.state.outbox_bytes

    async def put(self, topic: str, payload: object) -> None:
        """Store one upload durably: it is in the file when this returns.

        Raises:
            PayloadError, StoreError: as `FeatureStore.put` and `flush`.
        """
        await self._store.put(topic, payload)
        await self._store.flush()

    async def batch(self, after_seq: int, limit: int) -> list[Upload]:
        """Return at most `limit` uploads after `after_seq`, oldest first; each is durable before it is returned.

        Cut at MAX_BATCH_BYTES, with one upload at least. Empty if all are sent.
        """
        return await self._store.call(lambda database: database.uploads(after_seq, limit, MAX_BATCH_BYTES))

    async def forget(self, upto_seq: int) -> None:
        """Remove everything up to and with `upto_seq`, which the cloud has acknowledged.

        The rows leave the file with the store's next transaction. After a crash before that they are sent again, and
        the cloud drops them by their numbers.
        """
        self._store.forget(min(upto_seq, self.last_seq))

    async def reconcile(self, acked: int, chain: int) -> bool:
        """Compare the cloud's highest number and its chain value there with the outbox; return whether they agree.

        If they do not and this outbox is an older copy of itself, it starts a new epoch.
        """
        return await self._store.call(lambda database: database.reconcile(acked, chain))

    async def wait_for_more(self, after_seq: int) -> None:
        """Return once there is an upload after `after_seq`, or a new epoch begins.

        Raises:
            StoreClosedError: the store was closed while this waited.
        """
        await self._store.wait_for_seq(after_seq)

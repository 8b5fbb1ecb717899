"""Release tables on their way to devices: a new version is held back until fallback inference has it loaded.

Without this the first devices of a release would ask for a version that is not loaded yet, and be answered too late.
"""

import asyncio
import logging
from typing import Protocol

from walle.base.clock import Clock
from walle.cloud.api.interfaces import InferencePeer
from walle.deploy.releases.table import ReleaseTable

HOLD_S = 30.0  # time for a version to be loaded; devices get it then all the same

_LOG = logging.getLogger(__name__)


class TableTaker(Protocol):
    """Answers devices from a table (`Answerer`)."""

    def swap(self, table: ReleaseTable) -> None: ...


class TablePublisher:
    """Gives tables to `answerer` from `start` on. Only devices that have a version which is held back keep it.

    A rollback never waits: a version is held back once, when a table first has it as a candidate.
    """

    def __init__(self, answerer: TableTaker, clock: Clock) -> None:
        self._answerer = answerer
        self._clock = clock
        self._inference: InferencePeer | None = None
        self._table = ReleaseTable()
        self._let_out: set[str] = set()  # candidates that were held back long enough, or need not be
        self._loading: dict[str, asyncio.Task[None]] = {}

    async def start(self, inference: InferencePeer) -> None:
        """Hold candidates back from now on, those of the table so far too."""
        self._inference = inference
        await self.publish(self._table)

    async def close(self) -> None:
        self._inference = None
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)

    async def publish(self, table: ReleaseTable) -> None:
        """Answer from `table` from now on; a table that is older than the current one is ignored."""
        inference = self._inference
        new = [one for one in table.candidates if one not in self._let_out and one not in self._loading]
        cold = await inference.cold(new) if inference is not None and new else frozenset[str]()
        if table.generation < self._table.generation:  # another table came meanwhile, such as a rollback
            return
        self._table = table
        if inference is not None:
            self._let_out = (self._let_out | set(new) - cold) & set(table.candidates)
            for manifest in cold - self._loading.keys():
                self._loading[manifest] = asyncio.create_task(self._load(inference, manifest))
        self._swap()
        if inference is not None:
            await inference.keep(table.served)

    def _swap(self) -> None:
        self._answerer.swap(self._table.hold(self._loading.keys()))

    async def _load(self, inference: InferencePeer, manifest: str) -> None:
        loading = asyncio.create_task(inference.load(manifest))
        waiting = asyncio.create_task(self._clock.sleep(HOLD_S))
        try:
            await asyncio.wait([loading, waiting], return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                _LOG.warning("a version is released that is not loaded after %.0f s: %s", HOLD_S, manifest)
        finally:
            for task in (loading, waiting):
                task.cancel()
            (failed,) = await asyncio.gather(loading, return_exceptions=True)
            if isinstance(failed, Exception):
                _LOG.warning("a version is released that could not be loaded: %s: %s", manifest, failed)
            del self._loading[manifest]
            self._let_out.add(manifest)
            self._swap()

"""Features for the dashboard: a sample of the latest, a live tail, and what a device sent and lost."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from walle.access.access import Identity
from walle.cloud.api.features import Uploads, may_read
from walle.errors import DeployError
from walle.pipeline.ingest.store.feature_reader import FeatureFilter, FeatureReader, feature_row
from walle.pipeline.ingest.store.upload_store import IngestError

MAX_TAIL = 50  # features of one look
_LOG = logging.getLogger(__name__)


class UnreadableUploadsError(DeployError):
    """The store of uploads cannot be read now. The database's own words are in the log alone."""

    status = 503

    def __str__(self) -> str:
        return "the store of uploads cannot be read now; the cloud's log says why"


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except IngestError as error:
        _LOG.warning("features cannot be read: %s", error)
        raise UnreadableUploadsError from error


class FeatureSamples:
    """Reads the gateway's store of uploads; a caller gets features of the scenarios that they may read.

    Raises:
        ConfigError: a task is not named in full.
        UnreadableUploadsError: the store cannot be read.
    """

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    async def latest(
        self, identity: Identity, *, task: str, device: str, version: str = "", count: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the latest features, newest first, and the position after which a tail continues."""
        wanted = FeatureFilter(task=task, device=device, version=version)
        with _reading():
            page = await FeatureReader(self._uploads(), wanted, self._may(identity)).latest(count)
        return [feature_row(*one) for one in reversed(page.uploads)], page.head

    async def since(
        self, identity: Identity, *, task: str, device: str, version: str = "", after: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Return features after a position, newest first, at most MAX_TAIL, and the position to continue after."""
        wanted = FeatureFilter(task=task, device=device, version=version)
        with _reading():
            page = await FeatureReader(self._uploads(), wanted, self._may(identity)).page(after, MAX_TAIL)
        return [feature_row(*one) for one in reversed(page.uploads)], page.after

    async def losses(self, device_id: str) -> list[dict[str, Any]]:
        """Return losses of a device's uploads that were recorded, newest first."""
        with _reading():
            found = await self._uploads().losses(device_id)
        return [
            {
                "at_s": one.recorded_ms / 1000,
                "cause": str(one.loss.cause),
                "count": one.loss.count,
                "is_open": one.loss.is_open,
            }
            for one in found
        ][::-1]

    def _may(self, identity: Identity) -> Callable[[str], bool]:
        return lambda topic: may_read(identity, topic)

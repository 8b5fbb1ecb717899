"""Health and metrics of a cloud's stored uploads: topics, consumer groups and retention."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric

from walle.base.clock import Clock
from walle.metrics.table import counter, counter_of, gauge, gauge_of
from walle.pipeline.ingest.store.quarantine import MAX_REFUSED
from walle.pipeline.ingest.store.retention import ANY_TOPIC, Retention
from walle.pipeline.ingest.store.upload_store import GroupLag, IngestError, TopicSize, UploadStore

_LOG = logging.getLogger(__name__)

_REFRESH_S = 5.0
_TOPICS_SHOWN = 500  # topics in the metrics, each by itself


class UploadsWatch:
    """The state of the store, as `run` read it last."""

    def __init__(self, store: UploadStore, retention: Retention, clock: Clock) -> None:
        self._store = store
        self._retention = retention
        self._clock = clock
        self._topics: dict[str, TopicSize] = {}  # the largest ones
        self._total = TopicSize(0, 0)  # sum of all topics
        self._groups: dict[str, GroupLag] = {}
        self._refused = 0
        self._error = ""

    async def run(self) -> None:
        """Read the state every few seconds, until cancelled."""
        while True:
            try:
                await self.refresh()
            except IngestError as error:
                _LOG.debug("the state of uploads is not read: %s", error)
            await self._clock.sleep(_REFRESH_S)

    async def refresh(self) -> None:
        """Read the state. Raises IngestError if the store cannot be used."""
        store = self._store
        try:
            self._topics, self._total = await store.largest_topics(_TOPICS_SHOWN + 1)  # one may be ANY_TOPIC
            self._groups, self._refused = await store.group_lags(), await store.refused_count()
        except IngestError as error:
            self._error = str(error)
            raise
        self._error = ""

    def health(self) -> dict[str, Any]:
        """Return the state as JSON. A group that lags is its owner's concern.

        `ok` is False while the store cannot be read, or keeps no more uploads that the database refuses: those of their
        devices wait.
        """
        error = self._error
        if self._refused >= MAX_REFUSED:
            error = error or f"the database refuses uploads, and the quarantine is full with {self._refused} of them"
        return {
            "ok": not error,
            "error": error,
            "stored": self._total.uploads,
            "bytes": self._total.size_bytes,
            "refused": self._refused,
            "log_bytes": self._store.log_bytes,
            "groups": {
                group: {"lag": lag.uploads, "lag_s": round(self._age_s(lag), 3)} for group, lag in self._groups.items()
            },
        }

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        uploads, size_bytes = gauge("walle_uploads_stored"), gauge("walle_uploads_bytes")
        for topic, size in _shown(self._topics, self._total):
            uploads.add_metric([topic], size.uploads)
            size_bytes.add_metric([topic], size.size_bytes)
        lag, age = gauge("walle_consumer_lag_uploads"), gauge("walle_consumer_lag_seconds")
        for group, of_group in self._groups.items():
            lag.add_metric([group], of_group.uploads)
            age.add_metric([group], self._age_s(of_group))
        deleted, deleted_bytes = counter("walle_uploads_deleted_total"), counter("walle_uploads_deleted_bytes_total")
        for topic, size in self._retention.deleted.items():
            deleted.add_metric([topic], size.uploads)
            deleted_bytes.add_metric([topic], size.size_bytes)
        failures = counter_of("walle_uploads_retention_failures_total", self._retention.failures)
        unconsumed = counter_of("walle_uploads_deleted_unconsumed_total", self._retention.unconsumed)
        refused = gauge_of("walle_uploads_refused", self._refused)
        log_bytes = gauge_of("walle_uploads_log_bytes", self._store.log_bytes)
        return [uploads, size_bytes, lag, age, deleted, deleted_bytes, failures, unconsumed, refused, log_bytes]

    def _age_s(self, lag: GroupLag) -> float:
        return 0.0 if lag.oldest_ms is None else max(0.0, self._clock.time() - lag.oldest_ms / 1000)


def _shown(largest: Mapping[str, TopicSize], total: TopicSize) -> Iterator[tuple[str, TopicSize]]:
    """Yield the largest topics, and all others together as ANY_TOPIC: a forged device may send any number of them."""
    uploads, size_bytes = total
    for topic in [topic for topic in largest if topic != ANY_TOPIC][:_TOPICS_SHOWN]:
        size = largest[topic]
        yield topic, size
        uploads, size_bytes = uploads - size.uploads, size_bytes - size.size_bytes
    if uploads:
        yield ANY_TOPIC, TopicSize(uploads, size_bytes)

"""Health and metrics of a cloud's stored uploads: topics, consumer groups and retention."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from walle.clock import Clock
from walle.pipeline.ingest.retention import ANY_TOPIC, Retention
from walle.pipeline.ingest.upload_store import GroupLag, IngestError, TopicSize, UploadStore

_LOG = logging.getLogger(__name__)

_REFRESH_S = 5.0
_TOPICS_SHOWN = 500  # in the metrics, each by itself


class UploadsWatch:
    """The state of the store, as `run` read it last."""

    def __init__(self, store: UploadStore, retention: Retention, clock: Clock) -> None:
        self._store = store
        self._retention = retention
        self._clock = clock
        self._topics: dict[str, TopicSize] = {}
        self._groups: dict[str, GroupLag] = {}

    async def run(self) -> None:
        """Read the state every few seconds, until cancelled. The tunnel's health says if the store cannot be used."""
        while True:
            try:
                await self.refresh()
            except IngestError as error:
                _LOG.debug("the state of uploads is not read: %s", error)
            await self._clock.sleep(_REFRESH_S)

    async def refresh(self) -> None:
        """Read the state. Raises IngestError if the store cannot be used."""
        self._topics, self._groups = await self._store.topics(), await self._store.group_lags()

    def health(self) -> dict[str, Any]:
        """Return the state as JSON; a group that lags is its owner's concern, and `ok` stays True."""
        return {
            "ok": True,
            "stored": sum(size.uploads for size in self._topics.values()),
            "bytes": sum(size.size_bytes for size in self._topics.values()),
            "groups": {
                group: {"lag": lag.uploads, "lag_s": round(self._age_s(lag), 3)} for group, lag in self._groups.items()
            },
        }

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        uploads = GaugeMetricFamily("walle_uploads_stored", "Uploads that are stored", labels=["topic"])
        size_bytes = GaugeMetricFamily("walle_uploads_bytes", "Payload bytes that are stored", labels=["topic"])
        for topic, size in _shown(self._topics):
            uploads.add_metric([topic], size.uploads)
            size_bytes.add_metric([topic], size.size_bytes)
        lag = GaugeMetricFamily(
            "walle_consumer_lag_uploads", "Uploads after a group's least committed position", labels=["group"]
        )
        age = GaugeMetricFamily(
            "walle_consumer_lag_seconds", "Age of the oldest upload that a group has not committed", labels=["group"]
        )
        for group, of_group in self._groups.items():
            lag.add_metric([group], of_group.uploads)
            age.add_metric([group], self._age_s(of_group))
        deleted = CounterMetricFamily("walle_uploads_deleted", "Uploads deleted by retention", labels=["topic"])
        deleted_bytes = CounterMetricFamily(
            "walle_uploads_deleted_bytes", "Payload bytes deleted by retention", labels=["topic"]
        )
        for topic, size in self._retention.deleted.items():
            deleted.add_metric([topic], size.uploads)
            deleted_bytes.add_metric([topic], size.size_bytes)
        failures = CounterMetricFamily("walle_uploads_retention_failures", "Failures to delete old uploads")
        failures.add_metric([], self._retention.failures)
        return [uploads, size_bytes, lag, age, deleted, deleted_bytes, failures]

    def _age_s(self, lag: GroupLag) -> float:
        return 0.0 if lag.oldest_ms is None else max(0.0, self._clock.time() - lag.oldest_ms / 1000)


def _shown(topics: Mapping[str, TopicSize]) -> Iterator[tuple[str, TopicSize]]:
    """Yield the largest topics, and all others together as ANY_TOPIC: a forged device may send any number of them."""
    ranked = sorted(topics.items(), key=lambda item: (item[0] == ANY_TOPIC, -item[1].size_bytes))
    shown = [(topic, size) for topic, size in ranked[:_TOPICS_SHOWN] if topic != ANY_TOPIC]
    yield from shown
    if others := [size for _, size in ranked[len(shown) :]]:
        yield ANY_TOPIC, TopicSize(sum(size.uploads for size in others), sum(size.size_bytes for size in others))

"""Metrics of the stored uploads."""

from pathlib import Path

import pytest
from prometheus_client.core import Metric

from tests.pipeline.ingest.upload_store_contract import received
from walle.clock import ManualClock
from walle.cloud.uploads_watch import UploadsWatch
from walle.pipeline.ingest.retention import Retention, RetentionRule
from walle.pipeline.ingest.upload_store import open_uploads


@pytest.mark.asyncio
async def test_a_device_that_makes_topics_up_does_not_grow_the_metrics(tmp_path: Path) -> None:
    def values(metrics: list[Metric], name: str) -> dict[str, float]:
        (metric,) = (metric for metric in metrics if metric.name == name)
        found = [(sample.labels["topic"], sample.value) for sample in metric.samples]
        assert len(dict(found)) == len(found)
        return dict(found)

    clock = ManualClock()
    async with open_uploads(tmp_path / "uploads.db", clock=clock) as store:
        names = ["*", *(f"topic-{number}" for number in range(700))]
        await store.accept([received(seq, topic=topic) for seq, topic in enumerate(names, 1)])
        await store.accept([received(1, device="true", topic="shop/ipv", payload=bytes(100))])
        retention = Retention(store, {"*": RetentionRule(max_age_s=1.0)})
        watch = UploadsWatch(store, retention, clock)
        await watch.refresh()
        shown = values(watch.metrics(), "walle_uploads_stored")
        assert len(shown) == 501
        assert (shown["shop/ipv"], shown["*"]) == (1, 202)
        assert sum(shown.values()) == 702

        await retention.apply()
        assert await store.count() == 1
        deleted = values(watch.metrics(), "walle_uploads_deleted")
        assert len(deleted) <= 501
        assert sum(deleted.values()) == 701

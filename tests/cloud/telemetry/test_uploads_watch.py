"""Metrics of the stored uploads."""

from pathlib import Path

import pytest
from prometheus_client.core import Metric

from tests.pipeline.ingest.upload_samples import received
from walle.base.clock import ManualClock
from walle.cloud.telemetry import uploads_watch
from walle.cloud.telemetry.uploads_watch import UploadsWatch
from walle.pipeline.ingest.store.retention import Retention, RetentionRule
from walle.pipeline.ingest.store.upload_store import IngestError
from walle.pipeline.ingest.stores import open_uploads


@pytest.mark.asyncio
async def test_a_device_that_makes_topics_up_does_not_grow_the_metrics(tmp_path: Path) -> None:
    def values(metrics: list[Metric], name: str) -> dict[str, float]:
        (metric,) = (metric for metric in metrics if metric.name == name)
        found = [(sample.labels["topic"], sample.value) for sample in metric.samples]
        assert len(dict(found)) == len(found)
        return dict(found)

    clock = ManualClock()
    async with open_uploads(tmp_path / "uploads.db", create=True, clock=clock) as store:
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


@pytest.mark.asyncio
async def test_an_unreadable_store_and_a_full_quarantine_are_not_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, away = tmp_path / "uploads.db", tmp_path / "away.db"
    async with open_uploads(path, create=True, clock=ManualClock()) as store:
        watch = UploadsWatch(store, Retention(store, {}), store.clock)
        await watch.refresh()
        assert (watch.health()["ok"], watch.health()["refused"]) == (True, 0)
        path.rename(away)
        with pytest.raises(IngestError):
            await watch.refresh()
        health = watch.health()
        assert not health["ok"]
        assert "was removed while it was in use" in health["error"]
        away.rename(path)
        await watch.refresh()
        assert watch.health()["ok"]
        await store.set_aside(received(1), "a rule")
        monkeypatch.setattr(uploads_watch, "MAX_REFUSED", 1)
        await watch.refresh()
        health = watch.health()
        assert (health["ok"], health["refused"]) == (False, 1)
        assert "the quarantine is full with 1" in health["error"]
        (refused,) = (metric for metric in watch.metrics() if metric.name == "walle_uploads_refused")
        assert refused.samples[0].value == 1
        await store.forget_refused()
        await watch.refresh()
        assert watch.health()["ok"]

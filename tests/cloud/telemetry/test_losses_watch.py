"""Lost uploads in /metrics, from a real file of received uploads."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from walle.base.clock import ManualClock
from walle.cloud.telemetry.losses_watch import LossesWatch
from walle.pipeline.features.losses import LOSS_TOPIC, Loss, LossCause
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore as Ingest
from walle.pipeline.tunnel.received import Received
from walle.protocol import Hello


class Part(Collector):
    def __init__(self, watch: LossesWatch) -> None:
        self.watch = watch

    def collect(self) -> list[Metric]:
        return self.watch.metrics()


def samples(watch: LossesWatch) -> dict[str, float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Part(watch))
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, value in (line.split(" ") for line in lines if not line.startswith("#"))}


@pytest.mark.asyncio
async def test_lost_uploads_are_counted_by_cause(tmp_path: Path) -> None:
    reports = [
        Loss("e", 3, 12, LossCause.DEVICE_RESTORED),
        Loss("e", 20, 20, LossCause.DEVICE_RESTORED),
        Loss("e", 30, None, LossCause.DAMAGED),
    ]
    async with Ingest(tmp_path / "uploads.db") as ingest:
        watch = LossesWatch(ingest.loss_totals, ManualClock(0.0))
        await watch.refresh()
        assert set(samples(watch).values()) == {0.0}
        assert len(samples(watch)) == 3 * len(LossCause)
        batch = [
            Received("d", "f", seq, LOSS_TOPIC, loss.encode(), 1, 2)
            for seq, loss in enumerate([*reports, reports[0]], 1)  # the last one comes again, and counts once
        ]
        await ingest.accept(batch)
        await ingest.resume(Hello("other", "g", "token", acked=7, acked_chain=5))
        await watch.refresh()
    expected = {"device-restored": (11, 2), "damaged": (1, 1), "cloud-restored": (7, 1)}
    found = samples(watch)
    for cause, (uploads, count) in expected.items():
        assert found[f'walle_lost_uploads_total{{cause="{cause}"}}'] == uploads
        assert found[f'walle_loss_reports_total{{cause="{cause}"}}'] == count
        assert found[f'walle_loss_open_reports_total{{cause="{cause}"}}'] == (cause == "damaged")
    lost = {cause: uploads for cause, (uploads, _) in expected.items()}
    ends = {"device-restored": 0, "damaged": 1, "cloud-restored": 0, "refused": 0}
    assert watch.health() == {"ok": True, "lost_uploads": {**lost, "refused": 0}, "open_losses": ends}

"""Metrics of the uploads that are lost or may have arrived twice, for /metrics and /healthz."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from prometheus_client.core import Metric

from walle.base.clock import Clock
from walle.errors import PipelineError
from walle.metrics.table import counter
from walle.pipeline.features.losses import LossCause
from walle.pipeline.ingest.store.receipt import LossTotal

_LOG = logging.getLogger(__name__)

_REFRESH_S = 5.0


class LossesWatch:
    """The totals of the recorded losses, as `run` read them last by `totals`."""

    def __init__(self, totals: Callable[[], Awaitable[Mapping[LossCause, LossTotal]]], clock: Clock) -> None:
        self._read = totals
        self._clock = clock
        self._totals: Mapping[LossCause, LossTotal] = {cause: LossTotal(0, 0) for cause in LossCause}

    async def run(self) -> None:
        """Read the totals every few seconds, until cancelled. The uploads' health says if they cannot be read."""
        while True:
            try:
                await self.refresh()
            except PipelineError as error:
                _LOG.debug("losses are not read: %s", error)
            await self._clock.sleep(_REFRESH_S)

    async def refresh(self) -> None:
        """Read the totals. Raises PipelineError if the store cannot be used."""
        self._totals = await self._read()

    def health(self) -> dict[str, Any]:
        """Return the state as JSON. A loss is past: `ok` stays True.

        Where a cause has `open_losses`, whose ends are unknown yet, its `lost_uploads` are the least there can be.
        """
        return {
            "ok": True,
            "lost_uploads": {cause.value: total.uploads for cause, total in self._totals.items()},
            "open_losses": {cause.value: total.open_reports for cause, total in self._totals.items()},
        }

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        uploads = counter("walle_lost_uploads_total")
        reports = counter("walle_loss_reports_total")
        open_reports = counter("walle_loss_open_reports_total")
        for cause, total in self._totals.items():
            uploads.add_metric([cause.value], total.uploads)
            reports.add_metric([cause.value], total.reports)
            open_reports.add_metric([cause.value], total.open_reports)
        return [uploads, reports, open_reports]

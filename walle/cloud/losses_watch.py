"""Metrics of the uploads that are lost or may have arrived twice, for /metrics and /healthz."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, Metric

from walle.clock import Clock
from walle.errors import PipelineError
from walle.pipeline.losses import Loss, uploads_by_cause

_LOG = logging.getLogger(__name__)

_REFRESH_S = 5.0


class _Recorded(Protocol):
    @property
    def loss(self) -> Loss: ...


class LossesWatch:
    """The recorded losses, as `run` read them last by `losses`."""

    def __init__(self, losses: Callable[[], Awaitable[Sequence[_Recorded]]], clock: Clock) -> None:
        self._losses = losses
        self._clock = clock
        self._uploads = uploads_by_cause(())
        self._reports = Counter[str]()

    async def run(self) -> None:
        """Read the losses every few seconds, until cancelled. The tunnel's health says if they cannot be read."""
        while True:
            try:
                await self.refresh()
            except PipelineError as error:
                _LOG.debug("losses are not read: %s", error)
            await self._clock.sleep(_REFRESH_S)

    async def refresh(self) -> None:
        """Read the losses. Raises PipelineError if their file cannot be used."""
        losses = [recorded.loss for recorded in await self._losses()]
        self._uploads = uploads_by_cause(losses)
        self._reports = Counter(loss.cause.value for loss in losses)

    def health(self) -> dict[str, Any]:
        """Return the state as JSON. A loss is past: `ok` stays True."""
        return {"ok": True, "lost_uploads": dict(self._uploads)}

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        uploads = CounterMetricFamily(
            "walle_lost_uploads",
            "Uploads that are lost or may have arrived twice; a loss whose end is unknown counts one",
            labels=["cause"],
        )
        reports = CounterMetricFamily(
            "walle_loss_reports", "Recorded losses, each a range of uploads", labels=["cause"]
        )
        for cause, count in self._uploads.items():
            uploads.add_metric([cause], count)
            reports.add_metric([cause], self._reports[cause])
        return [uploads, reports]

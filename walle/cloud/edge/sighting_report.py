"""Report of the devices that checked in at a push gateway, to the cloud whose table it answers from.

It is for the cloud's list of devices and for betas, and may be incomplete: a device is reported when its profile is
another one, or every REPORT_AGAIN_S, MAX_SIGHTINGS devices at a time; what is beyond that is counted and not kept. One
that was sent while the cloud did not answer is counted too, and reported at its next check-in.
"""

import collections
import logging

from prometheus_client.core import Metric

from walle.base.clock import Clock
from walle.client.cloud_client import CloudClient, CloudClientError
from walle.cloud.api.sightings import MAX_SIGHTINGS
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.middleware import IdentifyDevice
from walle.deploy.push.seen_devices import MAX_SEEN
from walle.metrics.table import counter

_LOG = logging.getLogger(__name__)

REPORT_S = 2.0
REPORT_AGAIN_S = 600.0
_TIMEOUT_S = 5.0
_MAX_BATCH_BYTES = 200 << 10  # below what the cloud's gateway reads of such a request
_MAX_REPORTED = 1 << 16


class SightingReport:
    """Takes what the answerer has seen, with the sessions by which the devices were identified, and sends it."""

    def __init__(self, cloud: CloudClient, answerer: Answerer, clock: Clock) -> None:
        self.reported = 0
        self.refused = 0
        self.lost = 0
        self._cloud = cloud
        self._answerer = answerer
        self._clock = clock
        self._sessions: dict[str, bytes] = {}  # sessions of devices since the last report
        self._reported: collections.OrderedDict[str, tuple[int, float]] = collections.OrderedDict()
        self._error = ""

    def noting(self, identify: IdentifyDevice) -> IdentifyDevice:
        """Return `identify` for requests whose devices are to be reported."""

        def noted(session: bytes | None) -> str:
            device_id = identify(session)
            if session is not None and (device_id in self._sessions or len(self._sessions) < MAX_SEEN):
                self._sessions[device_id] = session
            return device_id

        return noted

    async def run(self) -> None:
        """Report again and again, until cancelled."""
        while True:
            await self._answerer.devices.wait()
            await self._clock.sleep(REPORT_S)
            await self.report()

    async def report(self) -> None:
        """Send what was seen since the last report."""
        seen, sessions, self._sessions = self._answerer.devices.take(), self._sessions, {}
        batch: dict[str, tuple[str, str]] = {}
        size_bytes = 0
        now_s = self._clock.monotonic()
        for device_id, profile in seen.items():
            session = sessions.get(device_id)
            if session is None or not self._is_news(device_id, profile, now_s):
                continue
            size_bytes += len(session) + len(profile)
            if len(batch) < MAX_SIGHTINGS and size_bytes <= _MAX_BATCH_BYTES:
                batch[device_id] = session.decode("latin-1"), profile.decode(errors="replace")
                self._reported[device_id] = hash(profile), now_s
            else:
                self.lost += 1
        while len(self._reported) > _MAX_REPORTED:
            self._reported.popitem(last=False)
        if batch and not await self._send([*batch.values()]):
            for device_id in batch:
                self._reported.pop(device_id, None)

    def _is_news(self, device_id: str, profile: bytes, now_s: float) -> bool:
        known = self._reported.get(device_id)
        if known is not None and known[0] == hash(profile) and now_s - known[1] < REPORT_AGAIN_S:
            return False
        self._reported.pop(device_id, None)
        return True

    async def _send(self, batch: list[tuple[str, str]]) -> bool:
        """Send devices; return whether the cloud has taken note of them."""
        try:
            answer = await self._cloud.call("POST", "/v1/push-sightings", {"seen": batch}, timeout_s=_TIMEOUT_S)
            taken, refused = int(answer["taken"]), int(answer["refused"])
        except (CloudClientError, ValueError, KeyError, TypeError) as error:
            self.lost += len(batch)
            if not self._error:
                _LOG.warning("%d devices that were seen here could not be reported: %r", len(batch), error)
            self._error = f"{error or type(error).__name__}"[:300]
            return False
        self._error = ""
        self.reported += taken
        self.refused += refused
        return True

    def health(self) -> dict[str, int | bool | str]:
        """Return the counts; devices are answered whether they can be reported or not."""
        late = {"why": self._error} if self._error else {}
        counts = {"reported": self.reported, "refused": self.refused, "lost": self.lost + self._answerer.devices.unseen}
        return {"ok": True, **counts, **late}

    def metrics(self) -> list[Metric]:
        counts = counter("walle_reported_devices_total")
        for kind, count in self.health().items():
            if kind in ("reported", "refused", "lost"):
                counts.add_metric([kind], float(count))
        return [counts]

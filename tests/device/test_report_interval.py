"""The pauses between a device's reports, by its own interval and by the cloud's."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from walle.base.clock import ManualClock
from walle.cloud.api.outcomes import ReportApp
from walle.deploy.agent.outcomes import OutcomeReport
from walle.device.cloud_requests import CloudRequests
from walle.device.config import DeviceConfig
from walle.protocol import Directive, Outcome, OutcomeBatch, OutcomeKind, directives_to_header
from walle.trust.audience import admitted

_OWN_S = 10.0


class _Cloud:
    """The app that takes reports at a gateway, and tells devices an interval."""

    def __init__(self) -> None:
        self.interval_s: int | None = None
        self.reports = 0
        self.app = ReportApp(self._take, lambda session: (session or b"").decode())

    async def _take(self, _: OutcomeBatch, size_bytes: int) -> int | None:
        assert size_bytes
        self.reports += 1
        return self.interval_s


class _Reporting:
    """A device that always has something to report."""

    def __init__(self, cloud: _Cloud, http: httpx.AsyncClient, folder: Path) -> None:
        self.clock = ManualClock()
        self._cloud = cloud
        outcomes = OutcomeReport("d0", {})
        self._outcomes = outcomes
        values: dict[str, Any] = {"device_id": "d0", "folder": folder, "app_version": "1", "attributes": {}}
        values |= {"cloud_url": "http://cloud", "tunnel_host": "", "tunnel_port": 0, "ca_pem": "", "trusted_keys": {}}
        agent: Any = SimpleNamespace(outcomes=outcomes)
        credentials: Any = SimpleNamespace(session=self._session)
        config = DeviceConfig(**values, report_interval_s=_OWN_S)
        self.requests = CloudRequests(config, http, agent, credentials, self.clock, random.Random(1))

    async def _session(self) -> str:
        return "d0"

    async def pause_s(self) -> float:
        """Let time pass until the next report; return how long that took."""
        before, reports = self.clock.monotonic(), self._cloud.reports
        self._outcomes.add(Outcome(task="shop/a", version="v1", release="r1", kind=OutcomeKind.INSTALLED))
        while self._cloud.reports == reports:
            await self.clock.advance(1.0)
            await _settle()
        return self.clock.monotonic() - before


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest_asyncio.fixture
async def reporting(tmp_path: Path) -> AsyncIterator[tuple[_Cloud, _Reporting]]:
    cloud = _Cloud()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cloud.app), base_url="http://cloud") as http:
        device = _Reporting(cloud, http, tmp_path)
        running = asyncio.ensure_future(device.requests.report_periodically())
        await _settle()
        yield cloud, device
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _is_about(pause_s: float, interval_s: float) -> bool:
    return 0.75 * interval_s <= pause_s <= 1.25 * interval_s


@pytest.mark.night
@pytest.mark.asyncio
async def test_the_cloud_lengthens_the_interval_and_it_shortens_by_half_at_a_time(
    reporting: tuple[_Cloud, _Reporting],
) -> None:
    cloud, device = reporting
    assert _is_about(await device.pause_s(), _OWN_S)
    cloud.interval_s = 600
    assert _is_about(await device.pause_s(), _OWN_S)
    assert _is_about(await device.pause_s(), 600)
    cloud.interval_s = 3  # below the device's own
    assert _is_about(await device.pause_s(), 600)
    pauses = [await device.pause_s() for _ in range(7)]
    assert all(_is_about(*pair) for pair in zip(pauses, (300, 150, 75, 37.5, 18.75, _OWN_S, _OWN_S), strict=True)), (
        pauses
    )
    cloud.interval_s = 10**8
    await device.pause_s()
    assert _is_about(await device.pause_s(), 3600)  # the longest that a device takes
    cloud.interval_s = None  # a cloud without a bound
    await device.pause_s()
    assert _is_about(await device.pause_s(), 1800)
    cloud.interval_s = 0  # a release waits for it
    await device.pause_s()
    assert _is_about(await device.pause_s(), _OWN_S)


@pytest.mark.asyncio
async def test_a_device_that_a_directive_names_reports_soon(reporting: tuple[_Cloud, _Reporting]) -> None:
    cloud, device = reporting

    def answer(*devices: str) -> str:
        audience = admitted("r1", 0.0, devices, app_version="")
        signature = base64.b64encode(bytes(64)).decode()
        order: dict[str, Any] = {
            "task": "shop/a",
            "version": "v2",
            "manifest": "0" * 64,
            "size_bytes": 1,
            "serial": 1,
            "expires_s": 1,
        }
        place: dict[str, Any] = {"url": "http://cloud/cdn", "release": "r1"}
        return directives_to_header([Directive(**order, **place, audience=audience, signature=signature)])

    cloud.interval_s = 600
    await device.pause_s()
    device.requests.directives(answer("d1"))
    await _settle()
    assert _is_about(await device.pause_s(), 600)
    cloud.interval_s = 0  # the monitor tells the devices of a beta so
    for _ in range(8):  # each check-in has the directive until it is carried out: the later ones delay no report
        device.requests.directives(answer("d0", "d1"))
        await device.clock.advance(1.0)
    assert await device.pause_s() < 0.75 * _OWN_S
    assert _is_about(await device.pause_s(), _OWN_S)

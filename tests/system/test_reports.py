"""Reports of outcomes through the edge gateways of a cloud of actors, while an edge and the monitor are killed."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sim.device_session import session_headers
from tests.sim.shop_cloud import LIMIT_S, push, until
from walle.actors.wiring import ActorCloud, close_ray, start_ray
from walle.client.release_client import ReleaseClient
from walle.cloud import CloudConfig

ROOT = Path(__file__).parents[2]
_DEVICES = 24
_AFTER_KILLS = 3  # reports of each device once both processes are back


@pytest.mark.night
@pytest.mark.system
@pytest.mark.timeout(420)
@pytest.mark.asyncio
async def test_no_report_is_lost_or_counts_twice_when_an_edge_and_the_monitor_are_killed(tmp_path: Path) -> None:
    """Each device sends a report until it is answered, as devices do, and then the next one."""
    start_ray(import_root=ROOT)
    try:
        cloud = await ActorCloud.start(CloudConfig(folder=tmp_path / "cloud", scenarios=("shop",), gateways=2))
        try:
            await _kill_while_devices_report(cloud)
        finally:
            await cloud.close()
    finally:
        close_ray()


async def _kill_while_devices_report(cloud: ActorCloud) -> None:
    home, url = cloud.home, cloud.address.url
    await push(url, home.admin_token, home.folder.parent / "work", "v1", {})
    async with ReleaseClient(url, home.admin_token) as releases, httpx.AsyncClient(timeout=LIMIT_S) as http:
        release = await releases.create("shop", "count", "v1", beta=0, steps=[1.0], gate={"trial_runs": 10_000})
        release_id = release["id"]

        async def totals() -> dict[str, Any]:
            return dict((await releases.get(release_id))["totals"])

        async def is_judged() -> bool:
            return bool((await totals())["stage"])

        await until(is_judged)
        person = {"Authorization": f"Bearer {home.admin_token}"}

        async def processes(name: str) -> list[dict[str, Any]]:
            found = None
            while found is None:  # Ray did not answer in its time
                answer = await http.get(f"{url}/v1/cloud", headers=person)
                found = answer.json()["processes"] if answer.status_code == 200 else []
            return [one for one in found if one["name"].startswith(name) and one["state"] == "running"]

        answered = dict.fromkeys(range(_DEVICES), 0)
        again = 0  # times that a report was sent again
        may_end = asyncio.Event()

        async def report(device: int) -> None:
            nonlocal again
            headers = session_headers(home, f"d{device}")
            left = _AFTER_KILLS
            async with httpx.AsyncClient(timeout=LIMIT_S) as own:
                while left:
                    left -= may_end.is_set()
                    outcome = {"task": "shop/count", "version": "v1", "release": release_id, "kind": "run"}
                    batch_id = f"b{answered[device]}"
                    outcomes = [{**outcome, "ok": 1, "failed": 0, "error": ""}]
                    body = {"device_id": f"d{device}", "batch_id": batch_id, "outcomes": outcomes}
                    while not await _is_taken(own, f"{url}/v1/outcomes", headers, body):
                        again += 1
                        await asyncio.sleep(0.05)
                    answered[device] += 1

        async def reports_of(edge: dict[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = (await http.get(f"{edge['address']}/healthz", headers=person)).json()["reports"]
            return found

        async def taken_by(process: dict[str, Any]) -> int:
            """Return how many reports an edge has taken; 0 of another process."""
            return int((await reports_of(process)).get("taken", 0)) if process["name"].startswith("edge-") else 0

        reporting = [asyncio.ensure_future(report(device)) for device in range(_DEVICES)]
        for name in ("edge-", "monitor"):
            await until(lambda: any(answered.values()))
            killed = max([(await taken_by(one), one["pid"]) for one in await processes(name)])[1]
            os.kill(killed, signal.SIGSTOP)
            await asyncio.sleep(0.5)  # reports are under way in it now
            os.kill(killed, signal.SIGKILL)
            count = 2 if name == "edge-" else 1

            async def is_back(name: str = name, pid: int = killed, count: int = count) -> bool:
                try:
                    now = await processes(name)
                except httpx.TransportError:  # the killed process had this connection
                    return False
                return len(now) == count and pid not in [one["pid"] for one in now]

            await until(is_back)
        may_end.set()
        await asyncio.gather(*reporting)
        assert again  # a kill met reports under way
        counted = await totals()
        assert counted["ok"] == sum(answered.values())
        taken = [await reports_of(one) for one in await processes("edge-")]
        assert sum(one.get("taken", 0) for one in taken) > 0
        assert any(one["calls"] < one.get("taken", 0) for one in taken)  # several in one call


async def _is_taken(http: httpx.AsyncClient, url: str, headers: dict[str, str], body: dict[str, Any]) -> bool:
    try:
        answer = await http.post(url, headers=headers, json=body)
    except httpx.TransportError:
        return False
    assert answer.status_code in (204, 503), answer.text
    return answer.status_code == 204

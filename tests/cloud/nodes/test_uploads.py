"""A cloud's uploads: several tunnel processes behind one gateway, PostgreSQL, consumers and retention."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sim.postgres_server import PostgresServer
from tests.sim.shop_cloud import LIMIT_S, User, shop_cloud
from tests.sim.visits import TASK_CONFIG
from walle.base import plain
from walle.cloud import Cloud, CloudConfig
from walle.errors import ConfigError
from walle.pipeline.features.topics import TopicError
from walle.pipeline.ingest.processes import TunnelProcesses
from walle.pipeline.ingest.service import DeviceConnection
from walle.pipeline.ingest.store.feature_view import FeatureViewError
from walle.pipeline.ingest.stores import open_uploads
from walle.protocol import Manifest, TriggerCondition

MAIN = """\
def execute(ctx, x):
    return ctx.escalate({"n": 5}) if "event" in x else {"answer": x["n"] * 10}
"""
AUTO = TASK_CONFIG + '[phases]\nexecute = "auto"\n'


async def _metrics(http: httpx.AsyncClient) -> dict[str, float]:
    lines = (await http.get("/metrics")).text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


@pytest.mark.night
@pytest.mark.asyncio
async def test_several_processes_serve_one_cloud_and_are_watched_together(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(90),
        shop_cloud(tmp_path, tunnel_processes=2) as shop,
        shop.device(tmp_path / "d0") as device,
    ):
        await shop.push("v1", main=MAIN, config=AUTO)
        await shop.release("v1", beta=["d0"])
        user = User(device)
        await user.until(lambda: bool(device.tasks))
        await user.visit()
        await device.settled()
        found_uploads = await shop.cloud.gateway.uploads("shop/count", 0, 10)  # a slow start takes several visits
        assert {plain.decode(upload.payload)["answer"] for _, upload in found_uploads} == {50}  # the gateway answered
        answered = len(found_uploads)

        tunnel = shop.cloud.gateway._tunnel.service
        assert isinstance(tunnel, TunnelProcesses)
        async with asyncio.timeout(LIMIT_S):
            while (health := (await shop.http.get("/healthz")).json())["tunnel"]["stored"] < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert health["ok"]
        assert health["tunnel"]["connections"] == 1
        connection = await tunnel.connection("d0")
        assert connection.since_s is not None
        assert (abs(connection.since_s - time.time()) < LIMIT_S * 3, connection.silent) == (True, 0)
        assert await tunnel.connection("d1") == DeviceConnection(None)
        assert health["tunnel"]["processes"] == {"running": 2, "wanted": 2, "restarts": 0, "hangs": 0}
        found = await _metrics(shop.http)
        assert (found["walle_tunnel_processes"], found["walle_tunnel_requests_total"]) == (2, answered)

        for pid in tunnel.pids:  # both: the device must find a new one
            os.kill(pid, signal.SIGKILL)
        await device.tunnel.send("later", 7)
        await device.settled()
        assert await shop.received() == answered + 1
        async with asyncio.timeout(LIMIT_S):
            while True:
                health = (await shop.http.get("/healthz")).json()
                if (
                    health["tunnel"]["processes"] == {"running": 2, "wanted": 2, "restarts": 2, "hangs": 0}
                    and health["ok"]
                ):
                    break
                await asyncio.sleep(0.05)
        found = await _metrics(shop.http)
        assert found["walle_tunnel_requests_total"] >= 1  # counts include processes that have ended
        assert (await shop.cloud.gateway.stats()).connections >= 1


@pytest.mark.asyncio
async def test_uploads_go_to_postgresql_and_consumers_and_retention_are_watched(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    dsn = postgres.make_database()
    rules = ("*=0.0001h",)
    async with (
        asyncio.timeout(90),
        shop_cloud(tmp_path, uploads=dsn, retention=rules) as shop,
        shop.device(tmp_path / "d0") as device,
        open_uploads(dsn, create=True) as uploads,
    ):
        for number in range(5):
            await device.tunnel.send("numbers", number)
        await device.settled()
        assert not shop.cloud.home.uploads_db.exists()
        async with uploads.consume("ranker", topics=["numbers"], batch_limit=3) as consumer:
            batch = await anext(consumer)
            assert [plain.decode(upload.payload) for upload in batch.uploads] == [0, 1, 2]
            await batch.commit()
        watch = shop.cloud.gateway._uploads.watch
        await watch.refresh()
        found = await _metrics(shop.http)
        assert found['walle_consumer_lag_uploads{group="ranker"}'] == 2
        assert found['walle_consumer_lag_seconds{group="ranker"}'] > 0
        assert found['walle_uploads_stored{topic="numbers"}'] == 5
        await asyncio.sleep(0.4)
        await shop.cloud.gateway._uploads.retention.apply()
        found = await _metrics(shop.http)
        assert found['walle_uploads_deleted_total{topic="numbers"}'] == 3  # two are not consumed
        part = (await shop.http.get("/healthz")).json()["uploads"]
        assert part["groups"]["ranker"]["lag"] == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("rule", ["30d", "=30d", "*=", "t=3x", "t=d", "t=1.2.3d", "t=force"])
async def test_a_retention_rule_that_is_none_is_refused(tmp_path: Path, rule: str) -> None:
    with pytest.raises(ConfigError, match="retention"):
        async with Cloud(CloudConfig(folder=tmp_path, retention=(rule,))):
            raise AssertionError


VIEW_MAIN = """\
def execute(ctx, x):
    if "event" in x:
        return ctx.escalate({"view": VIEW})
    return {"found": ctx.features(x["view"], device=ctx.device["id"], page="cart")}
"""


def _manifest(name: str, **fields: Any) -> Manifest:
    """Return the manifest of a version of this task, which has no files."""
    scenario, _, task = name.partition("/")
    trigger = TriggerCondition.of(["page_exit"])
    plain_fields: dict[str, Any] = {
        "version": "v1",
        "commit": "",
        "bytecode": (),
        "phases": {},
        "limits": {},
        "files": (),
    }
    return Manifest(scenario=scenario, task=task, trigger=trigger, **plain_fields, **fields)


@pytest.mark.asyncio
async def test_a_phase_in_the_cloud_reads_features_of_its_scenario(tmp_path: Path) -> None:
    views = ("shop/pages=shop/web/pages:device,page", "other/pages=other/web:device,page")
    async with (
        asyncio.timeout(90),
        shop_cloud(tmp_path, features=views) as shop,
        shop.device(tmp_path / "d0") as device,
    ):
        for number in range(3):
            await device.tunnel.send("shop/web/pages", {"page": "cart", "n": number})
        await device.settled()
        view = shop.cloud.inference.views.views["shop/pages"]
        async with asyncio.timeout(LIMIT_S):
            while view.position < 3:  # noqa: ASYNC110 - a view sets no event
                await asyncio.sleep(0.01)
        user = User(device)
        await shop.push(
            "v1", main=VIEW_MAIN.replace("VIEW", '"pages"'), config=f'{AUTO}[reads]\ntopics = ["web/pages"]\n'
        )
        await shop.release("v1", beta=["d0"])
        await user.until(lambda: bool(device.tasks))
        await user.visit()
        await device.settled()
        rows = await shop.cloud.gateway.uploads("shop/count", 0, 10)
        answers = [plain.decode(upload.payload) for _, upload in rows]
        assert answers == [{"found": {"page": "cart", "n": 2}}] * max(1, len(rows))

        latest = shop.cloud.inference.views.latest
        listing = _manifest("shop/count", reads=("web/pages",))
        assert latest(listing, "pages", {"device": "d0", "page": "cart"}) == {"page": "cart", "n": 2}
        with pytest.raises(FeatureViewError, match="'nothing' is unknown; 'shop' has pages"):
            latest(listing, "nothing", {})
        with pytest.raises(FeatureViewError, match="'pages' is unknown; 'third' has none"):
            latest(_manifest("third/count"), "pages", {})
        with pytest.raises(TopicError, match="add 'web/pages' to topics under"):
            latest(_manifest("shop/count"), "pages", {"device": "d0", "page": "cart"})
        assert latest(_manifest("shop/web"), "pages", {"device": "d0", "page": "other"}) is None

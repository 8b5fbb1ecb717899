"""Escalation through a real tunnel: batches, refusals and deadlines as a task sees them, cloud files, metrics."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from tests.sim.visits import TASK_CONFIG, event_at
from walle.base import plain
from walle.pipeline.tunnel.client.client import RequestError
from walle.task.run.runner import PHASE_TOPIC

MAIN = """\
import time

def execute(ctx, x):
    if ctx.place == "cloud":
        time.sleep(x["s"])
        return {"place": ctx.place, "n": x["n"]}
    try:
        return ctx.escalate({"s": SECONDS, "n": 1}, timeout_ms=TIMEOUT)
    except ctx.EscalationError as error:
        return {"place": ctx.place, "reason": error.reason}

def execute_batch(ctx, payloads):
    return [{"n": x["n"], "of": len(payloads), "by": d["id"]} for x, d in zip(payloads, ctx.devices)]
"""
AUTO = TASK_CONFIG + '[phases]\nexecute = "auto"\n'


def main(seconds: float = 0.0, timeout_ms: int | None = None) -> str:
    return MAIN.replace("SECONDS", str(seconds)).replace("TIMEOUT", str(timeout_ms))


@contextlib.asynccontextmanager
async def escalating(
    folder: Path, code: str, config: str = AUTO, *, devices: Any = ("d0",), **files: Any
) -> AsyncIterator[tuple[ShopCloud, User]]:
    async with shop_cloud(folder) as shop, shop.device(folder / "d0") as device:
        await shop.push("v1", main=code, config=config, **files)
        await shop.release("v1", beta=list(devices))
        user = User(device)

        async def has_task() -> bool:
            await device.checkin()
            return bool(device.tasks)

        await until(has_task)
        yield shop, user


def question(**payload: Any) -> bytes:
    return plain.encode(
        {"task": "shop/count", "version": "v1", "phase": "execute", "payload": payload, "device": {"os": "x"}}
    )


def found(folder: Path, pattern: str) -> list[str]:
    return [path.name for path in folder.glob(pattern)]


async def outputs(shop: ShopCloud, user: User) -> list[Any]:
    await user.device.settled()
    return [plain.decode(upload.payload) for _, upload in await shop.cloud.gateway.uploads("shop/count", 0, 10)]


@pytest.mark.night
@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_late_cloud_leaves_the_task_time_to_decide_alone(tmp_path: Path) -> None:
    config = AUTO + "[limits]\ndeadline_ms = 600\n"
    async with escalating(tmp_path, main(seconds=0.55), config) as (shop, user):
        await user.visit()
        summary = await user.device.summary()
        assert (summary.runs_ok, summary.runs_failed) == (1, 0), summary.last_error
        assert await outputs(shop, user) == [{"place": "device", "reason": "late"}]


@pytest.mark.night
@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_the_tasks_own_time_limit_holds_in_the_cloud_too(tmp_path: Path) -> None:
    config = AUTO + "[limits]\ndeadline_ms = 5000\n"
    async with escalating(tmp_path, main(seconds=4.0, timeout_ms=150), config) as (shop, user):
        await user.visit()
        assert await outputs(shop, user) == [{"place": "device", "reason": "late"}]
        await until(lambda: shop.cloud.inference.health()["running"] == 0, 2.0)  # stopped, not run to its end
        with pytest.raises(RequestError, match=r"no answer within 0\.1 s") as late:
            await user.device.tunnel.request(PHASE_TOPIC, question(s=4, n=1), timeout=0.1)
        assert late.value.code == "expired"


@pytest.mark.night
@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_full_cloud_refuses_at_once_and_the_task_continues(tmp_path: Path) -> None:
    config = AUTO + "[cloud]\nqueue = 1\n[limits]\ndeadline_ms = 3000\n"
    async with escalating(tmp_path, main(), config) as (shop, user):
        tunnel = user.device.tunnel
        busy = [asyncio.create_task(tunnel.request(PHASE_TOPIC, question(s=1.0, n=n))) for n in range(2)]
        await until(lambda: shop.cloud.inference.health()["queued"] == 1)
        await user.visit()
        assert await outputs(shop, user) == [{"place": "device", "reason": "full"}]
        with pytest.raises(RequestError, match=r"1 requests wait for shop/count v1, its \[cloud\] queue") as full:
            await tunnel.request(PHASE_TOPIC, question(s=0, n=9))
        assert full.value.code == "busy"
        assert [plain.decode(one)["n"] for one in await asyncio.gather(*busy)] == [0, 1]
        metrics = (await shop.http.get("/metrics")).text
        assert 'walle_inference_refused_total{reason="queue",version="shop/count v1"} 2.0' in metrics
        assert 'walle_inference_latency_seconds_count{version="shop/count v1"} 2.0' in metrics
        assert 'walle_inference_loaded_vms{process="0",version="shop/count v1"} 1.0' in metrics
        health = (await shop.http.get("/healthz")).json()["inference"]
        assert (health["ok"], health["refused"]["queue"], health["queued"]) == (True, 2, 0)


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_cloud_that_is_away_is_an_error_that_a_task_catches(tmp_path: Path) -> None:
    config = AUTO + "[limits]\ndeadline_ms = 1500\n"
    async with shop_cloud(tmp_path, outlived=True) as shop, shop.device(tmp_path / "d0") as device:
        await shop.push("v1", main=main(), config=config)
        await shop.release("v1", beta=["d0"])
        user = User(device)
        await user.until(lambda: bool(device.tasks))
        await shop.cloud.gateway.close()
        await until(lambda: not device.tunnel.connected)
        before = (await device.summary()).runs_ok
        for part in range(3):
            await device.on_event(event_at(3 * user.visits + part), 3 * user.visits + part)
        await device.stream.settle()
        summary = await device.summary()
        assert (summary.runs_ok - before, summary.runs_failed) == (1, 0), summary.last_error
        stored = await device.store.query("shop/count", 0, 10)
        assert plain.decode(stored[-1].payload) == {"place": "device", "reason": "away"}


@pytest.mark.night
@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_requests_of_devices_meet_in_a_batch(tmp_path: Path) -> None:
    config = AUTO + "[cloud]\nmax_batch = 4\nbatch_ms = 200\n"
    async with (
        escalating(tmp_path, main(), config, devices=("d0", "d1")) as (shop, user),
        shop.device(tmp_path / "d1") as other,
    ):
        tunnels = [user.device.tunnel, other.tunnel]
        await until(lambda: all(tunnel.connected for tunnel in tunnels))
        asked = [tunnels[n % 2].request(PHASE_TOPIC, question(n=n)) for n in range(4)]
        answers = [plain.decode(one) for one in await asyncio.gather(*asked)]
        assert answers == [{"n": n, "of": 4, "by": f"d{n % 2}"} for n in range(4)]
        metrics = (await shop.http.get("/metrics")).text
        assert 'walle_inference_batch_requests_bucket{le="2",version="shop/count v1"} 0.0' in metrics
        assert 'walle_inference_batch_requests_bucket{le="4",version="shop/count v1"} 1.0' in metrics


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_file_of_the_cloud_is_there_and_on_no_device(tmp_path: Path) -> None:
    code = """\
def execute(ctx, x):
    if ctx.place == "cloud":
        return bytes(ctx.resource("large.bin")[:4])
    try:
        ctx.session("large.bin")
    except Exception as error:
        return [str(error), bytes(ctx.resource("small.bin")), ctx.escalate(0)]
"""
    config = AUTO + '[files]\n"resources/large.bin" = "cloud"\n"resources/small.bin" = "shared"\n'
    files = {"resources/large.bin": b"abcd" * 1000, "resources/small.bin": b"small"}
    async with escalating(tmp_path, code, config, **files) as (shop, user):
        device = user.device
        await user.visit()
        ((error, small, large),) = await outputs(shop, user)
        assert "only the cloud has resources/large.bin, which task.toml lists as" in error
        assert (small, large) == (b"small", b"abcd")
        assert found(tmp_path, "d0/**/resources/*") == ["small.bin"]
        (stored,) = found(tmp_path, "cloud/cloud-files/*/*")
        prefix = shop.cloud.home.file_addresses.prefix()
        assert (await shop.http.get(f"{prefix}/{stored}")).status_code == 404
        assert device.tasks == {"shop/count": "v1"}


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_version_is_loaded_before_a_device_has_it(tmp_path: Path) -> None:
    async with escalating(tmp_path, main()) as (shop, user):
        loaded = 'walle_inference_loaded_vms{process="0",version="shop/count VERSION"} 1.0'
        metrics = (await shop.http.get("/metrics")).text
        assert loaded.replace("VERSION", "v1") in metrics  # loaded before anything was asked
        assert 'walle_inference_loads_total{result="loaded"} 1.0' in metrics
        assert "walle_inference_requests_total{" not in metrics
        await user.visit()
        await shop.releases.rollback((await shop.releases.list_all())[0]["id"], "a test")
        await shop.push("v2", main=main(), config=AUTO)
        await shop.release("v2", beta=["d0"])
        await user.until(lambda: user.device.tasks.get("shop/count") == "v2")
        metrics = (await shop.http.get("/metrics")).text
        assert loaded.replace("VERSION", "v1") in metrics  # devices may still run it
        assert loaded.replace("VERSION", "v2") in metrics

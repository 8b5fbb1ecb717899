"""Cloud phases of versions that a device was not given, asked for through real tunnels of a real cloud."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.sim.shop_cloud import ShopCloud, shop_cloud, until
from tests.sim.visits import TASK_CONFIG
from walle.base import plain
from walle.device import Device
from walle.pipeline.tunnel.client.client import RequestError
from walle.pipeline.tunnel.server.refusal_pace import BURST, PER_S
from walle.task.run.runner import PHASE_TOPIC

CLOUD = TASK_CONFIG + '[phases]\nexecute = "cloud"\n'
MAIN = "def execute(ctx, x):\n    return ['secret of', ctx.device['id']]\n"
REFUSED = "is not a version that this device was given"


def question(version: str = "v1", task: str = "shop/count", **device: Any) -> bytes:
    return plain.encode({"task": task, "version": version, "phase": "execute", "payload": {}, "device": device})


@pytest_asyncio.fixture
async def shop(tmp_path: Path) -> AsyncIterator[ShopCloud]:
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1", main=MAIN, config=CLOUD)
        yield shop


async def ask(device: Device, body: bytes) -> Any:
    return plain.decode(await device.tunnel.request(PHASE_TOPIC, body))


async def refusal(device: Device, body: bytes) -> str:
    with pytest.raises(RequestError) as refused:
        await device.tunnel.request(PHASE_TOPIC, body)
    assert refused.value.code == "failed"
    return str(refused.value)


async def published(shop: ShopCloud, version: str) -> None:
    """Return once devices are answered with a release of the version."""
    answerer = shop.cloud.gateway._answers.answerer

    def is_published() -> bool:
        row = answerer.table.rows.get("shop/count")
        return row is not None and any(entry.directive.version == version for entry in row.entries)

    await until(is_published)


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_device_outside_of_a_release_gets_no_answer_of_its_phases(shop: ShopCloud, tmp_path: Path) -> None:
    async with shop.device(tmp_path / "a") as inside, shop.device(tmp_path / "b") as outside:
        await until(lambda: inside.tunnel.connected and outside.tunnel.connected)
        await outside.checkin()
        assert REFUSED in await refusal(inside, question())  # nobody has it yet
        release_id = await shop.release("v1", beta=["a"])
        await published(shop, "v1")
        assert await ask(inside, question()) == ["secret of", "a"]
        refusal_text = await refusal(outside, question())
        assert refusal_text.replace("v1", "v9") == await refusal(outside, question("v9"))
        assert refusal_text.replace("shop/count", "bank/fraud") == await refusal(outside, question(task="bank/fraud"))
        await shop.releases.rollback(release_id)
        assert await ask(inside, question()) == ["secret of", "a"]  # the device may ask until it has gone back
        assert REFUSED in await refusal(outside, question())


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_lists_rules_and_steps_are_checked(shop: ShopCloud, tmp_path: Path) -> None:
    (shop.cloud.home.folder / "attributes.toml").write_text('[attributes]\nperformance = "string"\n')
    async with (
        shop.device(tmp_path / "a") as low,
        shop.device(tmp_path / "b", attributes={"performance": "high"}) as high,
    ):
        await until(lambda: low.tunnel.connected and high.tunnel.connected)
        await asyncio.gather(low.checkin(), high.checkin())
        release_id = await shop.release("v1", beta=0, policy={"rule": "performance == 'low'"})
        await published(shop, "v1")
        assert await ask(low, question()) == ["secret of", "a"]
        assert REFUSED in await refusal(high, question())
        await shop.releases.rollback(release_id)
        await shop.push("v2", main=MAIN, config=CLOUD)
        named = await shop.release("v2", beta=0, policy={"devices": ["b"]})
        await published(shop, "v2")
        assert await ask(high, question("v2")) == ["secret of", "b"]
        assert REFUSED in await refusal(low, question("v2", performance="low"))
        await shop.releases.rollback(named)
        await shop.push("v3", main=MAIN, config=CLOUD)
        await shop.release("v3", beta=0, steps=[1e-9, 1.0])
        await published(shop, "v3")
        assert REFUSED in await refusal(low, question("v3"))


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_device_that_sends_refused_requests_without_end_is_read_slowly_and_delays_no_other(
    shop: ShopCloud, tmp_path: Path
) -> None:
    async with shop.device(tmp_path / "a") as honest, shop.device(tmp_path / "b") as hostile:
        await until(lambda: honest.tunnel.connected and hostile.tunnel.connected)
        await shop.release("v1", beta=["a"])
        await published(shop, "v1")
        server = shop.cloud.gateway._tunnel.service.server  # type: ignore[union-attr]
        loop = asyncio.get_running_loop()
        before, began_s = server.counts.requests, loop.time()

        async def flood() -> None:
            while True:
                with pytest.raises(RequestError):
                    await hostile.tunnel.request(PHASE_TOPIC, question("v9"))

        floods = [asyncio.create_task(flood()) for _ in range(50)]
        try:
            await until(lambda: server.counts.slowed > 0)
            answers = [await ask(honest, question()) for _ in range(20)]
        finally:
            for task in floods:
                task.cancel()
            await asyncio.gather(*floods, return_exceptions=True)
        assert answers == [["secret of", "a"]] * 20
        asked = server.counts.requests - before - len(answers)
        assert asked <= BURST + 2 * 50 + PER_S * (loop.time() - began_s)
        assert all(task.cancelled() for task in floods)  # each request was refused

"""Attacks on exclusive files at a real gateway, and their way to a real device: put, changed, removed, revoked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sim.device_session import session_headers
from tests.sim.shop_cloud import LIMIT_S, ShopCloud, User, shop_cloud
from tests.sim.visits import TASK_CONFIG
from walle.protocol import ExclusiveList

SECRET = b'{"faces": ["who is in the gallery"]}'
OPTIONAL = TASK_CONFIG + '[[exclusive]]\nname = "gallery.json"\nrequired = false\nmax_bytes = 2000\n'
REQUIRED = TASK_CONFIG + '[[exclusive]]\nname = "gallery.json"\n'
MAIN = """\
def execute(ctx, trigger):
    data = ctx.exclusive("gallery.json")
    return {"gallery": None if data is None else data.decode()}
"""
PATH = "/v1/exclusive/shop/count/gallery.json"


async def put(shop: ShopCloud, device: str, data: bytes = SECRET, path: str = PATH, **more: Any) -> httpx.Response:
    return await shop.http.put(path, params={"device": device}, content=data, **more)


async def told(shop: ShopCloud, device: str, generation: int = 1) -> ExclusiveList:
    headers = session_headers(shop.cloud.home, device, generation)
    return ExclusiveList.from_bytes((await shop.http.get("/cen/files", headers=headers)).content)


async def gallery(user: User) -> Any:
    """Return what the task reads in a run of now."""
    with user.device.results("shop/count") as results:
        await user.visit()
        result = await anext(aiter(results))
    assert result.failure is None, result.failure
    return result.output["gallery"]


async def until_reads(user: User, text: str | None) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await gallery(user) != text:  # noqa: ASYNC110 - the task has no event of it
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def installed(folder: Path, *names: str, config: str = OPTIONAL) -> AsyncIterator[tuple[ShopCloud, list[User]]]:
    """Give a cloud and devices that have v1 of a task that reads its gallery."""
    async with shop_cloud(folder) as shop, contextlib.AsyncExitStack() as undo:
        await shop.push("v1", config=config, main=MAIN)
        await shop.release("v1", beta=0)
        fast = {"exclusive_interval_s": 0.05, "vm_host": False}
        devices = [await undo.enter_async_context(shop.device(folder / name, **fast)) for name in names]
        users = [User(device) for device in devices]
        for user in users:
            await user.until(lambda user=user: user.has("v1"))  # type: ignore[misc]
        yield shop, users


@pytest.mark.asyncio
async def test_a_file_is_put_changed_and_removed_without_a_new_version(tmp_path: Path) -> None:
    async with installed(tmp_path, "mine", "other") as (shop, (mine, other)):
        assert (await gallery(mine), await gallery(other)) == (None, None)
        for text in ("first", "second"):
            assert (await put(shop, "mine", text.encode())).status_code == 204
            await until_reads(mine, text)
        assert await gallery(other) is None
        assert not list((tmp_path / "other" / "exclusive" / "sealed").iterdir())
        assert (await shop.http.delete(PATH, params={"device": "mine"})).status_code == 204
        await until_reads(mine, None)
        assert not list((tmp_path / "mine" / "exclusive" / "sealed").iterdir())

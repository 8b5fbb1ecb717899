"""/v1/tuning: the coordinator works beside the event loop, and bodies under way are bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from dulwich.objects import Commit, Tree
from dulwich.refs import Ref
from fastapi import FastAPI

from walle.adapt.tuning.coordinator import TuningCoordinator
from walle.base.clock import ManualClock
from walle.cloud.api.releases import install_error_handlers
from walle.cloud.api.tuning import tuning_router
from walle.deploy.git.repo import TaskRepos
from walle.engine_ext.model import MAGIC
from walle.protocol import DEVICE_HEADER

PATH = "/v1/tuning/shop/count"


class WatchedCoordinator(TuningCoordinator):
    """A coordinator that notes on which threads it is called."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.threads: list[int] = []

    def share(self, *given: Any, **named: Any) -> int:
        self.threads.append(threading.get_ident())
        return super().share(*given, **named)

    def peers(self, *given: Any, **named: Any) -> Any:
        self.threads.append(threading.get_ident())
        return super().peers(*given, **named)

    def file(self, *given: Any, **named: Any) -> bytes | None:
        self.threads.append(threading.get_ident())
        return super().file(*given, **named)


class World:
    """The routes with a task; the session of a device is its name."""

    def __init__(self, folder: Path, body_s: float = 20.0) -> None:
        self.coordinator = WatchedCoordinator()
        app = FastAPI()
        app.include_router(tuning_router(self.coordinator, _repos(folder), _identify, ManualClock(), body_s=body_s))
        install_error_handlers(app)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://cloud")

    async def share(self, device: str, body: bytes | AsyncIterator[bytes] = MAGIC) -> httpx.Response:
        query = {"loss": "0.5", "accuracy": "0.5"}
        return await self.http.post(PATH, params=query, content=body, headers={DEVICE_HEADER: device})

    async def get(self, device: str, path: str) -> httpx.Response:
        return await self.http.get(PATH + path, headers={DEVICE_HEADER: device})


def _identify(session: bytes | None) -> str:
    assert session is not None
    return session.decode()


def _repos(folder: Path) -> TaskRepos:
    repos = TaskRepos(folder / "repos")
    repos.create("shop")
    with repos.writing("shop") as repo:
        tree, commit = Tree(), Commit()
        commit.tree = tree.id
        commit.author = commit.committer = b"a <a@b>"
        commit.author_time = commit.commit_time = commit.author_timezone = commit.commit_timezone = 0
        commit.message = b"m"
        repo.object_store.add_object(tree)
        repo.object_store.add_object(commit)
        repo.refs[Ref(b"refs/tags/count/v1")] = commit.id
    return repos


@pytest.mark.asyncio
async def test_the_coordinator_works_on_one_thread_beside_the_loop(tmp_path: Path) -> None:
    world = World(tmp_path)
    for device in ("a", "b"):
        assert (await world.share(device)).json() == {"version": 1}
    (listed,) = (await world.get("a", "/peers?count=4")).json()["peers"]
    assert (await world.get("a", f"/peers/{listed['sha256']}")).content == MAGIC
    assert len(world.coordinator.threads) == 4
    assert len(set(world.coordinator.threads)) == 1
    assert threading.get_ident() not in world.coordinator.threads


@pytest.mark.asyncio
async def test_bodies_under_way_are_one_a_device_and_sixteen_in_all(tmp_path: Path) -> None:
    world = World(tmp_path)
    rest, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def slow() -> AsyncIterator[bytes]:
        yield MAGIC
        begun.release()
        await rest.wait()
        yield b"rest"

    under_way = [asyncio.create_task(world.share(f"d{at}", slow())) for at in range(16)]
    async with asyncio.timeout(20):
        for _ in under_way:
            await begun.acquire()
        again, other = await world.share("d0"), await world.share("other")
        rest.set()
        done = await asyncio.gather(*under_way)
    assert (again.status_code, other.status_code) == (429, 503)
    assert again.headers["Retry-After"] == other.headers["Retry-After"] == "5"
    assert [one.status_code for one in done] == [200] * 16
    assert [(await world.share(device)).status_code for device in ("d0", "other")] == [200, 200]


@pytest.mark.asyncio
async def test_slow_bodies_lose_their_places(tmp_path: Path) -> None:
    world = World(tmp_path, body_s=0.2)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.05)

    async with asyncio.timeout(10):
        slow = await asyncio.gather(*(world.share(f"d{at}", endless()) for at in range(16)))
    assert [one.status_code for one in slow] == [408] * 16
    assert [(await world.share(device)).status_code for device in ("d0", "other")] == [200, 200]

"""/v1/features: roles, filters, pages and faults; the page of the latest features."""

import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from walle.access.access import Access, Role
from walle.base import plain
from walle.cloud.api.features import feature_router
from walle.cloud.api.releases import install_error_handlers
from walle.pipeline.ingest.store.feature_reader import MAX_PAGE
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received

TOPICS = ("shop/visits", "shop/visits/clicks", "stream/highlights", "old")


class World:
    """The routes on a real store, with a token for each kind of reader."""

    def __init__(self, store: UploadStore) -> None:
        access = Access()
        self.tokens = {
            "all": access.issue("anna", {"*": Role.READER}),
            "shop": access.issue("bert", {"shop": Role.READER}),
            "none": access.issue("carl", {}),
            "unknown": "made up",
        }
        app = FastAPI()
        app.include_router(feature_router(lambda: store, access))
        install_error_handlers(app)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://cloud")

    async def get(self, who: str = "all", **query: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if who else {}
        return await self.http.get("/v1/features", params=query, headers=headers)

    async def rows(self, who: str = "all", **query: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        answer = await self.get(who, **query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/x-ndjson"
        *rows, end = map(json.loads, answer.text.splitlines())
        return rows, end


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[UploadStore]:
    async with open_uploads(tmp_path / "uploads.db", create=True) as opened:
        payloads = [{"page": "a", "raw": b"\xff"}, 5, {"page_id": "<script>"}, None]
        await opened.accept(
            [
                Received("phone", "e", seq, topic, plain.encode(payload), seq, seq * 1000)
                for seq, (topic, payload) in enumerate(zip(TOPICS, payloads, strict=True), 1)
            ]
        )
        yield opened


@pytest_asyncio.fixture
async def world(store: UploadStore) -> AsyncIterator[World]:
    world = World(store)
    async with world.http:
        yield world


@pytest.mark.asyncio
async def test_a_page_has_the_features_and_where_the_next_begins(world: World) -> None:
    rows, end = await world.rows(limit=3)
    assert [row["topic"] for row in rows] == list(TOPICS[:3])
    assert rows[0]["payload"] == {"page": "a", "raw": {"$bytes": "/w=="}}
    assert (rows[0]["task"], rows[0]["device"], rows[0]["page"], rows[2]["page"]) == (
        "shop/visits", "phone", "a", "<script>"
    )  # fmt: skip
    assert end == {"after": 3, "head": 4, "more": True}
    rows, end = await world.rows(after=end["after"], limit=3)
    assert ([row["topic"] for row in rows], end) == (["old"], {"after": 4, "head": 4, "more": False})


@pytest.mark.asyncio
async def test_filters_and_the_latest(world: World) -> None:
    assert [row["position"] for row in (await world.rows(task="shop/visits"))[0]] == [1, 2]
    assert [row["position"] for row in (await world.rows(topic="shop/visits"))[0]] == [1]
    assert [row["position"] for row in (await world.rows(device="phone", since_ms=2000, until_ms=4000))[0]] == [2, 3]
    rows, end = await world.rows(latest=2)
    assert ([row["position"] for row in rows], end["after"]) == ([3, 4], 4)


@pytest.mark.asyncio
async def test_a_token_reads_the_scenarios_of_its_role(world: World) -> None:
    assert [row["position"] for row in (await world.rows("shop"))[0]] == [1, 2]
    assert [row["position"] for row in (await world.rows("shop", latest=10))[0]] == [1, 2]
    assert [row["position"] for row in (await world.rows("all"))[0]] == [1, 2, 3, 4]
    for who, query, status in (
        ("", {}, 401),
        ("unknown", {}, 401),
        ("none", {}, 403),
        ("shop", {"task": "stream/highlights"}, 403),
        ("shop", {"topic": "stream/highlights"}, 403),
        ("shop", {"topic": "old"}, 403),
    ):
        answer = await world.get(who, **query)
        assert answer.status_code == status, (who, query)
        assert answer.json()["type"] == "AccessError"
        assert "highlights" not in answer.text or query


@pytest.mark.asyncio
async def test_wrong_queries_are_refused_with_a_reason(world: World) -> None:
    for query, what in (
        ({"limit": 0}, "limit"),
        ({"limit": MAX_PAGE + 1}, "limit"),
        ({"after": -1}, "after"),
        ({"after": 2**60}, "after"),
        ({"task": "visits"}, "SCENARIO/TASK"),
        ({"since_ms": 5, "until_ms": 5}, "not after"),
        ({"topic": "x" * 2000}, "topic"),
    ):
        answer = await world.get(**query)
        assert answer.status_code == 422, query
        assert what in answer.json()["error"]


@pytest.mark.asyncio
async def test_a_store_that_cannot_be_read_is_answered_with_503(
    world: World, store: UploadStore, tmp_path: Path
) -> None:
    database = sqlite3.connect(tmp_path / "uploads.db")
    database.execute("ALTER TABLE uploads RENAME TO elsewhere")
    database.close()
    answer = await world.get()
    assert (answer.status_code, answer.json()["type"]) == (503, "IngestError")
    assert "elsewhere" not in answer.text  # nothing of the database's own words

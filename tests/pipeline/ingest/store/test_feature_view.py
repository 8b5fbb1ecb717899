"""Views of the latest feature of each key, from stored uploads."""

import array
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.pipeline.ingest.upload_samples import until
from walle.base import plain
from walle.errors import ConfigError
from walle.pipeline.ingest.sqlite.store import SqliteUploadStore
from walle.pipeline.ingest.store.feature_view import FeatureView, FeatureViewError, ViewConfig
from walle.pipeline.tunnel.received import Received


def visit(seq: int, payload: Any, *, device: str = "d", topic: str = "shop/ipv") -> Received:
    return Received(device, "e", seq, topic, plain.encode(payload), seq, seq)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteUploadStore]:
    async with SqliteUploadStore(tmp_path / "uploads.db") as store:
        yield store


CONFIG = ViewConfig.parse("shop/visits=shop/ipv:user,page")


@pytest.mark.asyncio
async def test_a_view_has_the_latest_feature_of_each_user_and_page(store: SqliteUploadStore) -> None:
    await store.accept([visit(1, {"user": "u", "page": "a", "n": 1}), visit(2, {"user": "u", "page": "b", "n": 2})])
    view = FeatureView(CONFIG, store)
    following = asyncio.create_task(view.run())
    await until(lambda: len(view) == 2)
    assert view.latest({"user": "u", "page": "b"})["n"] == 2
    assert view.latest({"page": "c", "user": "u"}) is None
    await store.accept(
        [
            visit(3, {"user": "u", "page": "a", "n": 3}),
            visit(4, {"user": "v", "page": "a", "n": 4}, topic="other"),
            visit(5, [1, 2]),
            visit(6, {"user": ["u"], "page": "a"}),
            visit(1, {"user": "v", "page": "a", "n": 5}, device="another"),
        ]
    )
    await until(lambda: view.position == 7)
    assert view.latest({"user": "u", "page": "a"})["n"] == 3
    assert view.latest({"user": "v", "page": "a"})["n"] == 5
    assert view.skipped == 2
    for key in ({}, {"user": "u"}, {"user": "u", "page": "a", "more": 1}, {"user": ["u"], "page": "a"}):
        with pytest.raises(FeatureViewError, match="shop/visits"):
            view.latest(key)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_view_is_bounded_by_keys_and_bytes_and_starts_near_the_end(store: SqliteUploadStore) -> None:
    rows = [visit(seq, {"page": seq % 50, "n": seq, "x": bytes(100)}) for seq in range(1, 201)]
    await store.accept(rows)
    by_keys = FeatureView(ViewConfig(name="s/v", topic="shop/ipv", key=("device", "page"), max_keys=20), store)
    by_bytes = FeatureView(ViewConfig(name="s/v", topic="shop/ipv", key=("device", "page"), max_bytes=1300), store)
    for view in (by_keys, by_bytes):
        while await view.refresh():
            pass
    assert (len(by_keys), by_keys.evicted) == (20, 180)
    assert by_keys.latest({"device": "d", "page": 0})["n"] == 200
    assert by_keys.latest({"device": "d", "page": 1}) is None  # 151 is too old
    assert 5 < len(by_bytes) < 13
    late = FeatureView(ViewConfig(name="s/v", topic="shop/ipv", key=("page",), history=10), store)
    following = asyncio.create_task(late.run())
    await until(lambda: late.position == 200)
    assert len(late) == 10
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "visits=t:a",
        "shop/visits=t",
        "shop/visits=:a",
        "shop/visits=t:",
        "shop/=shop/t:a",
        "shop/visits=home/ipv:a",
        "shop/visits=shop:a",
    ],
)
def test_a_view_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="SCENARIO/VIEW=TOPIC:FIELD"):
        ViewConfig.parse(text)


def test_an_upload_whose_values_would_fill_the_memory_is_left_out() -> None:
    view = FeatureView(ViewConfig.parse("shop/visits=shop/t:user"), SqliteUploadStore(Path("unused")))
    view.add(visit(1, {"user": "a", "lists": [[]] * 600_000}))
    view.add(visit(1, {"user": "a", "lists": [[]] * 500_000}))
    assert (len(view), view.skipped) == (1, 1)


def test_an_array_as_a_key_is_left_out() -> None:
    view = FeatureView(ViewConfig.parse("shop/visits=shop/t:user"), SqliteUploadStore(Path("unused")))
    view.add(visit(1, {"user": array.array("f", [1.0])}))
    view.add(visit(1, {"user": "u" * 257}))  # a forged device could send it: keys are held beside the payloads
    assert (len(view), view.skipped) == (0, 2)
    with pytest.raises(FeatureViewError, match="is a list, table or array"):
        view.latest({"user": memoryview(array.array("f", [1.0]))})

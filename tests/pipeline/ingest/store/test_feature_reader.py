"""Reader of features: filters, pages, times and bounds, on both stores."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.pipeline.ingest.upload_samples import came_compressed
from tests.sim.postgres_server import PostgresServer
from walle.base import plain
from walle.errors import ConfigError
from walle.pipeline.ingest.store import feature_reader
from walle.pipeline.ingest.store.feature_reader import (
    FeatureFilter,
    FeaturePage,
    FeatureReader,
    feature_row,
    iso_time,
    task_of,
)
from walle.pipeline.ingest.store.upload_columns import upload_columns
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received


def upload(seq: int, topic: str, payload: Any, *, device: str = "d", at_ms: int = 0) -> Received:
    return Received(device, "e", seq, topic, plain.encode(payload), seq, at_ms or seq * 1000)


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[UploadStore]:
    location: str | Path = tmp_path / "uploads.db"
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        location = postgres.make_database()
    async with open_uploads(location, create=True) as opened:
        yield opened


def places(page: FeaturePage) -> list[int]:
    return [position for position, _ in page.uploads]


async def positions(store: UploadStore, limit: int = 100, **wanted: Any) -> list[int]:
    """Return the positions of all features of a filter, read in pages, which must agree with the latest ones."""
    reader = FeatureReader(store, FeatureFilter(**wanted))
    found, after = [], 0
    while True:
        page = await reader.page(after, limit)
        assert len(page.uploads) <= limit
        found += places(page)
        assert page.after > after or not page.more
        after = page.after
        if not page.more:
            break
    latest = await reader.latest(3)
    assert places(latest) == found[-3:]
    return found


@pytest.mark.asyncio
async def test_filters_select_by_task_topic_device_and_time(store: UploadStore) -> None:
    uploads = [
        upload(1, "shop/visits", {"page": "a"}),
        upload(2, "shop/visits/clicks", 1),
        upload(3, "shop/visitsx", 2),
        upload(1, "shop/visits", 3, device="other", at_ms=4000),
        upload(4, "ipv.feature", 4, at_ms=5000),
        upload(5, "shop/visits/clicks/deep", 5, at_ms=6000),
    ]
    await store.accept(uploads)
    for limit in (1, 2, 100):
        assert await positions(store, limit) == [1, 2, 3, 4, 5, 6]
        assert await positions(store, limit, task="shop/visits") == [1, 2, 4, 6]
        assert await positions(store, limit, topic="shop/visits") == [1, 4]
        assert await positions(store, limit, topic="ipv.feature") == [5]
        assert await positions(store, limit, device="other") == [4]
        assert await positions(store, limit, device="d", task="shop/visits") == [1, 2, 6]
        assert await positions(store, limit, device="nobody") == []
        assert await positions(store, limit, since_ms=2000, until_ms=5000) == [2, 3, 4]
        assert await positions(store, limit, since_ms=2001, topic="shop/visits") == [4]
        assert await positions(store, limit, since_ms=7000) == []
        assert await positions(store, limit, until_ms=1000) == []
    limited = FeatureReader(store, FeatureFilter(), lambda topic: topic.startswith("shop/"))
    assert places(await limited.page(0, 100)) == [1, 2, 3, 4, 6]


@pytest.mark.asyncio
async def test_pages_skip_deleted_positions_and_windows_of_others(
    store: UploadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_reader, "_WINDOW", 10)
    monkeypatch.setattr(feature_reader, "_MAX_MISSES", 2)
    await store.accept([upload(seq, "shop/a" if seq in (1, 95, 200) else "shop/b", seq) for seq in range(1, 201)])
    found, after = list[int](), 0
    for _ in range(12):
        page = await FeatureReader(store, FeatureFilter(task="shop/a", device="d")).page(after, 100)
        found, after = [*found, *places(page)], page.after
    assert (found, after, page.more) == ([1, 95, 200], 200, False)
    reader = FeatureReader(store, FeatureFilter(task="shop/a", device="d"))
    page = await reader.page(0, 100)  # a window of 10 positions with one, two without
    assert (places(page), page.after, page.more) == ([1], 30, True)
    trim = {"before_ms": None, "now_ms": 10**12, "over_bytes": 10**6, "keep_unconsumed": True, "limit": 1000}
    await store.trim("shop/b", **trim)  # type: ignore[arg-type]
    page = await reader.page(1, 100)  # passes 94, finds 95, ends at 199
    assert (places(page), page.after, page.more) == ([95], 199, True)
    assert places(await reader.page(199, 100)) == [200]


@pytest.mark.asyncio
async def test_pages_are_bounded_by_bytes(store: UploadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_reader, "MAX_PAGE_BYTES", 2500)
    await store.accept([upload(seq, "shop/a", os.urandom(1000)) for seq in range(1, 8)])
    reader, found, after = FeatureReader(store, FeatureFilter()), list[list[int]](), 0
    while after < 7:
        page = await reader.page(after, 100)
        found, after = [*found, places(page)], page.after
    assert found == [[1, 2, 3], [4, 5, 6], [7]]
    assert places(await reader.latest(100)) == [6, 7]


@pytest.mark.asyncio
@pytest.mark.parametrize("wanted", [{}, {"device": "d"}, {"topic": "shop/b"}, {"since_ms": 4000}])
async def test_pages_in_columns_are_those_of_uploads(
    store: UploadStore, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    monkeypatch.setattr(feature_reader, "MAX_PAGE_BYTES", 2500)
    # The large one, in the middle, is kept compressed.
    rows = [upload(seq, "shop/a" if seq % 3 else "shop/b", os.urandom(1000)) for seq in range(1, 8)]
    rows += [came_compressed(8, topic="shop/b"), upload(9, "shop/b", 1), upload(1, "shop/b", 2, device="f")]
    await store.accept(rows)
    await store.trim("shop/a", before_ms=2500, now_ms=10**12, over_bytes=0, keep_unconsumed=True, limit=1000)
    reader = FeatureReader(store, FeatureFilter(**wanted))
    for limit in (1, 2, 100):
        after, count = 0, 0
        while True:
            expected, found = await reader.page(after, limit), await reader.columns(after, limit)
            assert found == (upload_columns(expected.uploads), *expected[1:])
            after, count = found.after, count + len(found.columns.positions)
            if not found.more:
                break
        assert count > 1
    assert (await reader.columns(1000, 10))[1:] == (1000, 10, False)  # the store went back


@pytest.mark.asyncio
async def test_a_clock_that_was_set_back_loses_nothing_within_the_positions(store: UploadStore) -> None:
    times = [1000, 9000, 2000, 3000, 4000]  # the second by a clock that was ahead
    await store.accept([upload(seq, "shop/a", seq, at_ms=at_ms) for seq, at_ms in enumerate(times, 1)])
    assert await positions(store, since_ms=3000) == [4, 5]
    assert await positions(store, since_ms=1000) == [1, 2, 3, 4, 5]


def test_a_row_has_task_device_page_and_times() -> None:
    row = feature_row(7, Received("d", "e", 1, "shop/visits", plain.encode({"page": "item/7"}), 5, 1_700_000_000_123))
    assert row == {
        "position": 7,
        "time": "2023-11-14T22:13:20.123Z",
        "device": "d",
        "task": "shop/visits",
        "version": "",
        "topic": "shop/visits",
        "page": "item/7",
        "sent_ms": 5,
        "received_ms": 1_700_000_000_123,
        "payload": {"page": "item/7"},
    }
    for payload, page in (
        ({"page_id": "p"}, "p"),
        ({"page": 5, "page_id": "p"}, "p"),
        ([1], ""),
        ({"page": ["x"]}, ""),
    ):
        assert feature_row(1, upload(1, "t", payload))["page"] == page


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\xc1", "not plain data"),
        (b"\x91" * 400 + b"\x01", "nested deeper"),
        (b"\xdd\x00\x10\x00\x00" + b"\x90" * (1 << 20), "1048577 values, more than"),
        (b"", "not plain data"),
    ],
)
def test_a_payload_of_a_hostile_device_is_an_error_in_its_row(data: bytes, error: str) -> None:
    row = feature_row(1, Received("d", "e", 1, "t", data, 1, 1))
    assert row["payload"] is None
    assert error in row["error"]


def test_names_and_times_of_a_filter_are_checked() -> None:
    assert [task_of(topic) for topic in ("shop/ipv", "shop/ipv/x", "shop/ipv/x/y", "ipv", "")] == [
        *["shop/ipv"] * 3, "", ""
    ]  # fmt: skip
    assert iso_time(2**53) == str(2**53)
    with pytest.raises(ConfigError, match="SCENARIO/TASK"):
        FeatureFilter(task="visits")
    with pytest.raises(ConfigError, match="not after"):
        FeatureFilter(since_ms=5, until_ms=5)

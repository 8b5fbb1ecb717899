"""Versions of tasks that made uploads, in every store and for every reader of it."""

import pytest

from tests.pipeline.ingest.upload_samples import as_read, came_compressed, moved, received, stored
from walle.base import plain
from walle.pipeline.ingest.store.feature_reader import FeatureFilter, FeatureReader, feature_row
from walle.pipeline.ingest.store.upload_store import UploadStore
from walle.protocol import UNKNOWN_VERSION, Hello, Origin, origins_to_text

_VERSIONS = ["v1", "v1", "", "v2", "v1", "v999999999"]


class LineageContract:
    """Tests of every store; the fixtures are those of `UploadStoreContract`."""

    @pytest.mark.asyncio
    async def test_every_reader_gets_the_version_that_made_an_upload(self, store: UploadStore) -> None:
        rows = [received(seq, topic="shop/ipv")._replace(version=version) for seq, version in enumerate(_VERSIONS, 1)]
        rows.append(came_compressed(len(rows) + 1, topic="shop/ipv")._replace(version="v3"))
        await store.resume(Hello("d", "e", ""))
        await store.accept(rows[:3])
        for row in rows[3:]:  # one upload each, which a store may commit in another way
            await store.accept([row])
        assert await stored(store) == as_read(rows)
        assert [row for _, row in await store.query(device_id="d", topic="shop/ipv")] == as_read(rows)
        async with store.consume("g") as consumer:
            assert (await anext(consumer)).uploads == as_read(rows)

    @pytest.mark.asyncio
    async def test_features_are_selected_by_version(self, store: UploadStore) -> None:
        data = plain.encode({"page": "item/1"})
        rows = [
            received(seq, topic="shop/ipv", payload=data)._replace(version=version)
            for seq, version in enumerate(_VERSIONS, 1)
        ]
        await store.accept(rows)
        for version, expected in (("v1", [1, 2, 5]), ("v2", [4]), (UNKNOWN_VERSION, [3]), ("v", []), ("", range(1, 7))):
            reader = FeatureReader(store, FeatureFilter(task="shop/ipv", version=version))
            page = await reader.page(0, 100)
            assert [position for position, _ in page.uploads] == list(expected)
            assert [position for position, _ in (await reader.latest(100)).uploads] == list(expected)
        assert [feature_row(1, row)["version"] for row in rows] == _VERSIONS

    @pytest.mark.asyncio
    async def test_a_repeated_upload_keeps_the_version_with_which_it_came_first(self, store: UploadStore) -> None:
        first = [received(seq)._replace(version="v1") for seq in (1, 2)]
        await store.accept(first)
        await store.resume(Hello("d", "f", "", origins=origins_to_text([Origin("e", 0, 0, 2)])))
        again = [row._replace(version="v2") for row in moved(first, "f")]
        assert (await store.accept(again)).fresh == []
        assert await stored(store) == first

    @pytest.mark.asyncio
    async def test_an_upload_that_is_set_aside_keeps_its_version(self, store: UploadStore) -> None:
        await store.accept([received(1)])
        await store.set_aside(received(2)._replace(version="v4"), "for its contents")
        (refused,) = await store.refused()
        assert refused.contents is not None
        assert plain.decode(refused.contents) == ["t", b"x", 20, 21, "v4"]

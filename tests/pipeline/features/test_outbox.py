import asyncio
import pathlib

import pytest

from walle.base import plain
from walle.pipeline.features import outbox as outbox_module
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.store import FeatureStore, StoreClosedError


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "features.db"


@pytest.mark.asyncio
async def test_uploads_come_oldest_first_and_without_gaps(path: pathlib.Path) -> None:
    async with FeatureStore(path) as store:
        outbox = Outbox(store)
        assert outbox.last_seq == 0
        assert await outbox.batch(0, 10) == []
        for value in range(10):
            await store.put("t", value, upload=value != 3)
        await store.flush()
        batch = await outbox.batch(0, 4)
        assert [(upload.seq, plain.decode(upload.payload)) for upload in batch] == [(1, 0), (2, 1), (3, 2), (4, 4)]
        assert [upload.seq for upload in await outbox.batch(4, 100)] == [5, 6, 7, 8, 9]
        assert outbox.last_seq == 9


@pytest.mark.asyncio
async def test_forgotten_uploads_are_gone_and_numbers_are_never_reused(path: pathlib.Path) -> None:
    async with FeatureStore(path) as store:
        outbox = Outbox(store)
        epoch = outbox.epoch
        for value in range(5):
            await store.put("t", value)
        await store.flush()
        full = outbox.size_bytes
        await outbox.forget(3)
        await outbox.forget(2)  # late acknowledgements change nothing
        await store.flush()
        assert [upload.seq for upload in await outbox.batch(0, 10)] == [4, 5]
        assert outbox.size_bytes == full * 2 // 5
        await outbox.forget(99)  # an acknowledgement cannot reach what was never sent
        await store.put("t", 5)
        await store.flush()
        assert [upload.seq for upload in await outbox.batch(0, 10)] == [6]
        await outbox.forget(6)
    async with FeatureStore(path) as store:
        outbox = Outbox(store)
        assert outbox.size_bytes == 0
        assert outbox.epoch == epoch
        await store.put("t", 6)
        await store.flush()
        assert [upload.seq for upload in await outbox.batch(0, 10)] == [7]


@pytest.mark.asyncio
async def test_a_new_file_is_a_new_epoch(path: pathlib.Path) -> None:
    async with FeatureStore(path) as one, FeatureStore(path.with_name("other.db")) as two:
        assert Outbox(one).epoch != Outbox(two).epoch
        assert len(bytes.fromhex(Outbox(one).epoch)) == 16


@pytest.mark.asyncio
async def test_a_wait_for_more_ends_with_the_transaction(path: pathlib.Path) -> None:
    async with FeatureStore(path) as store:
        outbox = Outbox(store)
        waiting = asyncio.create_task(outbox.wait_for_more(0))
        later = asyncio.create_task(outbox.wait_for_more(1))
        await store.put("t", 1)
        await asyncio.wait_for(waiting, 5)
        assert len(await outbox.batch(0, 10)) == 1
        assert not later.done()
        await store.put("local", 1, upload=False)
        await store.flush()
        await asyncio.sleep(0)
        assert not later.done()
    with pytest.raises(StoreClosedError):
        await asyncio.wait_for(later, 5)


@pytest.mark.asyncio
async def test_a_batch_is_bounded_in_bytes_and_never_empty_for_that(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "MAX_BATCH_BYTES", 1000)
    async with FeatureStore(path) as store:
        for size in (2000, 400, 400, 400):
            await store.put("t", b"x" * size)
        await store.flush()
        outbox = Outbox(store)
        assert [upload.seq for upload in await outbox.batch(0, 10)] == [1]
        assert [upload.seq for upload in await outbox.batch(1, 10)] == [2, 3]

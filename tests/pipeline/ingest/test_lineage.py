"""The version of the task that made an upload: from the run through the outbox, its epochs, older files and damage."""

import asyncio
import contextlib
import sqlite3
import zlib
from pathlib import Path

import pytest

from walle.base import plain
from walle.base.clock import ManualClock
from walle.pipeline.events.event import Event
from walle.pipeline.features.outbox import Outbox
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import TriggerCondition

# The outbox of a walle without versions.
_OLDER = """
CREATE TABLE older (seq INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL, created_ms INTEGER NOT NULL,
    checksum INTEGER NOT NULL, chain INTEGER NOT NULL,
    size_bytes INTEGER AS (length(topic) + length(payload) + 32));
INSERT INTO older SELECT seq, topic, payload, created_ms, checksum, chain FROM outbox;
DROP TABLE outbox;
ALTER TABLE older RENAME TO outbox;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "features.db"


async def fill(store: FeatureStore, versions: list[str], *, first: int = 0) -> None:
    for number, version in enumerate(versions, first):
        await store.put_all([Put.of("ipv", number, version=version)], position=number)
    await store.flush()


async def made(store: FeatureStore) -> list[tuple[object, str]]:
    """Return the payload and the version of each upload that is not acknowledged."""
    return [(plain.decode(one.payload), one.version) for one in await Outbox(store).batch(0, 10_000)]


def execute(path: Path, script: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(script)


@pytest.mark.asyncio
async def test_a_feature_is_of_the_version_that_ran_whichever_is_active_when_it_is_sent(path: Path) -> None:
    active = ["v1"]

    async def run(_task: str, trigger: Trigger) -> TaskOutput:
        version = active[0]
        return TaskOutput([trigger.position, version], [Put.of("ipv/aside", version, version=version)], version=version)

    async with FeatureStore(path, clock=ManualClock()) as store:
        engine = StreamEngine(store, run)
        engine.add_task("ipv", TriggerCondition.of(["click"]))
        for position, active[0] in enumerate(["v1", "v2", "v1", "v3"]):  # v2, then a rollback, then another release
            await engine.on_event(Event("click", "", position, {}), can_wait=True)
            await engine.settle()
        await engine.close()
    async with FeatureStore(path, clock=ManualClock()) as store:  # sent after a restart
        uploads = await Outbox(store).batch(0, 100)
    assert [one.version for one in uploads] == ["v1", "v1", "v2", "v2", "v1", "v1", "v3", "v3"]
    for one in uploads:
        payload = plain.decode(one.payload)
        assert one.version == (payload if one.topic == "ipv/aside" else payload[1])


@pytest.mark.asyncio
async def test_an_outbox_of_a_walle_without_versions_is_upgraded_and_continues(path: Path) -> None:
    async with FeatureStore(path, clock=ManualClock()) as store:
        await fill(store, ["v1"] * 3)
        epoch = store.state.epoch
    execute(path, _OLDER)
    for _ in range(2):
        async with FeatureStore(path, clock=ManualClock()) as store:
            assert (store.state.epoch, store.report.set_asides) == (epoch, ())
            assert (await made(store))[:3] == [(0, ""), (1, ""), (2, "")]
            if store.state.last_seq == 3:
                await fill(store, ["v2", ""], first=3)
            assert (await made(store))[3:] == [(3, "v2"), (4, "")]


@pytest.mark.asyncio
async def test_a_new_epoch_keeps_the_versions(path: Path) -> None:
    async with FeatureStore(path, clock=ManualClock()) as store:
        await fill(store, ["v1", "v1", "v2", ""])
        outbox = Outbox(store)
        await outbox.forget(1)
        await store.flush()
        epoch = outbox.epoch
        assert not await outbox.reconcile(3, 12345)
        assert outbox.epoch != epoch
        assert (await made(store))[:3] == [(1, "v1"), (2, "v2"), (3, "")]


@pytest.mark.asyncio
@pytest.mark.parametrize("older", [False, True])
async def test_salvage_of_a_damaged_file_keeps_the_versions_that_it_has(path: Path, older: bool) -> None:
    async with FeatureStore(path, clock=ManualClock()) as store:
        await fill(store, ["v1", "v2", ""])
    execute(path, (_OLDER if older else "") + "UPDATE state SET checksum = 0")
    async with FeatureStore(path, clock=ManualClock()) as store:
        assert len(store.report.set_asides) == 1
        assert await made(store) == [
            (number, "" if older else version) for number, version in enumerate(["v1", "v2", ""])
        ]


@pytest.mark.asyncio
async def test_an_altered_version_is_unknown_and_its_upload_is_kept(path: Path) -> None:
    async with FeatureStore(path, clock=ManualClock()) as store:
        await fill(store, ["v1", "v1"])
    execute(path, "UPDATE outbox SET version = 'v3' WHERE seq = 1")
    async with FeatureStore(path, clock=ManualClock()) as store:
        assert await made(store) == [(0, ""), (1, "v1")]
        assert store.report.losses == ()


def test_a_store_keeps_no_text_that_is_not_a_version(path: Path) -> None:
    async def main() -> None:
        async with FeatureStore(path, clock=ManualClock()) as store:
            await fill(store, ["v1 ", "x" * 65, "é", "\0", "a" * 64])
            assert [version for _, version in await made(store)] == ["", "", "", "", "a" * 64]

    asyncio.run(main())
    with contextlib.closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT version, version_checksum FROM outbox ORDER BY seq").fetchall()
    assert rows == [("", 0)] * 4 + [("a" * 64, zlib.crc32(b"a" * 64))]

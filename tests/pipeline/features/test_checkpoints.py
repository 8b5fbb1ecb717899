"""Checkpoints of tasks that train: one transaction with the step's puts, one for each form, within a bound."""

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from walle import np
from walle.base import plain
from walle.base.clock import ManualClock
from walle.pipeline.features.checkpoints import CheckpointError, Checkpoints
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore
from walle.protocol import TrainingPolicy

TASK = "shop/count"
FIRST, SECOND = TrainingPolicy(when={}), TrainingPolicy(when={}, version=2)


@pytest.mark.asyncio
async def test_a_checkpoint_and_the_puts_of_its_step_are_in_the_file_when_put_returns(tmp_path: Path) -> None:
    async with FeatureStore(tmp_path / "features.db", interval_s=3600.0) as store:
        kept = Checkpoints(store)
        assert kept.read(TASK) == (0, None)
        weights = np.asarray([[1.0, 2.0]], dtype="float32")
        await kept.put(TASK, FIRST, [Put.of("shop/count/loss", 0.5, upload=False)], [{"weights": weights, "done": 1}])
        number, value = kept.read(TASK)
        assert kept.read(TASK, number) == (number, None)
        copy = tmp_path / "copy"  # what a kill would leave
        copy.mkdir()
        for path in await asyncio.to_thread(lambda: list(tmp_path.glob("features.db*"))):
            shutil.copy(path, copy)
        async with FeatureStore(copy / "features.db") as left:
            assert Checkpoints(left).read(TASK)[1]["done"] == 1
            assert [one.payload for one in await left.query("shop/count/loss", 0, 10, 0)] == [plain.encode(0.5)]
        await kept.put(TASK, FIRST, [], [])  # a step without a checkpoint leaves the one before
        assert kept.read(TASK, number) == (number, None)
        assert (value["done"], np.asarray(value["weights"]).tolist()) == (1, [[1.0, 2.0]])
    async with FeatureStore(tmp_path / "features.db") as store:
        assert Checkpoints(store).read(TASK)[1]["done"] == 1


@pytest.mark.asyncio
async def test_another_form_begins_again_and_a_rollback_finds_its_own(tmp_path: Path) -> None:
    async with FeatureStore(tmp_path / "features.db") as store:
        kept = Checkpoints(store)
        kept.activate(TASK, FIRST)
        assert kept.read(TASK) == (0, None)
        await kept.put(TASK, FIRST, [], ["first"])
        kept.activate(TASK, SECOND)
        assert kept.read(TASK) == (0, None)
        await kept.put(TASK, SECOND, [], ["second"])
        kept.activate(TASK, FIRST)  # a rollback, and no step after it
        kept.activate(TASK, TrainingPolicy(when={}, version=3))
        kept.activate(TASK, FIRST)
        assert kept.read(TASK)[1] == "first"
    async with FeatureStore(tmp_path / "features.db") as store:
        kept = Checkpoints(store)
        assert kept.read(TASK)[1] == "first"
        kept.remove(TASK)
        assert kept.read(TASK) == (0, None)


@pytest.mark.asyncio
async def test_the_rest_of_a_training_is_stored_with_its_checkpoint(tmp_path: Path) -> None:
    clock = ManualClock()
    async with FeatureStore(tmp_path / "features.db", clock=clock) as store:
        kept = Checkpoints(store)
        kept.activate(TASK, FIRST)
        assert kept.rests_since_s(TASK) is None
        await kept.put(TASK, FIRST, [], ["first"])
        await kept.put(TASK, FIRST, [], [], rests=True)
        assert (kept.read(TASK)[1], kept.rests_since_s(TASK)) == ("first", clock.time())
    async with FeatureStore(tmp_path / "features.db") as store:
        kept = Checkpoints(store)
        assert (kept.read(TASK)[1], kept.rests_since_s(TASK)) == ("first", clock.time())
        await kept.put(TASK, FIRST, [], ["second"])
        assert (kept.read(TASK)[1], kept.rests_since_s(TASK)) == ("second", None)


@pytest.mark.asyncio
async def test_a_damaged_checkpoint_is_counted_and_training_begins_again(tmp_path: Path) -> None:
    async with FeatureStore(tmp_path / "features.db") as store:
        await Checkpoints(store).put(TASK, FIRST, [], [bytes(1000)])
    with contextlib.closing(sqlite3.connect(tmp_path / "features.db")) as file, file:
        (data,) = file.execute("SELECT data FROM task_states").fetchone()
        file.execute("UPDATE task_states SET data = ?", (data[:500] + b"x" + data[501:],))
    async with FeatureStore(tmp_path / "features.db") as store:
        assert Checkpoints(store).read(TASK) == (0, None)
        assert store.report.damaged_states == 1


@pytest.mark.asyncio
async def test_a_checkpoint_that_cannot_be_stored_is_refused_by_name_with_its_step(tmp_path: Path) -> None:
    async with FeatureStore(tmp_path / "features.db") as store:
        kept = Checkpoints(store)
        put = Put.of("shop/count/loss", 0.5, upload=False)
        with pytest.raises(CheckpointError, match=r"ctx\.checkpoint\.step is of type set") as refused:
            await kept.put(TASK, FIRST, [put], [{"step": {1}}])
        assert refused.value.task == TASK
        small = TrainingPolicy(when={}, max_bytes=1024)
        with pytest.raises(CheckpointError, match=r"more than 1024 of \[training\].*frozen=False.*up to 16777216"):
            await kept.put(TASK, small, [put], [bytes(2000)])
        large = TrainingPolicy(when={}, max_bytes=TrainingPolicy.MAX_BYTES)
        with pytest.raises(CheckpointError, match=r"has 3\d{5} values, more than 262144; put numbers into arrays"):
            await kept.put(TASK, large, [put], [[[]] * 300_000])
        assert kept.read(TASK) == (0, None)
        assert await store.query("shop/count/loss", 0, 10, 0) == []

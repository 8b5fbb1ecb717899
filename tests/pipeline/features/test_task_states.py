"""States of tasks between their runs: one transaction with outputs and positions, versions, damage, kill -9."""

import asyncio
import contextlib
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from walle.base import plain
from walle.pipeline.events.event import Event
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.task_states import TaskState, TaskStateError, TaskStates, state_of_version
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import FeaturesPolicy, ProtocolError, StatePolicy, TriggerCondition, UpgradePolicy


@pytest_asyncio.fixture
async def store(tmp_path: pathlib.Path) -> AsyncIterator[FeatureStore]:
    async with FeatureStore(tmp_path / "features.db") as store:
        yield store


def state_of(version: int, value: object, **changes: Any) -> TaskState:
    return TaskState(task="t", version=version, data=plain.encode(value), **changes)


async def seven() -> int:
    return 7


async def no_migration(old_version: int, state: Mapping[str, Any]) -> object:
    raise AssertionError("is not to be called")


async def begin(states: TaskStates, version: int, **options: Any) -> TaskState:
    """Activate a version and return its state."""
    migrate = options.pop("migrate", no_migration)
    policy = StatePolicy(version=version, **options)
    state = await state_of_version(states, "t", policy, last_id=seven, migrate=migrate)
    states.activate(state)
    return state


@pytest.mark.asyncio
async def test_a_run_sees_the_state_that_the_last_one_left(store: FeatureStore) -> None:
    async def count(task: str, trigger: Trigger) -> TaskOutput:
        active = store.task_states.active(task)
        assert active is not None
        state = active.value
        state["n"] = state.get("n", 0) + 1
        if trigger.position == 1:
            raise ValueError("a run that fails")
        if trigger.position == 2:
            state["n"] = "x" * StatePolicy().max_bytes
        return TaskOutput(state["n"], state=state)

    failures: list[str] = []
    engine = StreamEngine(store, count, on_outcome=lambda task, ok, error: failures.append("" if ok else str(error)))
    engine.add_task("t", TriggerCondition.of(["click"]))
    store.activate_state(TaskState.empty("t", 1))
    for position in range(5):
        await engine.on_event(Event("click", "", position, {}), position)
    await engine.settle()
    assert [plain.decode(feature.payload) for feature in await store.query("t")] == [1, 2, 3]
    assert store.task_states.active("t") == state_of(1, {"n": 3})
    assert failures[1] == "a run that fails"
    assert "more than 65536; keep less" in failures[2]


@pytest.mark.asyncio
async def test_a_state_alone_reaches_the_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "features.db"
    async with FeatureStore(path, interval_s=0.001) as store:
        store.activate_state(state_of(1, {"n": 1}))
        async with asyncio.timeout(10):
            while not store.counts.transactions:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        store.activate_state(state_of(2, {"n": 2}, after_id=5))
    async with FeatureStore(path) as store:
        assert store.task_states.active("t") == state_of(2, {"n": 2}, after_id=5)
        assert store.task_states.of_version("t", 1) == state_of(1, {"n": 1}, is_active=False)
        store.remove_states("t")
    async with FeatureStore(path) as store:
        assert store.task_states.active("t") is None


@pytest.mark.asyncio
async def test_a_new_version_keeps_clears_or_migrates_and_a_rollback_finds_the_old_state() -> None:
    states = TaskStates()
    assert (await begin(states, 1)).value == {}
    changed, _ = states.changed("t", {"n": 1})
    assert changed is not None
    states.activate(changed)
    assert states.changed("t", {"n": 1}) == (None, 0)

    kept = await begin(states, 2, on_upgrade=UpgradePolicy.KEEP)
    assert (kept.value, kept.after_id) == ({"n": 1}, 0)
    states.activate(state_of(2, {"n": 2}))
    assert (await begin(states, 1)).value == {"n": 1}
    cleared = await begin(states, 2, on_upgrade=UpgradePolicy.CLEAR, features=FeaturesPolicy.CLEAR)
    assert (cleared.value, cleared.after_id) == ({}, 7)  # the state from before the rollback is not used
    assert (await begin(states, 1)).after_id == 0

    async def migrate(old_version: int, state: Mapping[str, Any]) -> object:
        return {"from": old_version, **state}

    migrated = await begin(states, 3, on_upgrade=UpgradePolicy.MIGRATE, migrate=migrate)
    assert migrated.value == {"from": 1, "n": 1}
    assert (await begin(states, 3, on_upgrade=UpgradePolicy.MIGRATE)) is migrated  # a version of the same form
    assert states.of_version("t", 2) is None  # only the version before is kept

    async def fail(old_version: int, state: Mapping[str, Any]) -> object:
        return [state]

    with pytest.raises(TaskStateError, match="must be a dict, is a list"):
        await begin(states, 4, on_upgrade=UpgradePolicy.MIGRATE, migrate=fail)
    assert states.active("t") == migrated


@pytest.mark.asyncio
async def test_a_damaged_state_is_reported_and_the_others_survive_a_salvage(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "features.db"
    async with FeatureStore(path) as store:
        for task in ("a", "b"):
            store.activate_state(TaskState(task=task, version=1, data=plain.encode({"n": 1})))
        await store.put("topic", 1)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE task_states SET data = ? WHERE task = 'b'", (plain.encode({"n": 2}),))
        db.commit()
    async with FeatureStore(path) as store:
        assert store.task_states.active("b") is None
        assert store.task_states.active("a") is not None
        assert "1 states of tasks failed their checksum or could not be decoded" in store.report.lines()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM state")  # damage of the file elsewhere
        db.commit()
    async with FeatureStore(path) as store:
        assert store.report.set_asides
        assert store.task_states.active("a") == TaskState(task="a", version=1, data=plain.encode({"n": 1}))
        assert store.report.damaged_states == 1


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "state: must be an object"),
        ({"versoin": 1}, "state: has an unknown key 'versoin'"),
        ({"version": 0}, "state.version: must be a whole number from 1"),
        ({"version": True}, "state.version"),
        ({"version": 2}, "state.on_upgrade: is missing; version 2 needs one of keep, clear, migrate"),
        ({"version": 2, "on_upgrade": "drop"}, "state.on_upgrade: must be one of keep, clear, migrate"),
        ({"features": ["keep"]}, "state.features"),
        ({"on_full": "drop"}, "state.on_full: must be one of refuse, evict; is 'drop'"),
        ({"max_bytes": 1023}, "state.max_bytes: must be a whole number from 1024 to 262144, is 1023"),
        ({"max_bytes": 262_145}, "state.max_bytes"),
        ({"max_bytes": 2048.0}, "state.max_bytes"),
        ({"ttl_s": -1}, "state.ttl_s: must be a whole number of seconds from 0 (never) to 31622400, is -1"),
        ({"ttl_s": True}, "state.ttl_s"),
        ({"prefix_ttl_s": 60}, "state.prefix_ttl_s: must be a table of 16 prefixes at most"),
        ({"prefix_ttl_s": {"": 60}}, "state.prefix_ttl_s: has the prefix ''; give one of 1 to 64 characters"),
        ({"prefix_ttl_s": {"cart/": "1h"}}, "state.prefix_ttl_s.cart/: must be a whole number of seconds"),
        ({"prefix_ttl_s": {str(n): 1 for n in range(17)}}, "state.prefix_ttl_s: must be a table of 16"),
    ],
)
def test_a_wrong_policy_is_refused(table: object, message: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        StatePolicy.parse(table)
    assert str(refused.value).startswith(message)


def test_a_policy_is_parsed_from_its_table() -> None:
    policy = StatePolicy(version=3, on_upgrade=UpgradePolicy.MIGRATE, features=FeaturesPolicy.CLEAR)
    assert StatePolicy.parse(policy.to_json()) == policy
    assert StatePolicy.parse({}) == StatePolicy()
    assert not StatePolicy().times_entries
    assert StatePolicy(version=1).to_json() == {"version": 1, "features": "keep"}  # an older walle takes it
    table = {"max_bytes": 5000, "on_full": "evict", "ttl_s": 60, "prefix_ttl_s": {"cart/": 5, "cart/vip/": 0}}
    bounded = StatePolicy.parse(table)
    assert bounded.times_entries
    assert [bounded.ttl_of(key) for key in ("cart/1", "cart/vip/1", "cart", "")] == [5, 0, 60, 60]
    assert bounded.to_json() == {"version": 1, "features": "keep", **table}


PLAYER = """
import asyncio, sys
from walle.pipeline.events.event import Event
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.features.task_states import TaskState
from walle.protocol import FullStatePolicy, StatePolicy, TriggerCondition

BOUNDED = StatePolicy(max_bytes=2000, on_full=FullStatePolicy.EVICT, ttl_s=1)

async def main(path, count):
    async with FeatureStore(path, threshold=20, interval_s=0.004) as store:
        async def run(task, trigger):
            policy = BOUNDED if task == "bounded" else StatePolicy()
            state = store.task_states.active(task).value_at(policy, trigger.ts_ms)
            await asyncio.sleep(0.002 if trigger.position % 41 == 0 else 0)
            found = len(state)
            if task == "bounded" and (trigger.position // 2000 % 2 or trigger.position % 50 == 0):
                state[str(trigger.position % 400)] = "x" * (trigger.position % 90)
            state["n"] = state.get("n", 0) + 1
            state["sum"] = (state.get("sum", 0) * 31 + trigger.position) % 1000003
            if trigger.position % 7 == 0:
                raise ValueError("its state is dropped")
            silent = task == "silent"  # its state alone is stored
            output = None if silent else [state["n"], state["sum"], found]
            return TaskOutput(output, state=state, state_policy=policy)

        engine = StreamEngine(store, run)
        for task, trigger_id in (("a", "click"), ("b", "scroll"), ("silent", "click"), ("bounded", "scroll")):
            engine.add_task(task, TriggerCondition.of([trigger_id]))
            if store.task_states.active(task) is None:
                store.activate_state(TaskState.empty(task, 1))
        print("open", flush=True)
        for position in range(store.resume_from, count):
            kind = "click" if position % 3 else "scroll"
            await engine.on_event(Event(kind, "", position, {}), position, can_wait=True)
        await engine.settle()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def contents_of(path: pathlib.Path) -> tuple[list[Any], list[Any], list[Any]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        features = db.execute("SELECT topic, position, payload FROM features ORDER BY topic, id").fetchall()
        states = db.execute("SELECT task, version, data FROM task_states ORDER BY task").fetchall()
        return features, states, db.execute("SELECT * FROM task_state_times ORDER BY task").fetchall()


@pytest.mark.night
def test_states_and_outputs_are_equal_whatever_kills_come_between(tmp_path: pathlib.Path) -> None:
    count = "8000"
    whole, killed = tmp_path / "whole.db", tmp_path / "killed.db"
    subprocess.run([sys.executable, "-c", PLAYER, str(whole), count], check=True, stdout=subprocess.DEVNULL)
    features, states, times = contents_of(whole)
    assert len(features) > 5_000
    assert [row[0] for row in times] == ["bounded"]
    sizes = [plain.decode(payload)[2] for topic, _, payload in features if topic == "bounded"]
    assert min(sizes[1000:]) < max(sizes) // 2  # entries went
    assert next(plain.decode(data)["n"] for _, _, data in states) == sum(topic == "a" for topic, _, _ in features)
    seed, kills, ended = random.Random(8), 0, False
    while not ended:
        with subprocess.Popen(
            [sys.executable, "-c", PLAYER, str(killed), count], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                assert process.wait(seed.uniform(0.02, 0.12) if kills < 20 else None) == 0
                ended = True
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
    assert kills >= 5
    assert contents_of(killed) == (features, states, times)

"""Entries of a task's state: expiry by the time of the stream, eviction by last write, crashes, older files."""

import contextlib
import copy
import dataclasses
import pathlib
import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.slow_entries import HOUR_MS, Change, RefusedError, SlowState
from walle.base import plain
from walle.pipeline.features.state_entries import EntryTimes, entry_count, split
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.task_states import (
    TaskState,
    TaskStateError,
    TaskStates,
    read_states,
    state_of_version,
    write_states,
)
from walle.protocol import FullStatePolicy, StatePolicy, UpgradePolicy

EVICTING = StatePolicy(max_bytes=1024, on_full=FullStatePolicy.EVICT)
KEYS = ("a", "b", "c", "cart/1", "cart/vip/2", "seen/3")

WHATS = ("set", "set", "set", "set", "append", "delete", "same", "move")


class Op(NamedTuple):
    """One thing that a task does with its state."""

    what: str  # set, append, delete, same, move
    key: str
    value: Any


class Run(NamedTuple):
    """A run of a task: how much later its event is, what it does, and what comes before it: a kill, or a write."""

    later_ms: int
    ops: tuple[Op, ...]
    before: str  # "", "kill", "write"


def changed(state: dict[str, Any], ops: tuple[Op, ...]) -> None:
    """Do with the state what a task would."""
    for op in ops:
        if op.what == "set":
            state[op.key] = copy.deepcopy(op.value)
        elif op.what == "append" and isinstance(state.get(op.key), list):
            state[op.key].append(op.value)
        elif op.what == "delete":
            state.pop(op.key, None)
        elif op.what == "same" and op.key in state:
            state[op.key] = plain.decode(plain.encode(state[op.key]))
        elif op.what == "move" and op.key in state:
            state[op.key] = state.pop(op.key)


def values() -> st.SearchStrategy[Any]:
    simple = st.none() | st.booleans() | st.integers(-5, 300) | st.floats() | st.text(max_size=3)
    sized = st.sampled_from([250, 300, 400]).map(lambda size: ["x" * size])
    return (
        sized
        | sized
        | st.integers(0, 1100).map(bytes)
        | simple
        | st.lists(simple, max_size=3)
        | st.dictionaries(st.text(max_size=2), simple, max_size=2)
    )


def runs() -> st.SearchStrategy[list[Run]]:
    later = st.sampled_from([0, 1, 999, 1000, 1001, 5000, -1, -5000, -HOUR_MS, -HOUR_MS - 1, 2 * HOUR_MS, 1, 500])
    ops = st.builds(Op, st.sampled_from(WHATS), st.sampled_from(KEYS), values())
    return st.lists(
        st.builds(
            Run, later, st.lists(ops, min_size=1, max_size=5).map(tuple), st.sampled_from(["", "", "kill", "write"])
        ),
        min_size=4,
        max_size=20,
    )


def policies() -> st.SearchStrategy[StatePolicy]:
    ttl = st.sampled_from([0, 1, 5, 3600])
    prefixes = st.dictionaries(st.sampled_from(["cart/", "cart/vip/", "s"]), ttl, max_size=3)
    options: st.SearchStrategy[dict[str, Any]] = st.builds(
        dict,
        max_bytes=st.sampled_from([1024, 1100, 2000]),
        on_full=st.sampled_from(list(FullStatePolicy)),
        ttl_s=ttl,
        prefix_ttl_s=prefixes,
    )
    return options.map(lambda chosen: StatePolicy(**chosen)).filter(lambda policy: policy.times_entries)


class Device:
    """A task's state on a device whose process may be killed: what is not written is lost, and its runs come again."""

    def __init__(self, policy: StatePolicy) -> None:
        self.policy = policy
        self.db = sqlite3.connect(":memory:")
        self.pending: dict[tuple[str, int], TaskState | None] = {}
        self.since: list[tuple[int, tuple[Op, ...]]] = []  # runs since the last write
        self.states = TaskStates([TaskState.empty("t", 1)])
        self.write()

    @property
    def active(self) -> TaskState:
        active = self.states.active("t")
        assert active is not None
        return active

    def write(self) -> None:
        write_states(self.db, {**self.pending, self.active.key: self.active})
        self.pending, self.since = {}, []

    def kill(self) -> None:
        states, damaged = read_states(self.db)
        assert not damaged
        self.states, again = TaskStates(states), self.since
        self.since = []
        for ts_ms, ops in again:
            self.run(ts_ms, ops)

    def run(self, ts_ms: int, ops: tuple[Op, ...]) -> tuple[dict[str, Any], bool, int]:
        """Return the state that the run found, whether it succeeded, and how many entries were evicted."""
        self.since.append((ts_ms, ops))
        found = self.active.value_at(self.policy, ts_ms)
        value = self.active.value_at(self.policy, ts_ms)
        changed(value, ops)
        try:
            after, evicted = self.states.changed("t", value, self.policy, ts_ms)
        except TaskStateError:
            return found, False, 0
        if after is not None:
            self.pending |= self.states.activate(after)
        return found, True, evicted


@settings(max_examples=300, deadline=None)
@given(policy=policies(), played=runs())
def test_states_are_those_of_the_slow_reference_whatever_kills_come_between(
    policy: StatePolicy, played: list[Run]
) -> None:
    device, slow, ts_ms = Device(policy), SlowState(policy), 10 * HOUR_MS
    with contextlib.closing(device.db):
        for run in played:
            if run.before == "kill":
                device.kill()
            elif run.before == "write":
                device.write()
            ts_ms += run.later_ms
            found, ok, evicted = device.run(ts_ms, run.ops)
            before = len(slow.evicted)
            change: Change = lambda state, ops=run.ops: changed(state, ops)  # type: ignore[misc] # noqa: E731
            try:
                expected: dict[str, Any] | None = slow.run(ts_ms, change)
            except RefusedError:
                expected = None
            assert ok == (expected is not None)
            if expected is not None:
                assert plain.encode(found) == plain.encode(expected)
            assert evicted == len(slow.evicted) - before
            assert len(device.active.data) <= policy.max_bytes
            assert device.active.data == plain.encode(slow.value)
            times = device.active.times
            assert list(times.written_ms.items() if times is not None else ()) == slow.written
            assert device.active.entries == len(slow.value)


def run_at(states: TaskStates, policy: StatePolicy, ts_ms: int, **entries: Any) -> tuple[dict[str, Any], int]:
    """Run a task that sets entries; return the state after it, and how many were evicted."""
    active = states.active("t")
    assert active is not None
    after, evicted = states.changed("t", {**active.value_at(policy, ts_ms), **entries}, policy, ts_ms)
    if after is not None:
        states.activate(after)
        active = after
    return active.value, evicted


def times_of(now_ms: int, written_ms: Mapping[str, int]) -> EntryTimes:
    return EntryTimes(now_ms, written_ms, {})


def stored(value: Mapping[str, Any], times: EntryTimes | None = None) -> TaskState:
    return TaskState(task="t", version=1, data=plain.encode(dict(value)), times=times)


def test_the_entry_that_was_not_written_for_longest_is_evicted_first_whatever_its_place() -> None:
    states = TaskStates([TaskState.empty("t", 1)])
    for number, key in enumerate("abc"):
        run_at(states, EVICTING, 1000 + number, **{key: ["x" * 300]})
    active = states.active("t")
    assert active is not None
    value = active.value
    value["a"].append(1)  # changed in place: a write
    value["b"] = list(value["b"])  # equal: none
    after, evicted = states.changed("t", value, EVICTING, 1003)
    assert after is not None
    assert evicted == 0
    states.activate(after)
    left, evicted = run_at(states, EVICTING, 1004, d=["x" * 300])
    assert (list(left), evicted) == (["a", "c", "d"], 1)


def test_a_clock_that_is_set_back_evicts_by_the_order_of_writes() -> None:
    states = TaskStates([TaskState.empty("t", 1)])
    run_at(states, EVICTING, 100 * HOUR_MS, old="x" * 400)
    run_at(states, EVICTING, HOUR_MS, new="x" * 400)
    assert run_at(states, EVICTING, HOUR_MS + 1, newer="x" * 400) == ({"new": "x" * 400, "newer": "x" * 400}, 1)


def test_expiry_is_by_the_time_of_the_stream_and_an_event_of_a_far_future_keeps_nothing_longer() -> None:
    policy = StatePolicy(ttl_s=60, prefix_ttl_s={"cart/": 10, "profile/": 0})
    states = TaskStates([TaskState.empty("t", 1)])
    run_at(states, policy, 0, **{"cart/1": 1, "profile/1": 1, "other": 1})
    assert run_at(states, policy, 9_999, n=1)[0].keys() == {"cart/1", "profile/1", "other", "n"}
    assert run_at(states, policy, 10_000, n=2)[0].keys() == {"profile/1", "other", "n"}
    assert run_at(states, policy, 9_000, n=3)[0].keys() == {"profile/1", "other", "n"}  # late: time does not go back
    assert run_at(states, policy, 60_000, n=4)[0].keys() == {"profile/1", "n"}
    far_ms = 1000 * HOUR_MS
    run_at(states, policy, far_ms, far=1)
    run_at(states, policy, 61_000)  # set back, by a run that changes nothing itself
    assert run_at(states, policy, 121_000)[0] == {"profile/1": 1}


def test_a_state_that_was_stored_without_times_is_readable_and_its_entries_are_as_old_as_their_first_run() -> None:
    policy = dataclasses.replace(EVICTING, ttl_s=60)
    states = TaskStates([stored({"a": 1, "b": 2})])
    active = states.active("t")
    assert active is not None
    assert active.value_at(policy, 10**12) == {"a": 1, "b": 2}
    run_at(states, policy, 10**12)
    assert run_at(states, policy, 10**12 + 59_999)[0] == {"a": 1, "b": 2}
    assert run_at(states, policy, 10**12 + 60_000)[0] == {}


def test_a_state_beyond_a_new_smaller_bound_is_evicted_to_it_also_by_a_run_that_changes_nothing() -> None:
    states = TaskStates([stored({f"{n:03}": "x" * 100 for n in range(100)})])
    left, evicted = run_at(states, EVICTING, 1)
    assert list(left) == [f"{n:03}" for n in range(91, 100)]
    assert evicted == 91


def test_an_entry_that_cannot_fit_fails_its_run_and_evicts_nothing() -> None:
    states = TaskStates([stored({"a": 1})])
    with pytest.raises(TaskStateError) as refused:
        run_at(states, EVICTING, 1, big="x" * 1024)
    expected = (
        "the state of task 't' cannot be kept within 1024 bytes: entry 'big' has 1031 bytes alone; keep less in it"
    )
    assert str(refused.value) == expected
    with pytest.raises(TaskStateError, match="entry 'b' has 1024 bytes alone"):
        run_at(states, EVICTING, 1, b="x" * 1019)
    active = states.active("t")
    assert active is not None
    assert active.value == {"a": 1}
    assert run_at(states, EVICTING, 1, b="x" * 1018) == ({"b": "x" * 1018}, 1)  # a state of exactly the bound is kept


@pytest.mark.parametrize("count", [1, 15, 16, 20])
def test_the_bound_is_exact_for_every_number_of_entries(count: int) -> None:
    state = {chr(97 + n): "x" * (900 // count) for n in range(count)}
    while len(plain.encode(state)) < 1024:
        state["a"] += "x"
    states = TaskStates([stored({})])
    assert run_at(states, EVICTING, 1, **state) == (state, 0)
    if count > 1:
        left, evicted = run_at(states, EVICTING, 2, b=state["b"] + "x")
        assert (len(left), evicted) == (count - 1, 1)


def test_a_refused_state_names_its_largest_entries_and_what_to_do() -> None:
    states = TaskStates([stored({})])
    value = {"small": 1, "large": "x" * 70_000, "larger": ["y" * 80_000]}
    with pytest.raises(TaskStateError) as refused:
        states.changed("t", value)
    text = str(refused.value)
    assert text.startswith(
        "the state of task 't' has 150032 bytes, more than 65536; keep less, or put features, or have"
    )
    assert 'set ttl_s or on_full = "evict", raise max_bytes (up to 262144)' in text
    assert text.endswith("its largest entries: 'larger' (80013), 'large' (70011), 'small' (7)")
    assert states.changed("t", value, StatePolicy(max_bytes=200_000))[0] is not None


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE task_state_times SET times = x'93'",
        "UPDATE task_state_times SET times = zeroblob(100000)",
        "UPDATE task_state_times SET times = 5",
        "UPDATE task_state_times SET checksum = 'x'",
        "DELETE FROM task_state_times",
        "DROP TABLE task_state_times",
    ],
)
def test_damaged_times_leave_the_state_and_are_made_again(damage: str) -> None:
    device = Device(EVICTING)
    with contextlib.closing(device.db):
        device.run(1000, (Op("set", "a", 1),))
        device.write()
        assert read_states(device.db)[0][0].times == times_of(1000, {"a": 1000})
        device.db.execute(damage)
        device.kill()
        assert (device.active.value, device.active.times) == ({"a": 1}, None)
        device.run(2000, ())
        assert device.active.times == times_of(2000, {"a": 2000})


@pytest.mark.asyncio
async def test_a_file_whose_times_cannot_be_read_keeps_its_states(tmp_path: pathlib.Path) -> None:
    path, states = tmp_path / "features.db", TaskStates([TaskState.empty("t", 1)])
    run_at(states, EVICTING, 1000, a=1)
    active = states.active("t")
    assert active is not None
    async with FeatureStore(path) as store:
        store.activate_state(active)
    with contextlib.closing(sqlite3.connect(path)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'task_state_times'").fetchone()
        (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek((root - 1) * page_bytes)
        file.write(b"\xff" * page_bytes)
    async with FeatureStore(path) as store:
        kept = store.task_states.active("t")
        assert kept is not None
        assert (kept.value, kept.times) == ({"a": 1}, None)
        assert store.report.set_asides  # the damaged file


def test_entries_that_an_older_walle_wrote_get_new_times() -> None:
    device = Device(EVICTING)
    with contextlib.closing(device.db):
        device.run(1000, (Op("set", "a", 1), Op("set", "b", 1)))
        device.write()
        write_states(device.db, {("t", 1): stored({"b": 2, "c": 3})})  # an older walle, which knows no times
        device.kill()
        assert (device.active.value, device.active.times) == ({"b": 2, "c": 3}, None)


def test_times_do_not_come_back_with_equal_contents_after_a_version_without_options() -> None:
    device = Device(EVICTING)
    with contextlib.closing(device.db):
        device.run(1000, (Op("set", "a", 1),))
        device.write()
        for value in (2, 1):  # runs of a version without a TTL or eviction
            write_states(device.db, {("t", 1): stored({"a": value})})
        device.kill()
        assert (device.active.value, device.active.times) == ({"a": 1}, None)


def test_a_removed_state_leaves_no_times() -> None:
    device = Device(EVICTING)
    with contextlib.closing(device.db):
        device.run(1000, (Op("set", "a", 1),))
        device.write()
        write_states(device.db, device.states.remove("t"))
        assert device.db.execute("SELECT count(*) FROM task_state_times").fetchone() == (0,)


@pytest.mark.asyncio
async def test_an_upgrade_keeps_the_times_of_equal_entries_and_the_new_bound() -> None:
    policy = StatePolicy(version=2, max_bytes=1024, on_full=FullStatePolicy.EVICT, on_upgrade=UpgradePolicy.MIGRATE)
    times = times_of(5000, {"c": 1000, "a": 2000, "b": 5000})
    states = TaskStates([stored({"a": "x" * 400, "b": 1, "c": "x" * 400}, times)])

    async def migrate(_: int, state: Mapping[str, Any]) -> object:
        return {**state, "b": 2, "new": "x" * 400}

    async def none() -> int:
        return 0

    state = await state_of_version(states, "t", policy, last_id=none, migrate=migrate)
    assert list(state.value) == ["a", "b", "new"]  # c is the oldest
    assert state.times == times_of(5000, {"a": 2000})
    states.activate(state)
    run_at(states, policy, 6000)
    active = states.active("t")
    assert active is not None
    assert active.times == times_of(6000, {"a": 2000, "b": 6000, "new": 6000})

    async def too_much(_: int, state: Mapping[str, Any]) -> object:
        return {**state, "new": "x" * 2000}

    policy = dataclasses.replace(policy, version=3)
    with pytest.raises(TaskStateError, match="entry 'new' has 2007 bytes alone"):
        await state_of_version(states, "t", policy, last_id=none, migrate=too_much)


@given(st.dictionaries(st.text(max_size=40), values(), max_size=40))
def test_split_gives_every_entry_once_and_in_order(value: dict[str, Any]) -> None:
    data = plain.encode(value)
    entries = split(data)
    assert list(entries) == list(value)
    assert entry_count(data) == len(value)
    assert [plain.encode({key: one})[1:] for key, one in value.items()] == list(entries.values())


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_split_reads_maps_of_every_head(count: int) -> None:
    data = plain.encode({str(number): None for number in range(count)})
    assert (entry_count(data), len(split(data))) == (count, count)

"""Coordinator: durable order of writes, crashes at any of them, failures of aggregation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.federated.small_models import numbers, update, weights
from walle.federated import (
    Coordinator,
    RoundError,
    RoundSettings,
    RoundState,
    UpdateError,
    UpdateRefusedError,
    Weights,
    encode_update,
    replay,
)
from walle.federated.aggregation import Aggregator, FedAdam, FedAvg, MultiKrum, NormBound
from walle.federated.memory_store import MemoryStore

DEVICES = ["d0", "d1", "d2", "d3"]
SETTINGS = RoundSettings(target=3, minimum=2, timeout_s=10.0, over_selection=4 / 3)


class Crash(Exception):  # noqa: N818 -- the process ends
    """The process is killed."""


class CrashingStore(MemoryStore):
    """A store whose process is killed before or after one of its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left = -1
        self.loses_last = False

    def _write(self, write: Callable[[], None]) -> None:
        if self.writes_left == 0:
            self.writes_left = -1
            if not self.loses_last:
                write()
            raise Crash
        self.writes_left -= self.writes_left > 0
        write()

    def append(self, record: Mapping[str, Any]) -> None:
        self._write(lambda: super(CrashingStore, self).append(record))

    def put_update(self, digest: str, body: bytes) -> None:
        self._write(lambda: super(CrashingStore, self).put_update(digest, body))

    def drop_updates(self) -> None:
        self._write(super().drop_updates)

    def put_model(self, version: int, model: Weights, state: Mapping[str, Any]) -> None:
        self._write(lambda: super(CrashingStore, self).put_model(version, model, state))


def coordinator(store: MemoryStore, aggregator: Aggregator | None = None) -> Coordinator:
    return Coordinator.resume(store, store.records, weights(0), aggregator or FedAvg(), SETTINGS, seed="s")


def body(device: str, number: int) -> bytes:
    place = int(device[1:])
    return encode_update(update(float(10 * number + place), samples=place + 1, round_number=number))


def test_three_updates_make_the_next_model() -> None:
    store = MemoryStore()
    one = coordinator(store)
    current = one.begin(DEVICES, 0.0)
    assert sorted(current.cohort) == DEVICES
    for device in ("d0", "d1", "d2"):
        assert one.deliver(device, body(device, 1), 1.0)
        assert not one.deliver(device, body(device, 1), 1.0)
    assert one.advance(1.0) is RoundState.DONE
    assert numbers(one.model) == pytest.approx([(10 * 1 + 11 * 2 + 12 * 3) / 6] * 5)
    done = store.records[-1]
    assert done["next_model"] == one.model.identity
    assert done["report"]["counted"] == ["d0", "d1", "d2"]
    assert done["report"]["samples"] == 6
    assert one.version == 1
    with pytest.raises(UpdateRefusedError, match="the round is done"):
        one.deliver("d3", body("d3", 1), 2.0)


def test_a_body_that_is_wrong_changes_nothing() -> None:
    store = MemoryStore()
    one = coordinator(store)
    with pytest.raises(RoundError, match="no round has begun"):
        one.deliver("d0", body("d0", 1), 0.0)
    one.begin(DEVICES, 0.0)
    records = list(store.records)
    with pytest.raises(UpdateError):
        one.deliver("d0", body("d0", 1)[:-1], 1.0)
    with pytest.raises(UpdateRefusedError, match="this is round 1"):
        one.deliver("d0", body("d0", 2), 1.0)
    assert store.records == records


def test_a_round_that_cannot_be_aggregated_fails_and_keeps_the_model() -> None:
    store = MemoryStore()
    one = coordinator(store, MultiKrum(1))
    for number, expected in ((1, "3 updates; multi-Krum needs 5"), (2, "3 updates; multi-Krum needs 5")):
        one.begin(DEVICES, 0.0)
        for device in DEVICES[:3]:
            one.deliver(device, body(device, number), 1.0)
        assert one.advance(1.0) is RoundState.FAILED
        assert one.round is not None
        assert expected in one.round.reason
        assert numbers(one.model) == [0.0] * 5
        assert one.version == 0


def test_a_failed_aggregation_leaves_the_state_of_the_aggregator() -> None:
    store, aggregator = MemoryStore(), FedAdam(server_lr=1e38)
    one = coordinator(store, aggregator)
    one.begin(DEVICES, 0.0)
    for device in DEVICES[:3]:
        one.deliver(device, body(device, 1), 1.0)
    one.model = weights(3e38)
    assert one.advance(1.0) is RoundState.FAILED
    assert aggregator.state() == {}


def test_an_aggregator_that_raises_fails_the_round_with_the_reason() -> None:
    class Broken(FedAvg):
        def combine(self) -> Any:
            raise KeyError("loss")

    one = coordinator(MemoryStore(), Broken())
    one.begin(DEVICES, 0.0)
    for device in DEVICES[:3]:
        one.deliver(device, body(device, 1), 1.0)
    assert one.advance(1.0) is RoundState.FAILED
    assert one.round is not None
    assert one.round.reason == "the aggregator raised KeyError: 'loss'"


class FullStore(MemoryStore):
    """A store whose disk is full when it writes a given record."""

    full_at = 0  # number of the record that fails, from 1; 0 for none

    def append(self, record: Mapping[str, Any]) -> None:
        self.full_at -= 1
        if self.full_at == 0:
            raise OSError("disk full")
        super().append(record)


def test_a_store_that_fails_changes_nothing_and_the_next_call_goes_through() -> None:
    models = []
    for fails in (False, True):
        store = FullStore()
        one = coordinator(store, FedAdam())
        for number in (1, 2):
            actions: list[Callable[[], Any]] = [
                partial(one.begin, DEVICES, 0.0),
                *(partial(one.deliver, device, body(device, number), 1.0) for device in DEVICES[:3]),
                partial(one.advance, 1.0),
            ]
            for action in actions:
                for records in (1, 2) if fails else ():  # the end of a round writes two
                    store.full_at = records
                    try:
                        action()
                        break
                    except OSError:
                        assert one.round == replay(store.records)
                else:
                    action()
                store.full_at = 0
        assert one.version == 2
        models.append(one.model.identity)
    assert models[0] == models[1]


def test_a_stopped_round_fails_with_the_reason() -> None:
    one = coordinator(MemoryStore())
    one.begin(DEVICES, 0.0)
    one.drop("d0", 1, "battery", 1.0)
    one.stop("a person stopped it", 2.0)
    assert one.round is not None
    assert one.round.reason == "a person stopped it"
    assert one.round.counts() == {"drawn": 4, "carried": 0, "accepted": 0, "dropped": 4, "gave_up": 1}
    assert one.begin(DEVICES, 3.0).number == 2


def test_excluded_updates_are_in_the_journal_by_name() -> None:
    store = MemoryStore()
    one = coordinator(store, NormBound(25.0))
    one.begin(DEVICES, 0.0)
    for device in ("d0", "d1", "d2"):
        one.deliver(device, body(device, 1), 1.0)
    one.advance(1.0)
    excluded = store.records[-1]["report"]["excluded"]
    assert set(excluded) == {"d2"}
    assert excluded["d2"].startswith("norm 26.83")


@settings(deadline=None)
@given(st.data())
def test_no_crash_loses_an_acknowledged_update_or_counts_one_twice(data: st.DataObject) -> None:
    """Devices deliver in any order, again and again; the process is killed before or after any write."""
    store = CrashingStore()
    acknowledged: dict[str, int] = {}  # by device the round
    expected = weights(0)
    running = coordinator(store)

    def attempt(action: Callable[..., Any], *arguments: Any) -> Any:
        """Run a method; where the process is killed, start another one, and return None."""
        nonlocal running
        store.writes_left = data.draw(st.sampled_from([-1, -1, 0, 1, 2]))
        store.loses_last = data.draw(st.booleans())
        try:
            return action(running, *arguments)
        except Crash:
            running = coordinator(store)
            assert running.round == replay(store.records)
            return None
        finally:
            store.writes_left = -1

    at_s = 0.0
    for _ in range(data.draw(st.integers(3, 30))):
        if running.round is None or running.round.state.terminal:
            attempt(Coordinator.begin, DEVICES, at_s)
            continue
        number = running.round.number
        if data.draw(st.integers(0, 3)):
            device = data.draw(st.sampled_from(DEVICES))
            try:
                answer = attempt(Coordinator.deliver, device, body(device, number), at_s)
            except UpdateRefusedError:
                assert acknowledged.get(device) != number
                continue
            if answer is not None:
                assert answer or acknowledged.get(device) == number or device in running.round.accepted
                acknowledged[device] = number
        else:
            at_s += data.draw(st.sampled_from([0.0, 6.0]))
            attempt(Coordinator.advance, at_s)
        last = store.records[-1]
        if last["event"] == "done" and last["round"] == number:
            counted = last["report"]["counted"]
            assert len(set(counted)) == len(counted)
            assert {device for device, base in acknowledged.items() if base == number} <= set(counted)
            weight = sum(int(device[1:]) + 1 for device in counted)
            mean = sum((10 * number + int(device[1:])) * (int(device[1:]) + 1) for device in counted) / weight
            expected = expected.apply(weights(mean))
        assert numbers(running.model) == pytest.approx(numbers(expected), rel=1e-5)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=6))
def test_a_stateful_aggregator_ends_with_the_same_model_after_any_crashes(crashes: list[tuple[int, bool]]) -> None:
    def model_after(crashes: list[tuple[int, bool]]) -> str:
        store = CrashingStore()
        running = coordinator(store, FedAdam())
        while running.version < 3:
            store.writes_left, store.loses_last = crashes.pop() if crashes else (-1, False)
            try:
                current = running.round
                if current is None or current.state.terminal:
                    current = running.begin(DEVICES, 0.0)
                for device in DEVICES[:3]:
                    if current.state is RoundState.WAITING:
                        running.deliver(device, body(device, current.number), 1.0)
                running.advance(1.0)
            except Crash:
                running = coordinator(store, FedAdam())
        return running.model.identity

    assert model_after(list(crashes)) == model_after([])

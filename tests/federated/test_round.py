"""A round as a state machine: draw, acceptance, end, replay."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.errors import ConfigError
from walle.federated import Round, RoundError, RoundSettings, RoundState, UpdateRefusedError, draw_round, replay
from walle.federated.cohort import draw_cohort
from walle.federated.round import REFUSALS, begin_round

DEVICES = [f"d{place}" for place in range(100)]


def settings(**changes: Any) -> RoundSettings:
    return RoundSettings(**{"target": 2, "minimum": 1, "timeout_s": 10.0, "over_selection": 2.0} | changes)


def drawn(number: int = 1, last: Round | None = None, **changes: Any) -> Round:
    record = draw_round(number, number - 1, "m", DEVICES, settings(**changes), "seed", 100.0, last)
    return begin_round(record)


def accept(one: Round, device: str, at_s: float = 101.0, digest: str = "") -> None:
    record = one.accept(device, one.cohort[device], digest or f"sha of {device}", at_s)
    assert record is not None
    one.apply(record)


def close(one: Round, at_s: float) -> RoundState:
    record = one.close(at_s)
    assert record is not None
    one.apply(record)
    return one.state


def refusal(one: Round, device: str, base: int, at_s: float = 101.0, digest: str = "x") -> str:
    before = copy.deepcopy(one)
    with pytest.raises(UpdateRefusedError) as error:
        one.accept(device, base, digest, at_s)
    assert one == before
    assert error.value.cause in REFUSALS
    assert f"update of device {device!r} for round {base} refused" in str(error.value)
    return error.value.cause


# --- draw -------------------------------------------------------------------------------------------------------------


def test_a_draw_depends_on_seed_and_round_and_not_on_the_order() -> None:
    first = draw_cohort(DEVICES, 10, "s", 1)
    assert first == draw_cohort(reversed(DEVICES), 10, "s", 1)
    assert len(set(first)) == 10
    assert first != draw_cohort(DEVICES, 10, "t", 1)
    assert first != draw_cohort(DEVICES, 10, "s", 2)
    assert sorted(draw_cohort(DEVICES[:3] * 2, 10, "s", 1)) == DEVICES[:3]


def test_draws_are_fair_over_rounds() -> None:
    times = Counter(device for number in range(500) for device in draw_cohort(DEVICES, 10, "s", number))
    assert set(times) == set(DEVICES)
    assert 20 < min(times.values()) < 50 < max(times.values()) < 85  # 50 on average, 6.7 the standard deviation


def test_more_devices_are_drawn_than_needed() -> None:
    assert len(drawn(over_selection=1.3, target=10).cohort) == 13
    assert RoundSettings(target=10, over_selection=1.1).drawn == 11  # 1.1 * 10 is above 11 in floats


def test_a_round_does_not_begin_before_the_last_is_over_or_with_too_few_devices() -> None:
    one = drawn()
    with pytest.raises(RoundError, match="round 2 cannot begin: round 1 is waiting"):
        drawn(2, one)
    one.apply(one.fail("stopped", 101.0))
    with pytest.raises(RoundError, match="round 1 cannot begin: round 1 is failed"):
        drawn(1, one)
    with pytest.raises(RoundError, match="1 devices are eligible, at least 2 are needed"):
        draw_round(2, 1, "m", ["d1"], settings(minimum=2), "seed", 0.0, one)


# --- acceptance -------------------------------------------------------------------------------------------------------


def test_an_update_counts_once_however_often_it_arrives() -> None:
    one = drawn()
    device, other, third, _ = one.cohort
    accept(one, device)
    assert one.accept(device, 1, f"sha of {device}", 102.0) is None
    assert refusal(one, device, 1) == "second update"
    accept(one, other)
    assert refusal(one, third, 1) == "enough"
    assert close(one, 103.0) is RoundState.AGGREGATING
    assert one.accept(device, 1, f"sha of {device}", 104.0) is None  # sent again: the answer was lost
    assert refusal(one, third, 1) == "late"
    one.apply(one.finish("next", 105.0, {}))
    assert one.accept(device, 1, f"sha of {device}", 999.0) is None
    assert list(one.accepted) == [device, other]


def test_updates_that_do_not_count_are_refused_by_cause() -> None:
    one = drawn(3)
    device = next(iter(one.cohort))
    stranger = next(one for one in DEVICES if one not in drawn(3).cohort)
    assert refusal(one, stranger, 3) == "not drawn"
    assert refusal(one, device, 2) == "other round"
    assert refusal(one, device, 4) == "other round"
    assert refusal(one, stranger, 2) == "other round"
    assert refusal(one, device, 3, at_s=110.0) == "late"
    accept(one, device, at_s=109.999)


def test_a_device_that_gives_up_may_still_answer() -> None:
    one = drawn()
    device = next(iter(one.cohort))
    record = one.drop(device, 1, "battery", 101.0)
    assert record is not None
    one.apply(record)
    assert one.dropped == {device: "battery"}
    assert one.drop(device, 1, "again", 102.0) is None
    assert one.drop("stranger", 1, "x", 102.0) is None
    accept(one, device)
    assert one.dropped == {}
    assert one.drop(device, 1, "too late", 102.0) is None


# --- end --------------------------------------------------------------------------------------------------------------


def test_a_round_ends_with_its_target_at_the_deadline_or_when_nobody_is_left() -> None:
    one = drawn(target=2)
    for device in list(one.cohort)[:2]:
        assert one.close(101.0) is None
        accept(one, device)
    assert close(one, 101.0) is RoundState.AGGREGATING
    assert one.reason == "target reached"
    assert one.counts() == {"drawn": 4, "carried": 0, "accepted": 2, "dropped": 2, "gave_up": 0}

    one = drawn(target=3)
    accept(one, next(iter(one.cohort)))
    assert one.close(109.9) is None
    assert close(one, 110.0) is RoundState.AGGREGATING
    assert one.reason == "deadline"

    one = drawn(target=3)
    first, *others = one.cohort
    accept(one, first)
    for device in others:
        record = one.drop(device, 1, "battery", 102.0)
        assert record is not None
        one.apply(record)
    assert close(one, 102.0) is RoundState.AGGREGATING
    assert one.reason == "all devices answered"
    assert one.counts()["gave_up"] == 5


def test_a_round_with_fewer_than_the_minimum_fails() -> None:
    one = drawn(target=3, minimum=2)
    accept(one, next(iter(one.cohort)))
    assert close(one, 110.0) is RoundState.FAILED
    assert one.reason == "1 updates at the deadline; the minimum is 2"
    assert one.ended_s == 110.0
    assert one.close(111.0) is None
    with pytest.raises(RoundError, match="cannot fail: it is failed"):
        one.fail("again", 111.0)
    with pytest.raises(RoundError, match="cannot finish: it is failed"):
        one.finish("next", 111.0, {})


def test_a_late_device_is_carried_into_rounds_that_allow_it() -> None:
    one = drawn(max_staleness=2)
    slow, fast, other, gone = one.cohort
    for device in (fast, other):
        accept(one, device)
    record = one.drop(gone, 1, "battery", 101.0)
    assert record is not None
    one.apply(record)
    close(one, 101.0)
    one.apply(one.finish("next", 102.0, {}))
    second = drawn(2, one, max_staleness=2)
    assert second.cohort[slow] == 1
    assert len(second.cohort) == 4  # three new ones
    assert second.counts()["carried"] == 1
    assert refusal(second, slow, 2) == "other round"
    second.apply(second.fail("stopped", 103.0))
    third = drawn(3, second, max_staleness=2)
    assert third.cohort[slow] == 1
    accept(third, slow)
    third.apply(third.fail("stopped", 104.0))
    assert 1 not in drawn(4, third, max_staleness=2).cohort.values()
    assert 1 not in drawn(3, second, max_staleness=1).cohort.values()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minimum": 0}, "minimum is 0"),
        ({"minimum": 3}, "from 1 to the target, 2"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"over_selection": 0.9}, "over_selection is 0.9"),
        ({"max_staleness": -1}, "max_staleness is -1"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**changes)


# --- replay -----------------------------------------------------------------------------------------------------------


@given(st.data())
def test_a_journal_gives_the_same_round_after_any_record(data: st.DataObject) -> None:
    """Any interleaving of deliveries, duplicates, drop-outs and clock ticks, over several rounds."""
    config = settings(
        target=data.draw(st.integers(1, 4)), over_selection=1.5, max_staleness=data.draw(st.integers(0, 2))
    )
    records: list[dict[str, Any]] = []
    acknowledged: set[tuple[str, int]] = set()
    accepted_records: Counter[tuple[str, int]] = Counter()
    live: Round | None = None
    at_s = 0.0

    def write(record: dict[str, Any] | None) -> None:
        nonlocal live
        if record is None:
            return
        records.append(msgpack.unpackb(msgpack.packb(record)))  # a journal stores plain values
        if live is None or record["event"] == "drawn":
            live = begin_round(record)
        else:
            live.apply(record)
        assert replay(records) == live
        if data.draw(st.booleans()):  # a crash after any record
            live = replay(records)

    for _ in range(data.draw(st.integers(1, 25))):
        if live is None or live.state.terminal:
            number = 1 if live is None else live.number + 1
            write(draw_round(number, number - 1, "m", DEVICES[:8], config, "s", at_s, live))
        assert live is not None
        action = data.draw(st.sampled_from(["deliver", "deliver", "deliver", "drop", "tick", "wait"]))
        device = data.draw(st.sampled_from([*live.cohort, "stranger"]))
        base = data.draw(st.sampled_from([live.cohort.get(device, live.number), live.number, live.number - 1]))
        if action == "deliver":
            try:
                record = live.accept(device, base, f"{device} of {base}", at_s)
            except UpdateRefusedError:
                assert (device, base) not in acknowledged or base != live.cohort.get(device)
                continue
            if record is None:
                assert (device, base) in acknowledged
            else:
                accepted_records[device, base] += 1
                write(record)
                acknowledged.add((device, base))
        elif action == "drop":
            write(live.drop(device, base, "battery", at_s))
        else:
            at_s += 6.0 if action == "wait" else 0.0
            write(live.close(at_s))
            if live.state is RoundState.AGGREGATING:
                counted = {(one, live.cohort[one]) for one in live.accepted}
                assert {one for one in acknowledged if live.cohort.get(one[0]) == one[1]} == counted
                write(live.finish("next", at_s, {}))
    assert set(accepted_records) == acknowledged
    assert set(accepted_records.values()) <= {1}


def test_a_journal_that_is_not_possible_is_refused() -> None:
    first = draw_round(1, 0, "m", DEVICES, settings(), "s", 0.0)
    one = begin_round(first)
    device = next(iter(one.cohort))
    record = one.accept(device, 1, "x", 1.0)
    assert record is not None
    assert replay([]) is None
    with pytest.raises(RoundError, match="the journal begins with"):
        replay([record])
    with pytest.raises(RoundError, match="round 1 is drawn while round 1 is waiting"):
        replay([first, first])
    with pytest.raises(RoundError, match="cannot accept an update of device"):
        replay([first, record, record])
    with pytest.raises(RoundError, match="round 1 is waiting; the record is"):
        replay([first, record | {"round": 2}])
    with pytest.raises(RoundError, match="round 1 is waiting; the record is"):
        replay([first, {"event": "done", "round": 1, "at_s": 1.0}])
    with pytest.raises(RoundError, match="round 1 is waiting; the record is"):
        replay([first, {"event": "exploded", "round": 1, "at_s": 1.0}])

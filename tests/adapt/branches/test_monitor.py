"""The choice of a branch by observed latency and memory."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.adapt.branches.monitor import Budget, Monitor, Need

MARGIN, RUNS, HOLD_S = 0.1, 8, 10.0
latencies = st.floats(0.001, 1.0)
needs_of = st.lists(latencies, min_size=1, max_size=6).map(sorted)


def monitor(needs: list[float], budget: float, memory: list[float] | None = None) -> Monitor:
    sizes = memory or [0.0] * len(needs)
    made = [Need(*one) for one in zip(needs, sizes, strict=True)]
    return Monitor(made, Budget(budget), runs=RUNS, margin=MARGIN, hold_s=HOLD_S)


def chosen(one: Monitor, latency_s: list[float], runs: int, first_s: float = 0.0) -> list[int]:
    """Return the branch of each run where each branch takes a constant time."""
    found = []
    now_s = first_s
    for _ in range(runs):
        found.append(one.branch)
        now_s += latency_s[one.branch]
        one.observe(latency_s[one.branch], now_s)
    return found


def changes(branches: list[int]) -> int:
    return sum(a != b for a, b in itertools.pairwise(branches))


@given(needs_of, st.floats(0.2, 20.0), st.floats(0.001, 2.0))
def test_a_constant_load_ends_at_the_best_branch_that_meets_the_budget(
    needs: list[float], slowdown: float, budget: float
) -> None:
    real = [slowdown * one for one in needs]
    one = monitor(needs, budget)
    found = chosen(one, real, 200)
    assert changes(found) <= 1
    last = found[-1]
    assert found[RUNS + 1 :] == [last] * (200 - RUNS - 1)
    assert last == 0 or real[last] <= budget * (1 + 1e-8)
    assert not any(latency <= budget * (1 - MARGIN) for latency in real[last + 1 :])


@given(needs_of, st.data(), st.floats(0.001, 2.0))
def test_wrong_needs_do_not_make_it_go_up_and_down(needs: list[float], data: st.DataObject, budget: float) -> None:
    real = data.draw(st.lists(latencies, min_size=len(needs), max_size=len(needs)).map(sorted))
    one = monitor(needs, budget)
    found = chosen(one, real, 3000)
    # Each way up that fails holds its branch for twice as long as the time before.
    waits = math.log2(sum(real[branch] for branch in found) / HOLD_S + 1) + 1
    assert changes(found) <= 3 * len(needs) * waits + 3
    late = [real[branch] > budget * (1 + 1e-8) for branch in found if branch > 0]
    assert sum(late) <= len(needs) * (waits + 1)


@given(needs_of, st.floats(0.001, 2.0), st.floats(2.0, 20.0))
def test_a_run_over_the_budget_goes_down_at_once(needs: list[float], budget: float, slowdown: float) -> None:
    one = monitor(needs, budget)
    before = one.branch
    after = one.observe(budget * slowdown, 0.0)
    assert after < before or before == 0


def test_it_goes_up_after_as_many_good_runs_as_it_is_told() -> None:
    one = monitor([0.1, 0.2, 0.4], 0.5)
    assert one.branch == 2
    assert one.observe(0.8, 0.0) == 1  # twice as slow: 0.4 is expected of branch 1
    branches = [one.observe(0.2, 1.0 + at) for at in range(RUNS)]
    assert branches == [1] * (RUNS - 1) + [2]


def test_a_run_without_room_begins_the_count_again() -> None:
    one = monitor([0.1, 0.2], 0.3)
    one.observe(0.5, 0.0)
    assert one.branch == 0
    for at in range(RUNS - 1):
        one.observe(0.1, float(at))
    one.observe(0.14, 10.0)  # 0.28 is expected of branch 1: within the budget, not with the margin
    assert [one.observe(0.1, 11.0 + at) for at in range(RUNS)] == [0] * (RUNS - 1) + [1]


def test_a_way_up_that_fails_is_held_for_longer_each_time() -> None:
    one = monitor([0.1, 0.2], 0.3)
    found = chosen(one, [0.1, 0.9], 2000)
    ups = [at for at in range(1, len(found)) if found[at] > found[at - 1]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(ups)]
    assert gaps[0] >= HOLD_S / 0.1
    assert all(later > 1.8 * earlier for earlier, later in itertools.pairwise(gaps))


def test_a_branch_that_has_worked_is_held_as_briefly_as_at_first() -> None:
    one = monitor([0.1, 0.2], 0.3)
    assert one.observe(0.9, 0.0) == 0
    now_s = 0.0
    held: list[float] = []
    for latency_s in (0.9, 0.2, 0.9, 0.2):  # latency of the first run after a way up
        begin_s = now_s
        while one.branch == 0:
            now_s += 0.1
            one.observe(0.1, now_s)
        held.append(now_s - begin_s)
        now_s += latency_s
        one.observe(latency_s, now_s)
        if one.branch == 1:
            one.observe(0.9, now_s)  # late, but not at its first run
    assert held == pytest.approx([0.8, HOLD_S + 0.7, 0.8, HOLD_S + 0.7], abs=0.2)


def test_memory_that_is_short_goes_down_and_comes_back() -> None:
    one = monitor([0.1, 0.2, 0.3], 1.0, [10.0, 20.0, 30.0])
    assert one.branch == 2
    assert one.observe(0.3, 0.0, memory_bytes=25.0) == 1
    assert [one.observe(0.2, float(at), memory_bytes=25.0) for at in range(20)] == [1] * 20
    assert [one.observe(0.2, float(at), memory_bytes=35.0) for at in range(RUNS)][-1] == 2


def test_a_smaller_budget_goes_down_before_the_next_run() -> None:
    one = monitor([0.1, 0.2, 0.3], 1.0, [10.0, 20.0, 30.0])
    assert one.change(Budget(0.25)) == 1
    assert one.change(Budget(1.0)) == 1
    assert one.change(Budget(1.0, 15.0)) == 0
    with pytest.raises(ValueError, match="at least one branch"):
        Monitor([], Budget())

"""The choice of frames by presentation time."""

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.livestream.media.sampling import SECOND, FrameSampler


def sample(times_ms: Sequence[int], rate: Fraction | None) -> tuple[list[int], int]:
    sampler = FrameSampler[int](rate)
    chosen: list[tuple[int, int]] = []
    for number, at_ms in enumerate(times_ms):
        chosen += sampler.add(at_ms * 1_000_000, number)
    chosen += sampler.flush()
    assert all(times_ms[number] * 1_000_000 == time_ns for time_ns, number in chosen)
    return [number for _, number in chosen], sampler.rejected


def nearest(times_ms: Sequence[int], rate: Fraction) -> list[int]:
    """The definition: for each multiple of 1/rate, the nearest of the frames whose nearest multiple it is."""
    groups: dict[int, list[int]] = {}
    for number, at_ms in enumerate(times_ms):
        groups.setdefault(int((Fraction(at_ms, 1000) * rate + Fraction(1, 2)) // 1), []).append(number)
    return [
        min(numbers, key=lambda number: (abs(Fraction(times_ms[number], 1000) * rate - tick), number))
        for tick, numbers in sorted(groups.items())
    ]


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=60),
    st.integers(-500, 500),
    st.fractions(Fraction(1, 3), 60, max_denominator=1001),
)
def test_the_frame_nearest_to_each_tick_is_chosen(steps_ms: list[int], start_ms: int, rate: Fraction) -> None:
    times_ms = [start_ms + sum(steps_ms[:count]) for count in range(len(steps_ms))]
    chosen, rejected = sample(times_ms, rate)
    assert chosen == nearest(times_ms, rate)
    assert len(chosen) + rejected == len(times_ms)


def test_all_frames_are_chosen_without_a_rate_or_of_a_slower_source() -> None:
    times_ms = list(range(0, 5000, 250))
    assert sample(times_ms, None) == (list(range(20)), 0)
    assert sample(times_ms, Fraction(30)) == (list(range(20)), 0)


def test_a_frame_is_chosen_as_soon_as_no_later_one_can_be_nearer() -> None:
    sampler = FrameSampler[str](Fraction(1))
    assert sampler.add(0, "at the tick") == [(0, "at the tick")]
    assert sampler.add(SECOND * 6 // 10, "before the tick") == []
    assert sampler.add(SECOND * 9 // 10, "nearer") == []
    assert sampler.pending == 1
    assert sampler.add(SECOND * 12 // 10, "farther, after it") == [(SECOND * 9 // 10, "nearer")]
    assert sampler.add(SECOND * 14 // 10, "too late") == []
    assert (sampler.pending, sampler.rejected) == (0, 3)


@pytest.mark.parametrize("rate", [Fraction(5), Fraction(30000, 1001)])
def test_hours_do_not_shift_the_choice(rate: Fraction) -> None:
    start_ms = 100 * 3600 * 1000
    times_ms = [start_ms + at_ms for at_ms in range(0, 2000, 17)]
    assert sample(times_ms, rate)[0] == nearest(times_ms, rate)

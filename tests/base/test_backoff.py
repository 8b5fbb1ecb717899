"""Pauses between attempts: their bounds, and a fleet that comes back after an outage."""

import heapq
import random
from collections import Counter

import pytest

from tests.night.cases import at_night
from walle.base.backoff import LONGEST_ASKED_S, Backoff, Pace, retry_after_s

DEVICES = 10_000
INTERVAL_S = 10.0


@pytest.mark.parametrize("seed", range(5))
def test_pauses_are_random_below_a_bound_that_doubles_up_to_a_limit(seed: int) -> None:
    rng = random.Random(seed)
    backoff = Backoff(rng, first_s=0.5, most_s=60.0)
    for number in range(1, 100):
        assert backoff.spread_s == min(60.0, 0.5 * 2.0 ** (number - 1))
        assert 0.0 <= backoff.failed() <= min(60.0, 0.5 * 2.0**number)
    pauses = sorted(backoff.failed() for _ in range(2_000))
    assert pauses[0] < 1.0
    assert 27.0 < pauses[1_000] < 33.0
    assert pauses[-1] > 59.0
    backoff.worked()
    assert backoff.failed() <= 1.0


def test_a_pause_begins_after_the_time_that_was_asked_for_and_is_bounded() -> None:
    backoff = Backoff(random.Random(1), first_s=5.0, most_s=60.0)
    pauses = [backoff.failed(100.0) for _ in range(200)]
    assert min(pauses) >= 100.0
    assert max(pauses) - min(pauses) > 50.0  # the pauses differ
    assert backoff.failed(1e9) <= LONGEST_ASKED_S + 60.0
    assert backoff.failed(-5.0) >= 0.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0.0),
        ("", 0.0),
        ("5", 5.0),
        (" 120 ", 120.0),
        ("99999999999999999999", LONGEST_ASKED_S),
        ("-5", 0.0),
        ("1.5", 0.0),
        ("²", 0.0),
        ("soon", 0.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:12:20 GMT", 0.0),
        ("Tue, 14 Nov 2093 22:12:20 GMT", LONGEST_ASKED_S),
        ("Tue, 99 Nov 2093 22:12:20 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float) -> None:
    assert retry_after_s(header, 1_700_000_000.0) == seconds


def attempts_of_a_fleet(outage_s: tuple[float, float], until_s: float, *, asked_s: float, seed: int) -> Counter[int]:
    """Return how many requests 10,000 devices make in each second, where all fail within the outage."""
    rng = random.Random(seed)
    begin_s, end_s = outage_s
    paces = [Pace(random.Random(rng.random()), INTERVAL_S) for _ in range(DEVICES)]
    due = [(rng.uniform(0.0, INTERVAL_S), number) for number in range(DEVICES)]
    heapq.heapify(due)
    requests: Counter[int] = Counter()
    while due[0][0] < until_s:
        now_s, number = due[0]
        requests[int(now_s)] += 1
        pause_s = paces[number].failed(asked_s) if begin_s <= now_s < end_s else paces[number].worked()
        heapq.heapreplace(due, (now_s + pause_s, number))
    return requests


@pytest.mark.parametrize("asked_s", [0.0, *at_night(30.0)])
def test_a_fleet_that_comes_back_after_an_outage_does_not_stampede(asked_s: float) -> None:
    usual = DEVICES / INTERVAL_S
    requests = attempts_of_a_fleet((20.0, 520.0), 900.0, asked_s=asked_s, seed=1)
    assert max(requests[second] for second in range(470, 520)) < 0.15 * usual  # a cloud that is down has few of them
    assert max(requests[second] for second in range(520, 900)) < 1.2 * usual
    assert max(requests.values()) < 1.6 * usual
    assert sum(requests[second] for second in range(860, 900)) > 0.95 * 40 * usual  # all are back


def test_a_fleet_that_was_refused_in_one_second_does_not_return_in_one() -> None:
    rng = random.Random(2)
    paces = [Pace(random.Random(rng.random()), INTERVAL_S) for _ in range(DEVICES)]
    back = Counter(int(pace.failed(30.0)) for pace in paces)
    assert min(back) >= 30
    assert max(back.values()) < 0.06 * DEVICES

"""Guards on simulated fleets: what trips them, what does not, and what a few hostile devices can do."""

import json
import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.deploy.gate.guard import Guard
from walle.deploy.gate.guard_test import MAX_RECENT, MAX_WAITING, MIN_CHOICE, PARTNERS, GuardTests

REJECT = math.log(2 * 58 / 0.01)
ACCEPT = math.log(100)


def _value(rng: random.Random, model: int, times: float) -> float:
    """Return the median latency of ten runs that have no variance, of a device of a model."""
    runs = [rng.paretovariate(1.5) for _ in range(10)]
    return times * math.exp(0.5 * model + rng.gauss(0, 0.25)) * statistics.median(runs)


def _run(
    tests: GuardTests,
    devices: int,
    *,
    times: float = 1.0,
    seed: int = 0,
    hostile: float = 0.0,
    lie: Callable[[random.Random, bool], float] = lambda rng, _: rng.choice((0.0, 1e100)),
) -> tuple[str, int]:
    """Return how the first guard ended, and after how many devices with the new version."""
    rng = random.Random(seed)
    found = ""
    for number in range(devices):
        for is_new in (True, False, False):
            model = rng.randrange(5)
            value = _value(rng, model, times if is_new else 1.0)
            if rng.random() < hostile:
                value = lie(rng, is_new)
            tests.take({"latency_ms": value}, {"model": f"m{model}"}, is_new=is_new)
        test = tests.tests[0]
        if test.is_bad(REJECT):
            return "bad", number
        if test.accept_log >= ACCEPT:
            found = found or f"good after {number}"
    return found.partition(" after ")[0] or "open", devices


@pytest.mark.parametrize("seed", range(10))
def test_an_equal_version_is_good_whatever_the_tail_of_its_values(seed: int) -> None:
    assert _run(GuardTests((Guard.parse("latency_ms < 1.2x"),)), 600, seed=seed)[0] == "good"


@pytest.mark.parametrize("seed", range(5))
def test_a_version_that_is_twice_as_slow_is_found_after_a_few_dozens_of_devices(seed: int) -> None:
    tests = GuardTests((Guard.parse("latency_ms < 1.2x"),))
    state, devices = _run(tests, 400, times=2.0, seed=seed)
    assert state == "bad"
    assert devices < 150
    new, old = tests.medians("latency_ms")
    assert new is not None
    assert old is not None
    assert new > 1.2 * old


def _to_the_bad(_rng: random.Random, is_new: bool) -> float:
    return 1e100 if is_new else 0.0


def _to_the_good(_rng: random.Random, is_new: bool) -> float:
    return 0.0 if is_new else 1e100


@pytest.mark.parametrize("seed", range(5))
def test_one_percent_hostile_devices_neither_pass_nor_fail_a_version(seed: int) -> None:
    equal = GuardTests((Guard.parse("latency_ms < 1.2x"),))
    assert _run(equal, 600, seed=seed, hostile=0.01, lie=_to_the_bad)[0] == "good"
    slow = GuardTests((Guard.parse("latency_ms < 1.2x"),))
    assert _run(slow, 600, times=2.0, seed=seed, hostile=0.01, lie=_to_the_good)[0] == "bad"


def test_groups_find_what_a_fleet_of_many_models_hides() -> None:
    """A model's devices are compared with each other, where the others differ by more than the version does."""
    rng = random.Random(1)
    ends = []
    for says_model in (True, False):
        tests = GuardTests((Guard.parse("latency_ms < 1.1x"),))
        for _ in range(300):
            for is_new in (True, False, False):
                model = rng.randrange(10)
                value = (1.3 if is_new else 1.0) * math.exp(model) * rng.uniform(0.9, 1.1)
                groups = {"model": f"m{model}"} if says_model else {}
                tests.take({"latency_ms": value}, groups, is_new=is_new)
        ends.append(tests.tests[0].is_bad(REJECT))
    assert ends == [True, False]


def test_an_absolute_guard_needs_no_version_before_and_a_relative_one_is_not_judged() -> None:
    tests = GuardTests((Guard.parse("latency_ms < 10"), Guard.parse("confidence > 0.9x")))
    for _ in range(60):
        tests.take({"latency_ms": 11.0, "confidence": 0.1, "other": 1.0}, {}, is_new=True, has_partners=False)
    absolute, relative = tests.tests
    assert absolute.is_bad(REJECT)
    assert (relative.compared, relative.reported) == (0, 60)
    assert tests.values() == [
        {"metric": "confidence", "new": 0.1, "control": None, "of_latest": [60, 0]},
        {"metric": "latency_ms", "new": 11.0, "control": None, "of_latest": [60, 0]},
    ]


def test_memory_is_bounded_and_each_device_is_compared_once() -> None:
    tests = GuardTests((Guard.parse("a < 2x"),))
    for number in range(3_000):
        tests.take({"a": float(number)}, {"model": str(number)}, is_new=False)
    plain = tests.to_plain()
    assert len(plain["waiting"][1]) == MAX_WAITING
    assert len(plain["recent"]["a"][1]) == MAX_RECENT
    for _ in range(200):
        tests.take({"a": 1.0}, {}, is_new=True)
    compared = tests.tests[0].compared  # the others wait for a partner
    assert (MAX_WAITING - MIN_CHOICE) / PARTNERS < compared < MAX_WAITING
    tests.forget_control()
    assert (tests.tests[0].compared, tests.tests[0].accept_log) == (0, 0.0)


reports = st.lists(
    st.tuples(
        st.booleans(),
        st.dictionaries(st.sampled_from(["a", "latency_ms", "b"]), st.floats(min_value=-1e100, max_value=1e100)),
        st.sampled_from(["x", "y"]),
    ),
    max_size=60,
)


@settings(max_examples=50)
@given(reports, reports)
def test_the_tests_continue_from_plain_values_at_any_time(
    first: list[tuple[bool, dict[str, float], str]], then: list[tuple[bool, dict[str, float], str]]
) -> None:
    guards = (Guard.parse("a < 1.5x"), Guard.parse("latency_ms < 10"))
    tests, again = GuardTests(guards), GuardTests(guards)
    for is_new, values, model in first:
        tests.take(values, {"model": model}, is_new=is_new)
    again.restore(json.loads(json.dumps(tests.to_plain())))
    for is_new, values, model in then:
        tests.take(values, {"model": model}, is_new=is_new)
        again.take(values, {"model": model}, is_new=is_new)
    assert again.to_plain() == tests.to_plain()


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 0.9))
def test_the_wealth_against_an_equal_version_grows_nothing_in_the_mean(seed: int, share: float) -> None:
    """By Markov's inequality, it is above 20 in one of 20 fleets at most; of 40, in a few at most."""
    rng = random.Random(seed)
    above = 0
    for _ in range(40):
        tests = GuardTests((Guard.parse("a < 1.001x"),))
        for _ in range(60):
            tests.take({"a": rng.paretovariate(0.5)}, {"model": rng.choice("xy")}, is_new=rng.random() < share)
        above += tests.tests[0].reject_log >= math.log(20)
    assert above <= 10  # probability of more: 10⁻⁵, for a binomial of 40 and 0.05

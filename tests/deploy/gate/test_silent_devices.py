"""Silence of single devices, on simulated fleets and by hand."""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.deploy.gate.silent_devices import MAX_WATCHED, SilentDevices

HOUR_S = 3600.0
WAIT_S = 24 * HOUR_S
BOUNDARY = math.log(2 * 58 / 0.01)


def _watch() -> SilentDevices:
    silent = SilentDevices()
    silent.wait_s = WAIT_S
    return silent


def _hear(silent: SilentDevices, device_id: str, now_s: float) -> bool:
    return silent.heard_of({device_id: None, "stranger": None}, now_s)


def test_a_device_is_silent_of_which_nothing_is_heard_after_its_first_quarter() -> None:
    silent = _watch()
    for name in ("early", "later"):
        silent.install(name, 0.0)
        silent.partner(f"{name}'s partner", 60.0)
    assert not _hear(silent, "early", 5 * HOUR_S)  # the first start
    assert _hear(silent, "later", 7 * HOUR_S)
    assert not _hear(silent, "later", 8 * HOUR_S)  # the device is known
    assert _hear(silent, "early's partner", 23 * HOUR_S)
    assert not silent.look(WAIT_S)  # the partners' time began later
    assert silent.look(WAIT_S + 60)
    assert silent.counts() == {
        "watched": 0,
        "pairs": 2,
        "silent": 1,
        "silent_before": 1,
        "alone": 0,
        "silent_alone": 0,
    }
    assert silent.words.startswith("no report came from 1 of 2 devices, and from 1 of as many with the version before")


def test_each_device_is_watched_once_and_a_partner_must_report_soon() -> None:
    silent = _watch()
    silent.partner("too early", 0.0)
    silent.install("a", 0.0)
    silent.install("a", 10.0)
    silent.partner("a", 20.0)
    silent.partner("too late", 4 * HOUR_S)
    assert silent.counts()["watched"] == 1
    silent.look(4 * HOUR_S)
    silent.look(WAIT_S)
    assert (silent.pairs, silent.alone, silent.silent_alone) == (0, 1, 1)
    silent.install("a", WAIT_S)
    assert silent.counts()["watched"] == 0


def test_a_partner_that_is_to_get_the_version_is_no_partner_any_more() -> None:
    silent = _watch()
    silent.install("a", 0.0)
    silent.partner("b", 0.0)
    silent.drop_partners(lambda device_id: device_id == "b")
    silent.install("b", 1.0)
    silent.partner("c", 2.0)
    silent.look(2 * WAIT_S)
    assert (silent.pairs, silent.silent, silent.silent_before) == (1, 1, 1)


def test_the_number_of_watched_devices_is_bounded() -> None:
    silent = _watch()
    for number in range(2 * MAX_WATCHED):
        silent.install(f"new {number}", 0.0)
        silent.partner(f"old {number}", 0.0)
    assert silent.counts()["watched"] == MAX_WATCHED
    assert len(json.dumps(silent.to_plain())) < 400_000


def _fleet(silent: SilentDevices, devices: int, *, new: float, old: float, seed: int, partners: bool = True) -> int:
    """Let devices be silent with these rates; return after how many the evidence was enough, -1 if it never was."""
    rng = random.Random(seed)
    for number in range(devices):
        now_s = number * 2 * WAIT_S
        silent.install(f"n{number}", now_s)
        if partners:
            silent.partner(f"o{number}", now_s)
        else:
            silent.look(now_s + WAIT_S / 4)
        heard_s = now_s + WAIT_S / 2
        if rng.random() >= new:
            _hear(silent, f"n{number}", heard_s)
        if rng.random() >= old:
            _hear(silent, f"o{number}", heard_s)
        silent.look(now_s + WAIT_S)
        if silent.log >= BOUNDARY:
            return number
    return -1


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5, 0.9])
def test_as_many_silent_devices_as_with_the_version_before_are_no_evidence(rate: float) -> None:
    """1 % of the devices may be hostile besides."""
    for seed in range(3):
        assert _fleet(_watch(), 1_000, new=min(1.0, rate + 0.01), old=rate, seed=seed) == -1


@pytest.mark.parametrize(("new", "old", "most"), [(0.2, 0.0, 200), (0.5, 0.05, 90), (1.0, 0.3, 40), (0.7, 0.4, 400)])
def test_more_silent_devices_are_found(new: float, old: float, most: int) -> None:
    for seed in range(3):
        assert 0 <= _fleet(_watch(), 600, new=new, old=old, seed=seed) < most


def test_without_a_partner_half_of_the_devices_may_be_silent() -> None:
    assert _fleet(_watch(), 500, new=0.5, old=0.0, seed=1, partners=False) == -1
    assert 0 <= _fleet(_watch(), 100, new=1.0, old=0.0, seed=1, partners=False) < 40


steps = st.lists(
    st.tuples(st.sampled_from(["install", "partner", "hear", "look"]), st.sampled_from("abcdef"), st.integers(0, 12)),
    max_size=50,
)


@settings(max_examples=60)
@given(steps, steps)
def test_the_evidence_continues_from_plain_values_at_any_time(
    first: list[tuple[str, str, int]], then: list[tuple[str, str, int]]
) -> None:
    one, again = _watch(), _watch()
    now_s = 0.0

    def play(silent: SilentDevices, moves: list[tuple[str, str, int]], start_s: float) -> float:
        for what, device_id, hours in moves:
            start_s += hours * HOUR_S
            match what:
                case "install":
                    silent.install(device_id, start_s)
                case "partner":
                    silent.partner(device_id, start_s)
                case "hear":
                    _hear(silent, device_id, start_s)
                case _:
                    silent.look(start_s)
        return start_s

    now_s = play(one, first, now_s)
    again.restore(json.loads(json.dumps(one.to_plain())))
    play(one, then, now_s)
    play(again, then, now_s)
    assert again.to_plain() == one.to_plain()
    assert again.log == one.log

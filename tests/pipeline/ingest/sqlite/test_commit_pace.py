"""The pace of commits: when the event loop may commit by itself."""

import pytest

from walle.base.clock import ManualClock
from walle.pipeline.ingest.sqlite.commit_pace import CommitPace


def _quick(clock: ManualClock) -> CommitPace:
    pace = CommitPace(clock)
    for _ in range(40):
        pace.add(0.0005)
    return pace


def test_a_new_pace_is_not_quick_until_a_number_of_commits_were() -> None:
    pace = CommitPace(ManualClock())
    counts = 0
    while not pace.is_quick:
        pace.add(0.0005)
        counts += 1
    assert 15 <= counts <= 40


def test_commits_that_take_more_than_2_ms_in_the_mean_end_it_and_quick_ones_begin_it_again() -> None:
    pace = _quick(ManualClock())
    # One slower commit of a disk that is mostly quick changes nothing.
    for commits, commit_s, is_quick in ((1, 0.015, True), (10, 0.008, False), (30, 0.0005, True)):
        for _ in range(commits):
            pace.add(commit_s)
        assert pace.is_quick is is_quick


@pytest.mark.asyncio
async def test_a_slow_commit_ends_it_for_a_minute_however_quick_the_next_ones_are() -> None:
    clock = ManualClock()
    pace = _quick(clock)
    pace.add(0.05)
    for _ in range(100):
        pace.add(0.0001)
    for seconds, is_quick in ((0.0, False), (59.0, False), (1.0, True)):
        await clock.advance(seconds)
        assert pace.is_quick is is_quick

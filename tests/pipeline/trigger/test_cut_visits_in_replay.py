"""Timers of pages whose visits were cut, after a crash: as without one (ADR 19)."""

import asyncio
import functools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.slow_time import Entry
from tests.pipeline.time_engine import play
from walle.pipeline.events.event import PAGE_ENTER, PAGE_EXIT, Event
from walle.pipeline.events.ticks import Tick
from walle.pipeline.trigger import stream_time
from walle.pipeline.trigger.trie import EventStream
from walle.protocol import TriggerCondition

START_MS = 1_700_000_000_000
CONDITIONS = {
    "page": TriggerCondition.of([PAGE_EXIT], idle_s=60),
    "page_without": TriggerCondition.of([], idle_s=45, without_visit=True),
    "absent": TriggerCondition.of(["a"], absent="b", absent_s=30),
    "absent_key": TriggerCondition.of(["a"], absent="b", absent_s=50, key="n"),
    "plain": TriggerCondition.of(["b"]),
}


@st.composite
def streams(draw: st.DrawFn, pages: int) -> list[Entry]:
    """Events of many pages of which few are left, so that visits are cut; and ticks."""
    kinds = st.sampled_from([PAGE_ENTER, PAGE_ENTER, PAGE_ENTER, "a", "b", "a", PAGE_EXIT, "tick"])
    steps = st.sampled_from([0, 100, 1_000, 5_000, 20_000])
    entries: list[Entry] = []
    ts_ms = START_MS
    for _ in range(draw(st.integers(3 * pages, 6 * pages))):
        ts_ms += draw(steps)
        kind = draw(kinds)
        if kind == "tick":
            entries.append(Tick(ts_ms))
        else:
            page = f"page{draw(st.integers(0, pages - 1))}"
            entries.append(Event(kind, page, ts_ms, {"n": draw(st.integers(0, 2))}))
    entries.append(Tick(ts_ms + 3_600_000))
    return entries


def replay_equals(folder: Path, entries: list[Entry], crashes: list[int], snapshot_every: int, max_open: int) -> None:
    sequences = functools.partial(EventStream, max_events=2, max_open=max_open)
    for name in ("whole", "crashed"):
        (folder / name).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_time, "_SNAPSHOT_EVERY", snapshot_every)
        whole = asyncio.run(play(folder / "whole", CONDITIONS, entries, sequences=sequences))
        crashed = asyncio.run(play(folder / "crashed", CONDITIONS, entries, crashes, sequences=sequences))
    assert crashed == whole


@pytest.mark.night
@settings(max_examples=40, deadline=None)
@given(entries=streams(8), data=st.data(), snapshot_every=st.sampled_from([0, 1, 5]))
def test_a_replay_equals_the_first_run_where_visits_are_cut(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], data: st.DataObject, snapshot_every: int
) -> None:
    crashes = sorted(data.draw(st.lists(st.integers(1, len(entries) - 1), min_size=1, max_size=3)))
    replay_equals(tmp_path_factory.mktemp("cut"), entries, crashes, snapshot_every, max_open=3)


@pytest.mark.parametrize("crash_at", [150, 300, 301, 340])
def test_a_replay_equals_the_first_run_with_more_than_64_open_pages(tmp_path: Path, crash_at: int) -> None:
    entries: list[Entry] = [Event(PAGE_ENTER, f"page{number}", START_MS + 10 * number, {}) for number in range(128)]
    for number in range(230):  # pages below 64 are cut
        entries.append(Event("a" if number % 3 else "other", f"page{number % 32}", START_MS + 2_000 + 900 * number, {}))
        if number % 5 == 4:
            entries.append(Event(PAGE_EXIT, f"page{number % 32}", START_MS + 2_000 + 900 * number, {}))
    entries.append(Tick(START_MS + 3_600_000))
    replay_equals(tmp_path, entries, [crash_at], 64, max_open=64)

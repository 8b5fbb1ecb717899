"""The figure of a phone's day: every feature arrives, sessions are those of the events, and costs are counted."""

from pathlib import Path

import pytest

from apps.ipv.generator import ShoppingEvents
from benchmarks.phone.day import SESSION_PAUSE_MS, run_day, sessions_of
from benchmarks.phone_day import generated_day, rows
from walle.pipeline.events.event import PAGE_EXIT, Event


def test_a_session_ends_with_a_pause() -> None:
    times = [0, 1, SESSION_PAUSE_MS, SESSION_PAUSE_MS + 1, 2 * SESSION_PAUSE_MS + 1]
    events = [Event("e", "p", ts_ms, {}) for ts_ms in times]
    assert [[event.ts_ms for event in session] for session in sessions_of(events)] == [times[:4], times[4:]]


def test_the_generated_day_is_one_shoppers_and_ends_in_time() -> None:
    events = generated_day(7, 1.0)
    assert 0 < events[-1].ts_ms - ShoppingEvents(7, "device-0").start_ms < 3_600_000
    assert sorted(event.ts_ms for event in events) == [event.ts_ms for event in events]


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_a_short_day_is_played_and_counted(tmp_path: Path) -> None:
    events: list[Event] = []
    for _, event in ShoppingEvents(7, "device-0"):
        events.append(event)
        if sum(one.event_id == PAGE_EXIT for one in events) == 3:
            break
    day = await run_day(events, tmp_path)
    assert (day.events, day.visits, day.uploads, day.failed) == (len(events), 3, 3, 0)
    assert day.sessions == day.connections == len(sessions_of(events))
    assert day.total.up_bytes > 3 * 128  # the encodings
    assert day.total.down_bytes > 500  # a TLS handshake
    assert day.flash_bytes > day.event_bytes
    assert 0 < day.clock_cpu_s < day.total.cpu_s
    assert all(len(values) == 1 for name, values in rows({"short": day}))

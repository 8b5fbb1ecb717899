import asyncio

import pytest

from walle.base.clock import ManualClock, SystemClock


@pytest.mark.asyncio
async def test_sleepers_wake_in_due_order_at_their_own_time() -> None:
    clock = ManualClock(0.0)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("late", 5))
        group.create_task(sleeper("early", 1))
        await clock.advance(3)
        assert woken == [("early", 1)]
        await clock.advance(3)
    assert woken == [("early", 1), ("late", 5)]
    assert clock.time() == 6


@pytest.mark.asyncio
async def test_the_system_clock_moves_forward() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > before
    assert clock.time() > 1e9

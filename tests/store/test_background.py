"""Background work of a node."""

import asyncio

import pytest

from tests.pipeline.ingest.upload_samples import until
from walle.base.clock import ManualClock
from walle.store.background import in_background


@pytest.mark.asyncio
async def test_work_that_fails_is_started_again_and_ends_with_its_block(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    starts, ends = 0, 0

    async def work() -> None:
        nonlocal starts, ends
        starts += 1
        if starts < 3:
            raise ZeroDivisionError
        try:
            await asyncio.Event().wait()
        finally:
            ends += 1

    async with in_background("the work", work, clock), asyncio.timeout(10):
        await until(lambda: starts == 1)
        while starts < 3:
            await clock.advance(1.0)
        assert clock.time() - 1_700_000_000 >= 10
    assert ends == 1
    assert caplog.text.count("the work failed, and is started again") == 2

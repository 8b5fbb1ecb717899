"""Background work of a device: its end."""

import asyncio

import pytest

from walle.device.background import BackgroundWork


@pytest.mark.asyncio
async def test_work_that_comes_after_the_end_is_not_begun() -> None:
    begun = []

    async def work(name: str) -> None:
        begun.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            background.spawn(work("of its end"), "of its end")

    background = BackgroundWork("d0")
    background.spawn(work("first"), "first")
    await asyncio.sleep(0)
    await background.aclose()
    background.spawn(work("late"), "late")
    await asyncio.sleep(0)
    assert begun == ["first"]

"""The benchmark's server keeps serving between two questions of its parent, on asyncio's event loop too."""

import asyncio
import multiprocessing

import pytest

from benchmarks.gateway_push import _answer_parent


@pytest.mark.asyncio
async def test_the_server_is_not_blocked_after_it_has_answered_its_parent() -> None:
    parent, child = multiprocessing.Pipe()
    loop = asyncio.get_running_loop()
    has_message = asyncio.Event()
    loop.add_reader(child.fileno(), has_message.set)
    answering = asyncio.create_task(_answer_parent(child, has_message, "http://x", ""))
    passes = 0

    def ask() -> list[int]:
        """Return the passes of the event loop at the second question and after it."""
        assert parent.recv() == ("http://x", "")
        seen = []
        for _ in range(2):
            parent.send("time")
            parent.recv()
            seen.append(passes)
            assert not parent.poll(0.2)
        parent.send("end")
        return seen

    async def count() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0.001)

    counting = asyncio.create_task(count())
    first, second = await asyncio.to_thread(ask)
    await answering
    counting.cancel()
    loop.remove_reader(child.fileno())
    assert second > first + 2

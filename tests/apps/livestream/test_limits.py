"""The tasks within their own limits, in a VM host as on a device: large frames and long sounds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.apps.livestream.conftest import running
from walle.vm import LimitExceeded, VmHost

type Folders = Callable[..., Path]


@pytest.fixture(scope="module")
def host() -> Iterator[VmHost]:
    host = VmHost()
    yield host
    host.close()


def contents(name: str, number: int) -> dict[str, Any]:
    """Return a minute of noise, or a frame of noise of 3840 x 2160."""
    rng = np.random.default_rng(number)
    if name == "voice":
        return {"samples": (0.1 * rng.standard_normal(60 * 16_000)).astype(np.float32), "pts_ms": 60_000 * number}
    return {"image": rng.integers(0, 256, (2160, 3840, 3), dtype=np.uint8), "second": number}


@pytest.mark.vm_host
@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["item", "face", "voice"])
async def test_large_input_fits_into_the_tasks_memory(task_folder: Folders, host: VmHost, name: str) -> None:
    async with running(task_folder(name), name, host) as task:
        for number in range(4):
            assert await task.run(**contents(name, number))


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_frame_beyond_the_limit_fails_its_run_only(task_folder: Folders, host: VmHost) -> None:
    async with running(task_folder("face"), "face", host, memory_mb=16) as task:
        with pytest.raises(LimitExceeded, match="memory"):
            await task.run(**contents("face", 0))
        small = await task.run(image=np.zeros((180, 320, 3), np.uint8), second=3)
    assert small == {"second": 3, "faces": []}

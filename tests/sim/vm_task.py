"""Task folders and interpreters for VM tests."""

import contextlib
import textwrap
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from walle.engine_ext import _core
from walle.engine_ext.vm.vm import VM

# A sleep that no deadline ends, which a task has no ordinary way to.
DEEP_SLEEP = """
import json

def sleep(seconds):
    json.dumps.__globals__["__builtins__"]["__import__"]("time").sleep(seconds)
"""


def write_task(folder: Path, main: str, **modules: str) -> Path:
    """Write `main.py` and further modules (`a__b` is a/b.py), and return the folder."""
    for name, source in {"main": main, **modules}.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    return folder


def wait_for_abandoned(timeout_s: float = 10.0) -> None:
    """Return once no VM of an earlier test is abandoned: their interpreters count as discarded when they end."""
    until = time.monotonic() + timeout_s
    while _core.vm_abandoned_threads() > 0 and time.monotonic() < until:
        time.sleep(0.02)


@contextlib.asynccontextmanager
async def in_interpreter(
    folder: Path, grace_s: float = 5.0, limits: Mapping[str, int] | None = None
) -> AsyncIterator[VM]:
    vm = VM(folder, grace_s=grace_s, limits=limits)
    try:
        yield vm
    finally:
        vm.close()
        assert await vm.wait_closed(60)


@contextlib.asynccontextmanager
async def in_fresh_interpreter(
    folder: Path, grace_s: float = 5.0, limits: Mapping[str, int] | None = None
) -> AsyncIterator[VM]:
    """Yield a VM in a new interpreter; VMs occupy all idle interpreters meanwhile."""
    async with contextlib.AsyncExitStack() as held:
        created = _core.vm_counts()["created"]
        while _core.vm_counts()["created"] == created:
            vm = await held.enter_async_context(in_interpreter(folder, grace_s, limits))
            await vm.call("walle.engine_ext.vm.dispatch:ready")
        yield vm

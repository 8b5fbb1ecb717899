"""Table of what contains each hostile task on a device whose VMs are in a host: each runs once beside an honest one.

The layers, from the inside: names that a VM lacks, errors and limits of a call, the reset of the VM's interpreter, the
VM host (its end, and its restart for a thread that does not stop), and the kernel's layers around the host.
"""

import asyncio
import dataclasses
import errno
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.sim.hostile_tasks import ACCESS, ATTACKS, ESCAPES, HONEST, LIMITS, UNSTOPPABLE
from tests.sim.vm_task import write_task
from walle.errors import VMError
from walle.pipeline.events.event import Event
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import Manifest, TriggerCondition
from walle.task.run.runner import TaskRunner
from walle.vm import DeadlineExceeded, HostCrashed, LimitExceeded, TaskError, VmHost

DEADLINE_MS = 250
HONEST_DEADLINE_MS = 2_000  # a busy machine does not reach it
GROUPS = {"in Python": ATTACKS, "loop in C": UNSTOPPABLE, "escape": ESCAPES}
_EXECUTE = "\ndef execute(ctx, trigger): return run()\n"
_HONEST = "\ndef execute(ctx, trigger): return run(trigger['position'])\n"
_PAUSE_S = 0.005  # pause between honest runs
_NAMES = {"ImportError", "ForbiddenImport", "AttributeError", "TypeError", "NameError", "ModuleNotFoundError"}
_KERNEL = {errno.EACCES: "kernel: Landlock", errno.EPERM: "kernel: seccomp"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A hostile task's run: how it ended, the outermost layer that was needed, and what it cost the device."""

    task: str
    group: str
    end: str
    layer: str
    restarts: int  # restarts of the host
    honest_runs: int  # beside it, all right
    honest_failures: int
    honest_max_ms: float  # slowest honest run


def manifest_of(name: str, limits: Mapping[str, int]) -> Manifest:
    """Return the manifest of a task that is in a folder as sources."""
    trigger = TriggerCondition.of(["page_exit"])
    others: dict[str, Any] = {"version": "v1", "commit": "", "bytecode": (), "phases": {}, "files": ()}
    return Manifest(scenario="hostile", task=name, trigger=trigger, limits=limits, **others)


def trigger_at(position: int) -> Trigger:
    event = Event("page_exit", "page", position, {})
    return Trigger(event, position, (event,), (event,))


def end_of(error: Exception | None) -> str:
    """Return how a run ended, in a few words."""
    match error:
        case None:
            return "returned"
        case TaskError():
            return error.type_name
        case DeadlineExceeded():
            return "deadline"
        case LimitExceeded():
            return error.limit
        case _:
            return type(error).__name__


def layer_of(error: Exception | None, reset_failure: str, *, was_stuck: bool, restarts: int) -> str:
    """Return the outermost layer that a run needed."""
    if isinstance(error, HostCrashed):
        return "VM host: crash"
    if restarts:
        return "VM host: restart"
    if was_stuck:
        return "VM: thread parked"
    if isinstance(error, TaskError) and error.type_name == "PermissionError":
        number = next((number for number in _KERNEL if f"[Errno {number}]" in error.message), None)
        return "kernel" if number is None else _KERNEL[number]
    if reset_failure:
        return "VM: interpreter discarded"
    match error:
        case None:
            return "VM: reset"
        case LimitExceeded():
            return "VM: limit"
        case TaskError() if error.type_name in _NAMES:
            return "VM: names"
        case _:
            return "VM: error of the call"


class Device:
    """The task runner of a device, with an honest task that runs all the time."""

    def __init__(self, folder: Path) -> None:
        self.host = VmHost()
        self._folder = folder
        self._runner = TaskRunner(3, host=self.host)
        self._honest = write_task(folder / "honest", HONEST + _HONEST)
        self._latencies_ms: list[float] = []
        self._failures = 0

    async def run_honest(self) -> None:
        """Run the honest task until cancelled; raises AssertionError for a wrong result."""
        position = 0
        manifest = manifest_of("honest", {"deadline_ms": HONEST_DEADLINE_MS})
        while True:
            position += 1
            began_s = time.perf_counter()
            try:
                output = await self._runner.run(self._honest, manifest, trigger_at(position), {}, {})
            except VMError:
                self._failures += 1
                continue
            self._latencies_ms.append((time.perf_counter() - began_s) * 1000)
            assert output.output == f'{{"sum": {3.0 * position + 3}, "len": 2, "is": true}}', output.output
            await asyncio.sleep(_PAUSE_S)

    async def run(self, number: int, name: str, group: str) -> Row:
        """Run a hostile task once; return what contained it, after its thread has stopped or its host was replaced."""
        files = write_task(self._folder / f"bad{number}", ACCESS + GROUPS[group][name] + _EXECUTE)
        manifest = manifest_of(f"bad{number}", {**LIMITS, "deadline_ms": DEADLINE_MS})
        restarts = self.host.report().restarts
        self._latencies_ms.clear()
        self._failures = 0
        error: Exception | None = None
        try:
            await self._runner.run(files, manifest, trigger_at(1), {}, {})
        except VMError as caught:
            error = caught
        was_stuck = False
        reset_failure = ""
        if replacing := self._runner._replacing.get(manifest.name):
            was_stuck = True
            await asyncio.wait([replacing])
        for vm in [vm for vm, version in self._runner._loaded.items() if version.owner == manifest.name]:
            vm.close()
            await vm.wait_closed()
            reset_failure = reset_failure or vm.reset_failure
            was_stuck = was_stuck or vm.abandoned
        runs = len(self._latencies_ms)
        async with asyncio.timeout(30):
            while len(self._latencies_ms) < runs + 2:  # noqa: ASYNC110 -- honest runs go on
                await asyncio.sleep(_PAUSE_S)
        restarted = self.host.report().restarts - restarts
        return Row(
            task=name,
            group=group,
            end=end_of(error),
            layer=layer_of(error, reset_failure, was_stuck=was_stuck, restarts=restarted),
            restarts=restarted,
            honest_runs=len(self._latencies_ms),
            honest_failures=self._failures,
            honest_max_ms=max(self._latencies_ms),
        )

    async def close(self) -> None:
        await self._runner.close()
        await asyncio.to_thread(self.host.close)


async def table(folder: Path, only: str = "") -> list[Row]:
    """Return a row for each hostile task whose name has the text `only`.

    Raises:
        AssertionError: an honest run gave something else.
    """
    device = Device(folder)
    rows: list[Row] = []
    honest = asyncio.create_task(device.run_honest())
    try:
        names = [(name, group) for group, tasks in GROUPS.items() for name in tasks if only in name]
        for number, (name, group) in enumerate(names):
            row = asyncio.create_task(device.run(number, name, group))
            await asyncio.wait([row, honest], return_when=asyncio.FIRST_COMPLETED)
            if honest.done():
                row.cancel()
                honest.result()
            rows.append(await row)
    finally:
        honest.cancel()
        await asyncio.gather(honest, return_exceptions=True)
        await device.close()
    return rows


def lines_of(rows: list[Row]) -> Iterator[str]:
    """Yield the table as Markdown, and a summary."""
    yield "| task | kind | end of its run | contained by | host restarts | honest runs | failed | longest, ms |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |"
    for row in rows:
        task = row.task if row.group != "loop in C" else f"`{row.task}`"
        yield (
            f"| {task} | {row.group} | {row.end} | {row.layer} | {row.restarts} | {row.honest_runs}"
            f" | {row.honest_failures} | {row.honest_max_ms:.0f} |"
        )
    layers = sorted({row.layer for row in rows})
    yield ""
    yield f"{len(rows)} tasks: " + ", ".join(f"{sum(row.layer == one for row in rows)} {one}" for one in layers)
    restarts, most = sum(row.restarts for row in rows), max(row.restarts for row in rows)
    runs, longest_ms = sum(row.honest_runs for row in rows), max(row.honest_max_ms for row in rows)
    yield f"{restarts} restarts of the host, at most {most} by a task"
    failures = sum(row.honest_failures for row in rows)
    yield f"{runs} honest runs beside them, all right, the longest {longest_ms:.0f} ms; {failures} failed"


def show(only: str = "") -> int:
    """Print the table; return the exit status: 1 if a loop in C cost more than a restart of the host."""
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(table(Path(folder), only))
    sys.stdout.write("\n".join(lines_of(rows)) + "\n")
    return int(any(row.restarts > 1 and row.group == "loop in C" for row in rows))

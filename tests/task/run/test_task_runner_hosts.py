"""Runs of tasks in a VM host that is killed or crashes, or whose task cannot be stopped: none is lost or done twice."""

import asyncio
import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.sim.task_folder import CONFIG, EVENT, TRIGGER, laid_out
from tests.sim.vm_hosts import CRASHES
from walle.base.plain import decode
from walle.engine_ext.vm.host import NextHost, VmHost, VmSettings
from walle.engine_ext.vm.loop_calls import DeadlineExceeded
from walle.engine_ext.vm.pool import MAX_STRIKES, TaskQuarantined, VMPool, _Record
from walle.engine_ext.vm.sources import TaskLike
from walle.engine_ext.vm.vm import VM
from walle.errors import VMError
from walle.pipeline.events.event import Event
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import Manifest, TriggerCondition
from walle.task.run.runner import TaskRunner


@pytest.mark.night
@pytest.mark.asyncio
async def test_no_run_is_lost_or_counted_twice_when_the_vm_host_is_killed(tmp_path: Path) -> None:
    task = laid_out(tmp_path / "task", "def execute(ctx, trigger):\n    return trigger['event']['ts_ms']\n")
    host = VmHost()
    runner = TaskRunner(1, host=host)
    await runner.load(*task)

    async def run(_: str, trigger: Trigger) -> TaskOutput:
        return await runner.run(*task, trigger, {}, {})

    events, kills = 400, 6
    async with FeatureStore(tmp_path / "features.db") as store:
        engine = StreamEngine(store, run)
        engine.add_task("ipv", TriggerCondition.of(["page_exit"]))
        for number in range(events):
            await engine.on_event(Event("page_enter", "item/1", number, {}), can_wait=True)
            await engine.on_event(Event("page_exit", "item/1", number, {}), can_wait=True)
            if number % (events // kills) == events // kills // 2 and host.report().pid:
                os.kill(host.report().pid, signal.SIGKILL)
        await engine.settle()
        stored = [decode(feature.payload) for feature in await store.query("ipv", 0, 10_000)]
        await engine.close()
    await runner.close()
    assert host.report().restarts >= kills - 1
    host.close()
    assert stored == list(range(events))


STUCK = """\
import itertools
def execute(ctx, trigger):
    return any(itertools.repeat(0)) if trigger["position"] == 7 else trigger["position"]
"""
LATER = Trigger(EVENT, 8, (), ())


def tasks_beside(folder: Path, *honest: str) -> dict[str, tuple[Path, Manifest]]:
    """Lay out the task stuck, whose run at position 7 cannot be stopped, and honest tasks, which return `TRIGGER`'s."""
    folder.mkdir(exist_ok=True)
    config = CONFIG + b"[limits]\ndeadline_ms = 60\n"
    mains = {"stuck": STUCK, **dict.fromkeys(honest, "def execute(ctx, trigger):\n    return trigger['position']\n")}
    tasks = {}
    for name, main in mains.items():
        files, manifest = laid_out(folder / name, main, config if name == "stuck" else CONFIG)
        tasks[name] = files, dataclasses.replace(manifest, task=name)
    return tasks


def created_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the tasks for which pools create VMs, in their order."""
    created: list[str] = []
    create = VMPool._create_vm

    def record(pool: VMPool, entry: Any, task: TaskLike) -> VM:
        vm = create(pool, entry, task)
        created.append(entry.files.name.removeprefix("shop/").removesuffix(" v1"))
        return vm

    monkeypatch.setattr(VMPool, "_create_vm", record)
    return created


@pytest.mark.night
@pytest.mark.asyncio
async def test_idle_tasks_get_vms_in_a_new_host_before_the_task_that_was_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = created_in(monkeypatch)
    tasks = tasks_beside(tmp_path, "a", "b", "c")
    host = VmHost()
    runner = TaskRunner(4, host=host)
    for name in ("a", "b", "c"):
        await runner.run(*tasks[name], TRIGGER, {}, {})
    await runner.load(*tasks["stuck"])
    assert created == ["a", "b", "c", "stuck"]
    created.clear()
    await runner.run(*tasks["b"], TRIGGER, {}, {})
    with pytest.raises(DeadlineExceeded):
        await runner.run(*tasks["stuck"], TRIGGER, {}, {})
    assert (await runner.run(*tasks["stuck"], LATER, {}, {})).output == 8
    assert created == ["b", "c", "a", "stuck"]
    assert host.report().restarts == 1
    assert host._next is None
    await runner.close()
    host.close()


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_thread_that_stops_soon_starts_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    host = VmHost()
    runner = TaskRunner(1, host=host)
    prepared: list[str] = []
    monkeypatch.setattr(host, "prepare_next", lambda: prepared.append("now"))

    class Stuck:
        looks = 0

        @property
        def ended(self) -> bool:
            self.looks += 1
            return self.looks > 1

    stuck: Any = Stuck()
    await runner._move_others(host, "shop/stuck", stuck)
    assert (stuck.looks, prepared) == (2, [])
    await runner.close()
    host.close()


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_the_libraries_of_other_tasks_are_loaded_before_their_host_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_beside(tmp_path, "a", "b", "c")
    host = VmHost()
    runner = TaskRunner(4, host=host)
    for name in ("a", "b", "c"):
        await runner.run(*tasks[name], TRIGGER, {}, {})
    record = _Record()
    record.suspect()
    runner._pool._keep("shop/c", record)  # a suspect is not let into the next host
    warmed: list[tuple[str, int]] = []
    start = NextHost.start_vm

    def start_vm(self: NextHost, settings: VmSettings, **options: Any) -> Any:
        warmed.append((settings.name, host.report().restarts))
        return start(self, settings, **options)

    monkeypatch.setattr(NextHost, "start_vm", start_vm)
    last_used_first = [("shop/b v1", 0), ("shop/a v1", 0)]
    host.prepare_next()
    await runner._warm(host, "shop/stuck")
    assert warmed == last_used_first
    host.drop_next()
    warmed.clear()
    with pytest.raises(DeadlineExceeded):
        await runner.run(*tasks["stuck"], TRIGGER, {}, {})
    assert (await runner.run(*tasks["stuck"], LATER, {}, {})).output == 8
    assert warmed
    assert warmed == last_used_first[: len(warmed)]  # the second before the host ends may be too short for both
    assert host.report().restarts == 1
    await runner.close()
    host.close()


# Else a load, which runs none of its phases, would count as a use without harm, in a process that ends at once.
@pytest.mark.night
@pytest.mark.asyncio
async def test_a_task_that_is_to_run_alone_is_not_loaded_for_a_new_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = created_in(monkeypatch)
    tasks = tasks_beside(tmp_path, "a", "b")
    host = VmHost()
    runner = TaskRunner(3, host=host)
    for name in ("a", "b"):
        await runner.run(*tasks[name], TRIGGER, {}, {})
    await runner.load(*tasks["stuck"])
    record = _Record()
    record.suspect()
    runner._pool._keep("shop/a", record)  # the host seems to have ended while the task ran
    created.clear()
    with pytest.raises(DeadlineExceeded):
        await runner.run(*tasks["stuck"], TRIGGER, {}, {})
    assert (await runner.run(*tasks["stuck"], LATER, {}, {})).output == 8
    assert created == ["b", "stuck"]
    assert record.alone_runs == 2
    await runner.close()
    host.close()


@pytest.mark.night
@pytest.mark.asyncio
async def test_other_tasks_run_while_a_task_is_stuck_until_it_is_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = created_in(monkeypatch)
    tasks = tasks_beside(tmp_path, "a", "b")
    host = VmHost()
    runner = TaskRunner(3, host=host)
    done = 0

    async def honest(name: str) -> None:
        nonlocal done
        while not stuck.done():
            assert (await runner.run(*tasks[name], TRIGGER, {}, {})).output == 7
            done += 1
            await asyncio.sleep(0.005)

    async def hostile() -> list[str]:
        ends = []
        for _ in range(MAX_STRIKES + 2):
            try:
                await runner.run(*tasks["stuck"], TRIGGER, {}, {})
            except VMError as error:
                ends.append(type(error).__name__)
        return ends

    stuck = asyncio.create_task(hostile())
    await asyncio.gather(honest("a"), honest("b"), stuck)
    # The first time, beside others, is a suspicion; then it runs alone, where each time is a strike.
    assert stuck.result() == ["DeadlineExceeded"] * (1 + MAX_STRIKES) + ["TaskQuarantined"]
    assert created.count("stuck") == 1 + MAX_STRIKES
    assert done > 100
    async with asyncio.timeout(20):
        while host.report().restarts < 1:
            await runner.run(*tasks["a"], TRIGGER, {}, {})
            await asyncio.sleep(0.02)
    assert host.report().restarts == 1  # the others ended processes of their own
    await runner.close()
    host.close()


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_new_version_of_a_quarantined_task_has_one_strike_left(tmp_path: Path) -> None:
    versions = {}
    for number in (1, 2, 3):
        files, manifest = tasks_beside(tmp_path / str(number))["stuck"]
        versions[number] = files, dataclasses.replace(manifest, version=f"v{number}")
    host = VmHost()
    runner = TaskRunner(1, host=host)

    async def ends(number: int) -> list[str]:
        """Return the ends of runs that get stuck, until the version is quarantined."""
        found: list[str] = []
        while found[-1:] != ["TaskQuarantined"]:
            try:
                await runner.run(*versions[number], TRIGGER, {}, {})
            except VMError as error:
                found.append(type(error).__name__)
        return found

    assert await ends(1) == ["DeadlineExceeded"] * (1 + MAX_STRIKES) + ["TaskQuarantined"]  # the first is a suspicion
    assert await ends(2) == ["DeadlineExceeded", "TaskQuarantined"]
    assert (await runner.run(*versions[3], LATER, {}, {})).output == 8  # a version that is mended runs
    with pytest.raises(TaskQuarantined, match="shop/stuck v1 is quarantined: 3 of its calls"):
        await runner.run(*versions[1], LATER, {}, {})
    await runner.close()
    host.close()


@pytest.mark.night
@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_devices_that_share_a_host_lose_and_double_nothing_when_one_crashes_it(tmp_path: Path) -> None:
    """A simulated fleet: each device has tasks, queues and a store of its own, and all have one VM host."""
    honest = laid_out(tmp_path / "honest", "def execute(ctx, trigger):\n    return trigger['event']['ts_ms']\n")
    crash = """\
def execute(ctx, trigger):
    if trigger["event"]["ts_ms"] % 10 == 0:
        run()
    return trigger["event"]["ts_ms"]
"""
    hostile = laid_out(tmp_path / "hostile", CRASHES + crash)
    host = VmHost()
    devices, events = 5, 60
    runners = [TaskRunner(1, host=host) for _ in range(devices)]
    failures: list[set[str]] = [set() for _ in runners]

    async def use(number: int) -> list[int]:
        files, manifest = hostile if number == 0 else honest

        async def run(_: str, trigger: Trigger) -> TaskOutput:
            try:
                return await runners[number].run(files, manifest, trigger, {}, {})
            except VMError as error:
                failures[number].add(type(error).__name__)
                raise

        async with FeatureStore(tmp_path / f"{number}.db") as store:
            engine = StreamEngine(store, run)
            engine.add_task("ipv", TriggerCondition.of(["page_exit"]))
            for event in range(events):
                await engine.on_event(Event("page_enter", "item/1", event, {}), can_wait=True)
                await engine.on_event(Event("page_exit", "item/1", event, {}), can_wait=True)
                if number == 1 and event % 20 == 10 and host.report().pid:
                    os.kill(host.report().pid, signal.SIGKILL)
            await engine.settle()
            stored = [decode(feature.payload) for feature in await store.query("ipv", 0, 10_000)]
            await engine.close()
        return stored

    found = await asyncio.gather(*[use(number) for number in range(devices)])
    for runner in runners:
        await runner.close()
    assert host.report().restarts > 0
    host.close()
    assert found[1:] == [list(range(events))] * (devices - 1)
    assert failures[1:] == [set()] * (devices - 1)
    assert failures[0] == {"HostCrashed", "TaskQuarantined"}
    assert len(found[0]) == len(set(found[0]))

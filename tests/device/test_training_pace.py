"""When steps of training run: the share of a core, the attributes of the device, and versions that change."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from walle.base.clock import ManualClock
from walle.device.task_runs import TrainingPostponedError
from walle.device.task_versions import ActiveVersion
from walle.device.training import BackgroundTraining
from walle.errors import VMError
from walle.protocol import Attribute, Manifest, TrainingPolicy, TriggerCondition
from walle.task.run.run_result import TrainedStep


def version(task: str = "count", number: str = "v1", **training: Any) -> ActiveVersion:
    manifest = Manifest(
        scenario="shop",
        task=task,
        version=number,
        commit="c" * 40,
        bytecode=(),
        files=(),
        trigger=TriggerCondition.parse({"sequence": ["page_exit"]}),
        phases={},
        limits={},
        training=TrainingPolicy(**{"when": {"charging": True}, **training}),
    )
    return ActiveVersion(Path(), manifest)


class TrainingDevice:
    """A device whose steps take as much CPU and time as told, by task."""

    def __init__(self, *active: ActiveVersion) -> None:
        self.clock = ManualClock()
        self.active = {one.manifest.name: one for one in active}
        self.attributes: dict[str, Attribute] = {"charging": True}
        self.steps: list[str] = []
        self.released: list[str] = []
        self.cut = 0
        self.cpu_s = 0.1
        self.wants_more = True
        self.rests_since_s: float | None = None
        self.error: BaseException | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.training = BackgroundTraining(
            self.clock,
            lambda: self.attributes,
            self.active,
            self.step,
            lambda _: self.rests_since_s,
            self.release,
        )

    async def step(self, task: str, one: ActiveVersion) -> TrainedStep:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cut += 1
            raise
        self.steps.append(f"{task} {one.manifest.version}")
        if self.error is not None:
            raise self.error
        return TrainedStep(
            puts=(), checkpoint=(), wants_more=self.wants_more, cpu_s=self.cpu_s, run_ms=self.cpu_s * 1000, metrics={}
        )

    def release(self, one: ActiveVersion) -> None:
        self.released.append(f"{one.manifest.name} {one.manifest.version}")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.training.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def set(self, **attributes: Attribute) -> None:
        self.attributes |= attributes
        self.training.note_change()
        await self.clock.advance(0)


@pytest.mark.asyncio
async def test_steps_take_their_share_of_a_core() -> None:
    device = TrainingDevice(version(cpu_percent=25))
    async with device.running():
        await device.clock.advance(0)
        assert len(device.steps) == 1
        await device.clock.advance(0.39)
        assert len(device.steps) == 1
        await device.clock.advance(10.1 - 0.39)
        assert len(device.steps) == 26  # one in 0.4 s


@pytest.mark.asyncio
async def test_each_task_has_its_own_share() -> None:
    device = TrainingDevice(version("a", cpu_percent=10), version("b", cpu_percent=50))
    async with device.running():
        await device.clock.advance(9.99)
        assert (device.steps.count("shop/a v1"), device.steps.count("shop/b v1")) == (10, 50)


@pytest.mark.asyncio
async def test_time_that_a_step_took_counts_where_its_vm_tells_no_cpu_time() -> None:
    device = TrainingDevice(version(cpu_percent=10))
    device.cpu_s = 0.0
    device.gate.clear()
    async with device.running():
        await device.clock.advance(1)
        device.gate.set()
        await device.clock.advance(8.9)
        assert len(device.steps) == 1
        device.cpu_s = 0.1
        await device.clock.advance(0.2)
        assert len(device.steps) == 2


@pytest.mark.asyncio
async def test_a_step_is_cut_short_when_the_device_leaves_the_charger() -> None:
    device = TrainingDevice(version())
    device.gate.clear()
    async with device.running():
        await device.set(idle=True)  # another attribute changes nothing
        await device.clock.advance(10)
        assert (device.cut, device.released) == (0, [])
        await device.set(charging=False)
        await device.clock.advance(1.9)
        assert (device.cut, device.released) == (0, [])
        await device.clock.advance(0.2)
        assert (device.cut, device.steps, device.released) == (1, [], ["shop/count v1"])
        device.gate.set()
        await device.clock.advance(100)
        assert device.steps == []
        await device.set(charging=True)
        assert device.steps == ["shop/count v1"]


@pytest.mark.asyncio
async def test_a_step_that_ends_soon_is_not_cut() -> None:
    device = TrainingDevice(version())
    device.gate.clear()
    async with device.running():
        await device.clock.advance(0)
        await device.set(charging=False)
        device.gate.set()
        await device.clock.advance(100)
        assert (device.cut, device.steps, device.released) == (0, ["shop/count v1"], ["shop/count v1"])


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [OSError("a fault of the device"), asyncio.CancelledError(), VMError("failed")])
async def test_no_error_of_a_step_ends_the_training(error: BaseException) -> None:
    device = TrainingDevice(version(rest_s=60))
    device.error = error
    async with device.running():
        await device.clock.advance(0)
        device.error = None
        await device.clock.advance(59)
        assert len(device.steps) == 1
        await device.clock.advance(1)
        assert len(device.steps) == 2


@pytest.mark.asyncio
async def test_a_fault_of_the_device_postpones_a_step_for_a_minute() -> None:
    device = TrainingDevice(version(rest_s=3600))
    device.error = TrainingPostponedError("the disk is full")
    async with device.running():
        await device.clock.advance(59)
        assert len(device.steps) == 1
        await device.clock.advance(1)
        assert len(device.steps) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize(("rested_s", "steps"), [(600, 0), (3595, 1), (-10_000, 0), (9_000, 1)])
async def test_a_rest_lasts_over_a_restart(rested_s: float, steps: int) -> None:
    device = TrainingDevice(version(rest_s=3600))
    device.rests_since_s = device.clock.time() - rested_s
    device.wants_more = False
    async with device.running():
        await device.clock.advance(10)
        assert len(device.steps) == steps
        await device.clock.advance(3_600)
        assert len(device.steps) > 0


@pytest.mark.asyncio
async def test_a_task_rests_after_a_step_that_wants_no_other_or_fails() -> None:
    device = TrainingDevice(version(rest_s=60))
    device.wants_more = False
    async with device.running():
        await device.clock.advance(59)
        assert (len(device.steps), device.released) == (1, ["shop/count v1"])
        device.error = VMError("failed")
        await device.clock.advance(1)
        assert (len(device.steps), len(device.released)) == (2, 2)
        device.error = None
        await device.clock.advance(60)
        assert len(device.steps) == 3


@pytest.mark.asyncio
async def test_another_version_begins_at_once_and_a_removed_one_ends() -> None:
    device = TrainingDevice(version(rest_s=3600))
    device.wants_more = False
    async with device.running():
        await device.clock.advance(1)
        device.active["shop/count"] = version(number="v2")
        await device.set()
        assert device.steps == ["shop/count v1", "shop/count v2"]
        device.wants_more = True
        device.gate.clear()
        device.active["shop/count"] = version(number="v3")
        await device.set()
        del device.active["shop/count"]
        await device.set()
        await device.clock.advance(2)
        assert (device.cut, device.steps[2:], device.released[-1]) == (1, [], "shop/count v3")


@pytest.mark.parametrize(
    ("attributes", "is_met"),
    [
        ({"charging": True, "network": "wifi"}, True),
        ({"charging": True, "network": "cell"}, False),
        ({"charging": True}, False),
        ({}, False),
    ],
)
def test_all_attributes_of_when_must_be_met(attributes: dict[str, Attribute], is_met: bool) -> None:
    assert TrainingPolicy(when={"charging": True, "network": "wifi"}).is_met(attributes) == is_met
    assert TrainingPolicy(when={}).is_met(attributes)

"""Loading of a version before it is activated: once, where it will run, and beside the activation where it is slow."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.night.cases import at_night
from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from walle.device import Device, task_versions
from walle.engine_ext.vm.vm import VM
from walle.task.run.log import OnLog
from walle.task.run.runner import TaskRunner

MAIN = """\
import time
time.sleep({seconds})

def execute(ctx, trigger):
    return 1
"""


type Calls = list[tuple[TaskRunner, str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Give the calls of runners in VMs, in order: those of devices, and of the cloud's simulation."""
    called: Calls = []
    call = TaskRunner._call_held

    async def noted(self: TaskRunner, vm: VM, log: OnLog, function: str, *args: Any, **options: Any) -> Any:
        called.append((self, function.removeprefix("walle.pipeline.stream.context:")))
        return await call(self, vm, log, function, *args, **options)

    monkeypatch.setattr(TaskRunner, "_call_held", noted)
    return called


def calls_of(device: Device, calls: Calls) -> list[str]:
    return [function for runner, function in calls if runner is device._versions._runner]


async def install(shop: ShopCloud, device: Device, main: str) -> None:
    """Have the device activate a version, without an event that triggers it."""
    await shop.push("v1", main=main)
    await shop.release("v1", beta=["d0"])

    async def has_it() -> bool:
        await device.checkin()
        return "shop/count" in device.tasks

    await until(has_it)


@pytest.mark.asyncio
@pytest.mark.parametrize("seconds", [0, *at_night(0.5)], ids=["quick", "slow"])
async def test_a_version_is_loaded_by_its_check_and_once_where_it_runs(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    if seconds:
        monkeypatch.setattr(task_versions, "_LOAD_S", 0.05)  # the activation does not wait for all of the loading
    with caplog.at_level(logging.WARNING, task_versions.__name__):
        async with shop_cloud(tmp_path) as shop:
            async with shop.device(tmp_path / "d0") as device:
                await install(shop, device, MAIN.format(seconds=seconds))
                assert [function for _, function in calls[-2:]] == ["load", "load"]  # the first by its check, elsewhere
                assert calls_of(device, calls) == ["load"]
                await User(device).visit()
                assert (device.counts.runs_ok, device.counts.runs_failed) == (1, 0)
                assert calls_of(device, calls) == ["load", "run"]
            async with shop.device(tmp_path / "d0") as device:
                assert calls_of(device, calls) == []  # after a start, the first trigger loads
                user = User(device)
                user.visits = device.store.position // 3 + 1
                await user.visit()
                assert calls_of(device, calls) == ["load", "run"]
    assert not [record for record in caplog.records if record.name == task_versions.__name__]


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_version_that_is_left_while_it_is_loaded_holds_nothing_up(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_versions, "_LOAD_S", 0.05)
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        await install(shop, device, MAIN.format(seconds=1.5))
        (load,) = device._versions._loading.values()
        await device._versions.suspend("shop/count")
        async with asyncio.timeout(1):
            await asyncio.wait([load])
        assert load.cancelled()
        assert not device._versions._loading
        assert calls_of(device, calls) == ["load"]


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_device_closes_while_a_version_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_versions, "_LOAD_S", 0.05)
    async with shop_cloud(tmp_path) as shop:  # the cloud finds tasks that are left behind
        async with shop.device(tmp_path / "d0") as device:
            await install(shop, device, MAIN.format(seconds=1.5))
            (load,) = device._versions._loading.values()
        assert load.cancelled()

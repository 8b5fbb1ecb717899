"""Training of a task in the background of its device: when it runs, what a step stores, and what a kill loses."""

import asyncio
import functools
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.night.cases import at_night
from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from tests.sim.training_task import STEPS, TRAINING_CONFIG, TRAINING_MAIN
from tests.sim.visits import TASK_CONFIG
from walle.base import plain
from walle.device import Device
from walle.errors import ConfigError
from walle.pipeline.features.checkpoints import Checkpoints
from walle.pipeline.features.store import FeatureStore
from walle.protocol import TrainingPolicy

POLICY = TrainingPolicy(when={})


def checkpoint_of(device: Device) -> Any:
    return Checkpoints(device.store).read("shop/count", POLICY)[1]


async def install(shop: ShopCloud, *users: User, main: str = TRAINING_MAIN) -> None:
    await shop.push("v1", main=main, config=TASK_CONFIG + TRAINING_CONFIG)
    await shop.release("v1", beta=[user.device.config.device_id for user in users])
    for user in users:
        await user.until(functools.partial(user.has, "v1"))


@pytest.mark.asyncio
async def test_a_task_trains_while_its_device_charges_and_infers_with_what_it_learned(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        async with shop.device(tmp_path / "d0", vms=2) as device:
            user = User(device)
            await install(shop, user)
            await asyncio.sleep(0.1)
            assert (device.counts.training_steps, checkpoint_of(device)) == (0, None)
            device.set_attributes(charging=True)
            await until(lambda: device.counts.training_steps >= 5)
            device.set_attributes(charging=False)
            done = device.counts.training_steps
            await asyncio.sleep(0.1)
            assert device.counts.training_steps <= done + 1
            stored = checkpoint_of(device)
            assert stored["done"] == device.counts.training_steps
            with device.results("shop/count") as results:
                await user.visit()
                assert (await anext(results)).output == {"done": stored["done"]}
            losses = await device.store.query("shop/count/loss", 0, 100, 0)
            assert len(losses) == stored["done"]
            assert (device.counts.runs_failed, device.counts.last_error) == (0, "")
        async with shop.device(tmp_path / "d0", vms=2, attributes={"performance": "low", "charging": True}) as device:
            await until(lambda: checkpoint_of(device)["done"] == STEPS)
            await until(lambda: not any(one.has_vm for one in device._training._courses.values()))
            assert device.counts.training_steps == STEPS + 1 - stored["done"]  # the last step trained nothing
            assert (await device.summary()).training_steps == device.counts.training_steps
            runner, active = device._runner, device._versions.active["shop/count"]
            runner.drop_training(tmp_path / "gone", active.manifest)  # as of a version whose files were removed
            await device._versions.remove("shop/count")
            assert checkpoint_of(device) is None


@pytest.mark.asyncio
async def test_a_step_that_fails_counts_against_its_version_and_stores_nothing(tmp_path: Path) -> None:
    main = TRAINING_MAIN.replace("    return True", "    raise ValueError('no data')")
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0", vms=2) as device:
        user = User(device)
        await install(shop, user, main=main)
        device.set_attributes(charging=True)
        await until(lambda: device.counts.runs_failed == 1)
        assert "ValueError: no data" in device.counts.last_error
        assert (device.counts.training_steps, checkpoint_of(device)) == (0, None)
        await asyncio.sleep(0.1)
        assert device.counts.runs_failed == 1  # the next step comes after rest_s


@pytest.mark.asyncio
@pytest.mark.parametrize("kills", [1, *at_night(10)])
async def test_a_kill_loses_one_step_at_most_and_the_weights_end_as_without(tmp_path: Path, kills: int) -> None:
    rng = random.Random(1)
    async with (
        shop_cloud(tmp_path) as shop,
        shop.device(tmp_path / "d0", vms=2) as device,
        shop.device(tmp_path / "d1", vms=2) as other,  # never killed
    ):
        await install(shop, User(device), User(other))
        other.set_attributes(charging=True)
        await until(lambda: other.counts.training_steps == STEPS + 1)
        wanted = checkpoint_of(other)
    config_file = tmp_path / "config"
    config_file.write_bytes(pickle.dumps(device.config))
    done = 0
    for _ in range(kills):
        command = [sys.executable, "-m", "tests.sim.training_task", str(config_file)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        begun = 0
        last = rng.randint(2, 4)
        while begun < last and await process.stdout.readline():
            begun += 1
        await asyncio.sleep(rng.uniform(0, 0.02))
        process.kill()
        begun += len((await process.stdout.read()).splitlines())
        await process.wait()
        async with FeatureStore(device.config.folder / "features.db") as store:
            stored = Checkpoints(store).read("shop/count", POLICY)[1]
        assert done + begun - 1 <= stored["done"] <= done + begun
        done = stored["done"]
    async with Device(device.config) as device:
        device.set_attributes(charging=True)
        await until(lambda: checkpoint_of(device)["done"] == STEPS)
        ended = checkpoint_of(device)
    assert plain.encode(ended) == plain.encode(wanted)


@pytest.mark.asyncio
async def test_id_and_app_version_of_a_device_are_no_attributes_of_the_moment(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        device = shop.device(tmp_path / "d0")
        with pytest.raises(ConfigError, match="the attribute id of a device cannot be set"):
            device.set_attributes(id="other")
        device.set_attributes(charging=True, performance="high")
        assert device.attributes == {"id": "d0", "app_version": "10.1", "performance": "high", "charging": True}

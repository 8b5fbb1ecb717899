"""Smaller IPV encoders: costs, likeness to the given one, the task with variants, and three kinds of devices."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import walle
from apps.ipv.demo.push import write_task
from apps.ipv.encoder_sizes import STATES, encodings, likeness, operations, parameters, train
from apps.ipv.logs import generated_visits
from apps.ipv.make_encoder import CHUNK, STATE, WIDTH, sizes_weights, trained_weights, write_encoder
from apps.ipv.ranking import STATE_BYTES
from apps.ipv.training_data import Example, make_examples
from apps.sizes import SIZES
from tests.sim.shop_cloud import ShopCloud, User, shop_cloud, until
from walle.cli import app
from walle.task.format.config import TaskConfig

PARAMETERS = {"low": 1_460, "middle": 2_892, "given": 4_704}
OPERATIONS = {"low": 8_448, "middle": 17_920, "given": 36_864}
NEIGHBOURS = {"low": 0.7, "middle": 0.8}


def _weights() -> dict[str, Any]:
    return {**sizes_weights(), "given": trained_weights()}


def _examples() -> list[Example]:
    return make_examples(generated_visits(4, 12, 15))  # a seed that no training had


def test_sizes_cost_less() -> None:
    weights = _weights()
    assert tuple(sizes_weights()) == tuple(STATES) == SIZES
    assert {name: parameters(one) for name, one in weights.items()} == PARAMETERS
    assert {name: operations(one) for name, one in weights.items()} == OPERATIONS


def test_sizes_have_most_neighbours_of_the_given_encoder() -> None:
    examples = _examples()
    given = encodings(trained_weights(), examples)
    found = {name: likeness(encodings(one, examples), given) for name, one in sizes_weights().items()}
    assert all(found[name]["neighbours"] > least for name, least in NEIGHBOURS.items()), found
    assert found["low"]["variance"] < found["middle"]["variance"] < 1
    assert likeness(np.random.default_rng(1).normal(size=given.shape).astype(np.float32), given)["neighbours"] < 0.3


@pytest.mark.parametrize("size", SIZES)
def test_the_engine_gives_the_encodings_of_a_size(size: str, tmp_path: Path) -> None:
    weights = sizes_weights()[size]
    session = walle.Session(write_encoder(tmp_path / "encoder.walle", weights))
    example = max(_examples(), key=lambda one: len(one.rows))
    rows = np.zeros((-(-len(example.rows) // CHUNK) * CHUNK, WIDTH), np.float32)
    rows[: len(example.rows)] = example.rows
    state, found = np.zeros((1, STATE), np.float32), {}
    for start in range(0, len(rows), CHUNK):
        found = session.run({"x": rows[start : start + CHUNK], "state": state})
        state = np.asarray(found["next_state"])
    encoding = np.asarray(found["encoding"], np.float32)
    assert encoding.nbytes == STATE_BYTES
    assert not state[0, STATES[size] :].any()
    np.testing.assert_allclose(encoding[0], encodings(weights, [example])[0], atol=1e-4)


def test_training_brings_an_encoder_closer() -> None:
    examples = _examples()
    given = encodings(trained_weights(), examples)
    short, longer = (
        likeness(encodings(train(examples, 12, epochs=epochs).weights(), examples), given)["variance"]
        for epochs in (1, 12)
    )
    assert short + 0.1 < longer


def _files(folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    write_task(folder, sizes=True)
    config = folder / "task.toml"
    assert [one.name for one in TaskConfig.parse(config.read_bytes(), "task.toml").variants] == list(SIZES)
    config.write_text(config.read_text().replace('name = "ipv"', 'name = "count"'))  # the task that ShopCloud pushes
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


async def _explained(shop: ShopCloud, device_id: str) -> str:
    command = ["release", "explain", "--device", device_id, "--task", "shop/count", "--url", shop.cloud.address.url]
    env = {"WALLE_TOKEN": shop.cloud.home.admin_token}
    return (await asyncio.to_thread(CliRunner().invoke, app, command, env=env)).stdout


async def _gets(shop: ShopCloud, user: User, name: str, version: str) -> None:
    """Wait until a device has its size of the version, and until `walle release explain` says so."""
    await user.until(lambda: user.has(version))
    reason = f"variant {name} the first of its variants" if "@" in version else "shop/count: has v1, gets v1:"

    async def is_explained() -> bool:
        await asyncio.sleep(0.1)  # leaves the CPU to the cloud, which has still to hear of it
        text = await _explained(shop, name)
        return f"shop/count: has {version}, gets {version}" in text and reason in text

    await until(is_explained)


@pytest.mark.night
@pytest.mark.asyncio
async def test_three_kinds_of_devices_get_three_encoders(tmp_path: Path) -> None:
    (tmp_path / "cloud").mkdir()
    (tmp_path / "cloud" / "attributes.toml").write_text('[attributes]\nperformance = "string"\n')
    versions = {"low": "v1@low", "middle": "v1@middle", "high": "v1"}
    async with contextlib.AsyncExitStack() as stack:
        shop = await stack.enter_async_context(shop_cloud(tmp_path))
        await shop.push("v1", **_files(tmp_path / "task"))
        release = await shop.release("v1", beta=0)
        users = {}
        for name in versions:
            device = shop.device(tmp_path / name, vm_host=False, attributes={"performance": name})
            users[name] = User(await stack.enter_async_context(device))
        shown = await shop.until(release, "full", "failed", users=list(users.values()))
        assert shown["state"] == "full", shown["reason"]
        for name, version in versions.items():
            await _gets(shop, users[name], name, version)
        before = await shop.received()
        for user in users.values():
            await user.visit()
        await until(lambda: _has_received(shop, before + len(users)))
    (low, middle, high) = (
        next((tmp_path / name).rglob("versions/*/files/resources/encoder.walle")).stat().st_size for name in versions
    )
    assert low < middle < high


async def _has_received(shop: ShopCloud, count: int) -> bool:
    return await shop.received() >= count

"""`walle adapt run --release`: models that become the variants of a task's next version, on a cloud that runs."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.sim.git_host import git
from tests.sim.shop_cloud import LIMIT_S, ShopCloud, User, shop_cloud
from walle import nn, np
from walle.cli import app

CONFIG = """\
[task]
name = "count"
[trigger]
sequence = ["page_exit"]
[files]
"resources/model.walle" = "shared"
"""
MAIN = """\
import walle.np as np

def execute(ctx, trigger):
    return {"sum": float(ctx.session("model").run({"input": np.zeros((1, 6), dtype="float32")})["output"].sum())}
"""
NETWORK = """\
from walle import nn, np, optim

def data():
    inputs = np.random.default_rng(1).normal(size=(64, 6)).astype("float32")
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).astype("int64")

def make():
    nn.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    step = nn.TrainStep(model, nn.functional.cross_entropy, optim.Adam(lr=0.02))
    for _ in range(100):
        step(*data())
    return model
"""
GOALS = """\
model = "net.py:make"
data = {train = "net.py:data", test = "net.py:data"}
[training]
steps = 4
[goals.small]
parameters = 100
rule = "performance == 'low'"
[goals.whole]
parameters = 200
"""


def _model(path: Path) -> bytes:
    model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 2))
    nn.to_walle(model, path, np.zeros((1, 6), "float32"))
    return path.read_bytes()


@contextlib.asynccontextmanager
async def _shop(folder: Path) -> AsyncIterator[ShopCloud]:
    (folder / "cloud").mkdir()
    (folder / "cloud" / "attributes.toml").write_text('[attributes]\nperformance = "string"\n')
    async with shop_cloud(folder) as shop:
        (folder / "net.py").write_text(NETWORK)
        (folder / "goals.toml").write_text(GOALS)
        await shop.push("v1", config=CONFIG, main=MAIN, **{"resources/model.walle": _model(folder / "first.walle")})
        for key in ("name", "email"):
            git(folder / "work", "config", f"user.{key}", "ada@example.com")
        yield shop


async def _adapt(shop: ShopCloud, folder: Path, *words: str) -> tuple[int, Any]:
    """Run the command of the how-to page in the checkout of shop/count."""
    texts = (Path(__file__).parents[3] / "docs/how-to/adapt.md").read_text().split("`")
    (page,) = {text for text in texts if text.startswith("walle adapt run ../goals.toml")}
    arguments = page.replace("../", f"{folder}/").replace("visits", "count").split()[1:]
    arguments += ["--folder", str(folder / "work"), "--url", shop.cloud.address.url, "--json", *words]
    env = {"WALLE_TOKEN": shop.cloud.home.admin_token, "COLUMNS": "200"}
    done = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=env)
    return done.exit_code, json.loads(done.stdout) if done.exception is None else str(done.exception)


def _parameters(folder: Path) -> int:
    """Return the parameters of the model that a device got last."""
    path = max(folder.rglob("versions/*/files/resources/model.walle"), key=lambda path: path.parents[2].stat().st_ctime)
    return sum(one.size for one in nn.from_onnx(path).parameters())


@pytest.mark.asyncio
async def test_models_arrive_on_the_devices_of_their_goals(tmp_path: Path) -> None:
    async with _shop(tmp_path) as shop, contextlib.AsyncExitStack() as stack:
        devices = {
            kind: await stack.enter_async_context(
                shop.device(tmp_path / kind, vm_host=False, attributes={"performance": kind})
            )
            for kind in ("low", "high")
        }
        status, outcomes = await _adapt(shop, tmp_path)
        assert status == 0, outcomes
        (outcome,) = outcomes
        assert outcome["release"] == "count-v2-1"
        users = {kind: User(device) for kind, device in devices.items()}
        await shop.until("count-v2-1", "beta", users=list(users.values()))
        for _ in range(3):  # both are seen, so that both are beta devices
            await asyncio.gather(*(user.visit() for user in users.values()))
        await users["low"].until(lambda: users["low"].has("v2@small"))
        await users["high"].until(lambda: users["high"].has("v2"))
        small, whole = (_parameters(tmp_path / kind) for kind in ("low", "high"))
        assert small <= 100 < whole <= 200
        text = (tmp_path / "work" / "task.toml").read_text()
        assert text.startswith(CONFIG)
        assert text.count("[variants.") == 1
        assert git(tmp_path / "work", "status", "--porcelain").stdout == ""


@pytest.mark.asyncio
async def test_what_cannot_be_released_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    async with _shop(tmp_path) as shop:
        goals, work = tmp_path / "goals.toml", tmp_path / "work"
        for old, new, what in (
            ("performance == 'low'", "speed == 'low'", "speed"),
            ("rule = \"performance == 'low'\"\n", "", "goals small and whole have no rule"),
            ("goals.small", "goals.Small", "goal Small cannot be released"),
        ):
            goals.write_text(GOALS.replace(old, new))
            status, shown = await _adapt(shop, tmp_path)
            assert status == 1
            assert what in shown
        goals.write_text(GOALS)
        git(work, "checkout", "-q", "-b", "other")
        status, shown = await _adapt(shop, tmp_path)
        assert (status, "is on the branch other; the task's is count" in shown) == (1, True)
        git(work, "checkout", "-q", "count")
        status, shown = await _adapt(shop, tmp_path, "--file", "resources/other.walle")
        assert (status, "lists no shared file resources/other.walle" in shown) == (1, True)
        assert not (tmp_path / "models").exists()


@pytest.mark.asyncio
async def test_a_model_that_misses_its_goal_is_not_released(tmp_path: Path) -> None:
    async with _shop(tmp_path) as shop:
        (tmp_path / "goals.toml").write_text(GOALS.replace("parameters = 100\n", "parameters = 12\naccuracy = 0.9\n"))
        status, shown = await _adapt(shop, tmp_path)
        assert status == 1
        assert "not released: small missed" in shown
        assert [one["id"] for one in await shop.releases.list_all()] == []
        assert git(tmp_path / "work", "log", "--oneline").stdout.count("\n") == 1


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_push_that_is_refused_leaves_the_checkout_as_it_is_and_is_repeated(tmp_path: Path) -> None:
    async with _shop(tmp_path) as shop:
        work = tmp_path / "work"
        hook = work / ".git" / "hooks" / "pre-push"
        hook.write_text("#!/bin/sh\nread -r _ commit reference rest\ncase $reference in *tags*) exit 1 ;; esac\n")
        hook.chmod(0o755)
        status, shown = await _adapt(shop, tmp_path)
        assert status == 1
        assert "git push" in shown
        assert git(work, "status", "--porcelain").stdout == ""
        assert git(work, "log", "--oneline").stdout.count("\n") == 1
        assert git(work, "tag").stdout.split() == ["count/v1"]
        hook.unlink()
        assert "git pull" in (await _adapt(shop, tmp_path))[1]  # the cloud has the commit, and no version of it
        await asyncio.to_thread(git, work, "pull", "-q", "origin", "count")
        (work / "main.py").write_text(MAIN + "# an edit that is not committed\n")
        status, outcomes = await _adapt(shop, tmp_path)
        assert (status, outcomes[0]["release"]) == (0, "count-v2-1")
        assert (work / "main.py").read_text().endswith("not committed\n")
        status, shown = await _adapt(shop, tmp_path)
        assert "count-v2-1 is under way" in shown
        await shop.releases.rollback("count-v2-1", "tester")
        status, outcomes = await _adapt(shop, tmp_path)  # the same models: the same version
        assert (status, outcomes[0]["release"]) == (0, "count-v2-2")
        assert (tmp_path / "models" / "small.walle").exists()


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_goal_that_devices_ask_for_arrives_as_their_variant(tmp_path: Path) -> None:
    async with _shop(tmp_path) as shop, contextlib.AsyncExitStack() as stack:
        attributes = '[attributes]\nperformance = "string"\nmodel_goal = "string"\n'
        (tmp_path / "cloud" / "attributes.toml").write_text(attributes)
        devices = [await stack.enter_async_context(shop.device(tmp_path / name, vm_host=False)) for name in ("a", "b")]
        users = [User(device) for device in devices]
        release = await shop.release("v1", beta=0)
        await shop.until(release, "full", users=users)
        await users[0].until(lambda: users[0].has("v1"))
        devices[0].ask_for_model("parameters <= 60")
        devices[1].ask_for_model("parameters <= 1")

        async def look() -> list[dict[str, Any]]:
            await asyncio.gather(*(user.visit() for user in users))
            return await _follow(shop, tmp_path)

        said: list[dict[str, Any]] = []
        async with asyncio.timeout(LIMIT_S):
            while not any("release" in line for line in said):
                said += await look()
        left_out = next(line for line in said if "left_out" in line)
        assert left_out["goal"] == "parameters <= 1"
        assert "is below" in left_out["left_out"]
        name = next(line["release"] for line in said if "release" in line)
        assert name.startswith("count-v2-")
        await users[0].until(lambda: users[0].device.tasks.get("shop/count", "").startswith("v2@asked-"))
        assert _parameters(tmp_path / "a") <= 60
        assert not [line for line in await look() if "release" in line]  # nothing new


async def _follow(shop: ShopCloud, folder: Path) -> list[dict[str, Any]]:
    arguments = ["adapt", "follow", str(folder / "goals.toml"), "--out", str(folder / "models"), "--release", "shop"]
    arguments += ["count", "--folder", str(folder / "work"), "--url", shop.cloud.address.url, "--once", "--json"]
    env = {"WALLE_TOKEN": shop.cloud.home.admin_token}
    done = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--least", "1"], env=env)
    assert done.exception is None, done.exception
    return [json.loads(line) for line in done.stdout.splitlines()]

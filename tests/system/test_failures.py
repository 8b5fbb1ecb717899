"""A failing task through cloud and device: each kind of failure names its place at every hop, and nothing is lost."""

import asyncio
import dis
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.sim.shop_cloud import User, shop_cloud
from tests.sim.visits import TASK_CONFIG
from walle.cli import app
from walle.cloud.simulation.simulation import Simulator
from walle.deploy.releases.simulation_result import SimulationResult

TOLERANT = {"p_good": 0.98, "p_bad": 0.99, "alpha": 0.01, "beta": 0.01, "trial_runs": 1_000}
CONFIG = f"{TASK_CONFIG}[limits]\ndeadline_ms = 300\noutput_kb = 64\n"

MAIN = """\
import json

import helper


def preprocess(ctx, trigger):
    n = trigger["event"]["contents"]["n"] % 24
    ctx.log(f"visit {n}")
    if n == 1:
        raise ValueError("<script>alert(1)</script>")
    return n


def execute(ctx, n):
    if n == 3:
        return helper.divide(1, 0)
    if n == 5:
        while True:
            pass
    if n == 7:
        kept = bytearray(1 << 30)
    if n == 9:
        __import__("socket")
    if n == 11:
        ctx.store.query(["not", "text"])
    if n == 13:
        ctx.events.plan({None: {"x": ("y", "no such function")}}).run(ctx.events)
    if n == 15:
        return execute(ctx, n)
    if n == 17:
        json.loads("{")
    return n


def postprocess(ctx, n):
    if n == 19:
        print("not plain")
        return {"values": [object()]}
    if n == 21:
        return bytes(100_000)
    return n
"""
HELPER = """\
def divide(a, b):
    return a / b
"""
PLACES = {  # each visit that fails: type of the error, file:line in function, and a part of its text
    1: ("ValueError", "main.py:10 in preprocess", "<script>alert(1)</script>"),
    3: ("ZeroDivisionError", "helper.py:2 in divide", "division by zero"),
    5: ("DeadlineExceeded", "main.py:1[89] in execute", "ran longer than 0.3 s"),
    7: ("LimitExceeded", "main.py:21 in execute", "memory_mb"),
    9: ("ForbiddenImport", "main.py:23 in execute", "imports 'socket'"),
    11: ("TopicError", "main.py:25 in execute", "topic"),
    13: ("", "main.py:27 in execute", "no such function"),
    15: ("LimitExceeded", "main.py:\\d+ in execute", "recursion"),
    17: ("JSONDecodeError", "main.py:31 in execute", "Expecting property name"),
    19: ("TypeError", "main.py:35 in postprocess", "object"),
    21: ("LimitExceeded", "main.py:35 in postprocess", "output_kb"),
}


@pytest.mark.asyncio
async def test_every_kind_of_failure_names_its_place_at_every_hop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", main=MAIN, config=CONFIG, **{"helper.py": HELPER})
        release_id = await shop.release("v1", beta=["d0"], gate=TOLERANT)
        await device.checkin()
        await user.until(lambda: user.has("v1"))
        with caplog.at_level(logging.INFO, "walle.task"):
            for _ in range(24):
                await user.visit()
            await device.settled()
        found: dict[str, Any] = await shop.releases.failures(release_id)  # type: ignore[assignment]
        assert (len(found["failures"]), found["others"]) == (len(PLACES), 0)
        device_log = [record.message for record in caplog.records]
        for visit, (error_type, place, text) in PLACES.items():
            (failure,) = [one for one in found["failures"] if f"info: visit {visit}" in one["log"].split("\n")]
            assert failure["error_type"] == error_type or not error_type
            assert re.fullmatch(f"shop/count/v1/{place}", failure["place"]), failure
            assert text in failure["error"]
            assert failure["count"] in (1, 2)  # the visit at which the version became active may be among them
            assert (failure["devices"], failure["device_id"]) == (1, "d0")
            failed = [line for line in device_log if "failed: " in line and text in line]
            assert any(failure["place"] in line for line in failed), (visit, failed)
        command = ["release", "status", release_id, "--url", shop.cloud.address.url]
        as_admin = {"WALLE_TOKEN": shop.cloud.home.admin_token}
        shown = (await asyncio.to_thread(CliRunner().invoke, app, command, env=as_admin)).stdout
        for failure in found["failures"]:
            assert failure["place"] in shown
        assert '  File "shop/count/v1/helper.py", line 2, in divide' in shown


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_version_that_fails_at_import_on_a_device_is_rejected_with_place_traceback_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def passed(*_: object, **__: object) -> SimulationResult:
        return SimulationResult(ok=True, runs=0, failures=0)

    main = "print('importing')\n\ndef f():\n    return {}['a']\n\nf()\n\ndef execute(ctx, x):\n    return 1\n"
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        with monkeypatch.context() as patched:
            patched.setattr(Simulator, "run", passed)
            await shop.push("v1", main=main)
            release_id = await shop.release("v1", beta=["d0"], gate=TOLERANT)
            await shop.until(release_id, "beta")
        for _ in range(200):
            await device.checkin()
            await device.report()
            if (await shop.releases.get(release_id))["totals"]["rejected"]:
                break
            await asyncio.sleep(0.02)
        (failure,) = (await shop.releases.failures(release_id))["failures"]
        assert (failure["kind"], failure["error_type"]) == ("rejected", "KeyError")
        assert failure["place"] == "shop/count/v1/main.py:4 in f"
        assert 'line 6, in <module>\n  File "shop/count/v1/main.py", line 4, in f\n' in failure["traceback"]
        assert failure["log"] == "info: importing"


@pytest.mark.asyncio
async def test_a_simulation_and_a_build_that_fail_name_the_place_in_the_release(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop:
        await shop.push("v1", main="\n\ndef f():\n    return 1 / 0\n\nf()\n")
        shown = await shop.until(await shop.release("v1"), "failed")
        assert "ZeroDivisionError: division by zero (shop/count/v1/main.py:4 in f)" in shown["reason"]
        with pytest.raises(AssertionError, match=r"main\.py:1: does not compile: expected ':'"):  # git's output
            await shop.push("v2", main="def execute(ctx, x)\n    return 1\n")


# Takes an attribute of a variable that has no value, without the check for it: of address 0, in every process alike.
NO_OBJECT = [dis.opmap["LOAD_FAST"], 0, dis.opmap["LOAD_ATTR"], 0, *[0] * 60]
CRASHING = f"""\
import itertools

def wild():
    code = wild.__code__.replace(co_code=bytes({NO_OBJECT}))
    type(wild)(code, {{}})()

def execute(ctx, trigger):
    n = trigger["event"]["contents"]["n"] % 8
    if n == 2:
        return any(itertools.repeat(0))
    if n == 5:
        wild()
    return n
"""


@pytest.mark.night
@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_task_that_ends_or_blocks_the_vm_host_fails_its_release(tmp_path: Path) -> None:
    config = f"{TASK_CONFIG}[limits]\ndeadline_ms = 200\n"
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", main=CRASHING, config=config)
        release_id = await shop.release("v1", beta=["d0"], gate=TOLERANT)
        await user.until(lambda: device.counts.runs_failed >= 2)
        await device.settled()
        found = (await shop.releases.failures(release_id))["failures"]
        kinds = {failure["error_type"]: (failure["place"], failure["error"]) for failure in found}
        assert kinds["HostCrashed"][0] == "shop/count/v1/main.py:3 in wild"
        assert "ended its VM host" in kinds["HostCrashed"][1]
        assert kinds["DeadlineExceeded"][0] == "a C call that cannot be interrupted"


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_phase_that_fails_in_the_cloud_names_both_places(tmp_path: Path) -> None:
    main = """\
def preprocess(ctx, trigger):
    return helper(ctx)

def helper(ctx):
    return ctx.escalate({"n": 1}) if ctx.phase == "execute" else 5

def execute(ctx, payload):
    return payload / 0
"""
    config = f'{TASK_CONFIG}[phases]\nexecute = "cloud"\n'
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        user = User(device)
        await shop.push("v1", main=main, config=config)
        release_id = await shop.release("v1", beta=["d0"], gate=TOLERANT)
        await user.until(lambda: device.counts.runs_failed >= 1)
        await device.settled()
        (failure,) = (await shop.releases.failures(release_id))["failures"]
        assert failure["error_type"] == "EscalationError"
        assert "ZeroDivisionError" in failure["error"]
        assert "shop/count/v1/main.py:8 in execute" in failure["error"]  # line of the cloud's code
        assert failure["place"] == "shop/count/v1/main.py:7 in execute"  # place where the device begins the phase

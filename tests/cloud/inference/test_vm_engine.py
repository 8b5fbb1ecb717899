"""Batches in real VMs: their members' failures, replicas, what stays loaded, and files that only the cloud has."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.inference_versions import home_in, released, request
from walle.base import plain
from walle.base.clock import Clock, ManualClock, SystemClock
from walle.cloud.folder.folder import CloudHome
from walle.cloud.inference import InferenceError, InferenceLateError, NoRoomError
from walle.cloud.inference import vm_engine as vm_engine_module
from walle.cloud.inference.failures import InferenceRefusedError
from walle.cloud.inference.feature_views import FeatureViews
from walle.cloud.inference.scheduler import Scheduler
from walle.cloud.inference.version_files import VersionFiles
from walle.cloud.inference.version_source import HomeSource
from walle.cloud.inference.vm_engine import RECENT_S, UNUSED_S, VmEngine
from walle.cloud.inference.watch import InferenceWatch
from walle.engine_ext.vm.host import shared_host
from walle.engine_ext.vm.loop_calls import LimitExceeded, TaskError
from walle.task.run.runner import PhasePlaceError

BATCHES = "[cloud]\nmax_batch = 8\n"
MAIN = """\
calls = []

def execute(ctx, x):
    calls.append(1)
    return {"alone": x, "by": ctx.device["id"], "place": ctx.place}

def execute_batch(ctx, payloads):
    calls.append(len(payloads))
    if "break" in payloads:
        raise ValueError("all of it")
    results = []
    for x, device in zip(payloads, ctx.devices):
        if x == "wrong":
            results.append(KeyError("this one"))
        elif x == "calls":
            results.append(list(calls))
        elif x == "text":
            results.append("a" * 600_000)
        elif x == "odd":
            results.append({1})
        else:
            results.append({"together": x, "by": device["id"], "place": ctx.place, "phase": ctx.phase})
    return results if "short" not in payloads else results[1:]
"""


@contextlib.asynccontextmanager
async def engine_in(
    home: CloudHome, vms: int = 2, max_bytes: int = 1 << 20, clock: Clock | None = None
) -> AsyncIterator[VmEngine]:
    files = VersionFiles(HomeSource(home), home.inference_folder, 1 << 30)
    files.prepare()
    views = FeatureViews()
    engine = VmEngine(vms, max_bytes, files=files, views=views, host=shared_host(), clock=clock or SystemClock())
    try:
        yield engine
    finally:
        await engine.close()


def decoded(answers: list[bytes | Exception]) -> list[Any]:
    return [plain.decode(one) if isinstance(one, bytes) else one for one in answers]


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_batch_runs_together_and_each_payload_has_its_result_or_error(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    version = released(home, MAIN, BATCHES)
    async with engine_in(home) as engine:
        good = [request(5, device="a"), request(6, device="b")]
        common = {"place": "cloud", "phase": "execute"}
        assert decoded(await engine.run(version, good)) == [
            {"together": 5, "by": "a", **common},
            {"together": 6, "by": "b", **common},
        ]
        first, second = decoded(await engine.run(version, [request("wrong"), request(1)]))
        assert isinstance(first, TaskError)
        assert (first.type_name, first.message) == ("KeyError", "'this one'")
        assert second["together"] == 1
        assert decoded(await engine.run(version, [request("calls"), request(1)]))[0] == [2, 2, 2]


@pytest.mark.vm_host
@pytest.mark.asyncio
@pytest.mark.parametrize("bad", ["break", "short", "odd"])
async def test_a_batch_that_fails_as_a_whole_runs_alone(tmp_path: Path, bad: str) -> None:
    home = home_in(tmp_path)
    version = released(home, MAIN, BATCHES)
    async with engine_in(home) as engine:
        alone = decoded(await engine.run(version, [request(bad, device="a"), request(2, device="b")]))
        assert alone == [{"alone": bad, "by": "a", "place": "cloud"}, {"alone": 2, "by": "b", "place": "cloud"}]
        assert decoded(await engine.run(version, [request("calls"), request(1)]))[0] == [2, 1, 1, 2]


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_payload_that_hangs_or_is_malformed_fails_alone(tmp_path: Path) -> None:
    main = """\
import time
def execute(ctx, x):
    time.sleep(x)
    return x
def execute_batch(ctx, payloads):
    return [execute(ctx, x) for x in payloads]
"""
    home = home_in(tmp_path)
    version = released(home, main, BATCHES + "[limits]\ndeadline_ms = 200\n")
    broken = dataclasses.replace(request(None), payload=memoryview(b"\xc7\x01\x63\x00"))
    async with engine_in(home) as engine:
        late = request(0, due_s=time.monotonic() - 1)
        answers = await engine.run(version, [request(0), request(9), broken, late])
        assert decoded(answers[:1]) == [0]
        assert [type(one).__name__ for one in answers[1:]] == [
            "DeadlineExceeded", "InferenceRefusedError", "InferenceLateError",
        ]  # fmt: skip
        assert isinstance(answers[3], InferenceLateError)


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_malformed_payload_does_not_take_the_others_out_of_their_batch(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    version = released(home, MAIN, BATCHES)
    broken = dataclasses.replace(request(None), payload=memoryview(b"\xc7\x01\x63\x00"))
    async with engine_in(home) as engine:
        answers = await engine.run(version, [broken, request("calls"), broken, request(1)])
        assert decoded(answers)[1] == [2]
        assert [type(one) for one in (answers[0], answers[2])] == [InferenceRefusedError] * 2
        assert decoded(answers)[3]["together"] == 1
        assert [type(one) for one in await engine.run(version, [broken, broken])] == [InferenceRefusedError] * 2


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_the_results_of_a_batch_may_be_as_large_as_each_alone(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    version = released(home, MAIN, BATCHES + "[limits]\noutput_kb = 600\n")
    small = released(home, MAIN, BATCHES + "[limits]\noutput_kb = 100\n", name="small")
    async with engine_in(home) as engine:
        assert [len(one) for one in decoded(await engine.run(version, [request("text")] * 3))] == [600_000] * 3
        refused, other = decoded(await engine.run(small, [request("text"), request(1)]))
        assert isinstance(refused, InferenceError)
        assert "600005 bytes for one payload of a batch, more than its limit output_kb" in str(refused)
        assert other["together"] == 1


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_results_that_share_their_memory_are_bounded_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = """\
def execute(ctx, x):
    return bytes(x)
def execute_batch(ctx, payloads):
    return [bytes(7_000_000)] * len(payloads)
"""
    home = home_in(tmp_path)
    limits = "[limits]\noutput_kb = 65536\nmemory_mb = 256\ndeadline_ms = 5000\n"
    version = released(home, main, "[cloud]\nmax_batch = 16\n" + limits)
    async with engine_in(home) as engine:
        together = await engine.run(version, [request(0)] * 9)
        assert [len(one) for one in decoded(together)] == [7_000_000] * 9
        alone = await engine.run(version, [request(5)] * 9 + [request(8 << 20)])  # 70 MB together
        assert decoded(alone)[:9] == [bytes(5)] * 9
        assert isinstance(alone[9], InferenceError)
        assert "returned 8388613 bytes, more than the 8384512 that can be sent to a device" in str(alone[9])
        monkeypatch.setattr(vm_engine_module, "MAX_RESULTS_BYTES", 10_000_000)
        single = released(home, main[: main.index("def execute_batch")], BATCHES + limits, name="single")
        answers = await engine.run(single, [request(6_000_000), request(6_000_000), request(1)])
        assert [type(one) for one in answers] == [bytes, InferenceError, bytes]
        assert "the results of one batch of shop/single v1 have more than 10000000 bytes" in str(answers[1])


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_without_execute_batch_requests_run_one_by_one_from_then_on(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    version = released(home, "def execute(ctx, x): return x + 1\n", BATCHES)
    async with engine_in(home) as engine:
        assert version.max_batch == 8
        assert decoded(await engine.run(version, [request(1), request(2)])) == [2, 3]
        assert version.max_batch == 1


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_replicas_run_at_once_and_versions_stay_loaded_within_their_bounds(tmp_path: Path) -> None:
    main = """\
import time
runs = []
def execute(ctx, x):
    runs.append(x)
    time.sleep(x)
    return [len(runs), ctx.resource("weights.bin").nbytes]
"""
    home = home_in(tmp_path)
    config = '[files]\n"resources/weights.bin" = "cloud"\n[cloud]\nreplicas = 2\n'
    one, two, three = (
        released(home, main, config, name=name, files={"resources/weights.bin": bytes(size_kb << 10)})
        for name, size_kb in (("one", 100), ("two", 100), ("three", 300))
    )
    async with engine_in(home, vms=2, max_bytes=450 << 10) as engine:
        for expected in (1, 2):  # the version stays loaded
            assert decoded(await engine.run(one, [request(0)])) == [[expected, 100 << 10]]
        begin = time.perf_counter()
        at_once = await asyncio.gather(*(engine.run(one, [request(0.3)]) for _ in range(2)))
        assert time.perf_counter() - begin < 0.55
        assert sorted(decoded(answers)[0][0] for answers in at_once) == [1, 3]  # counters of two VMs
        assert engine.state().loaded_vms == 2
        assert decoded(await engine.run(two, [request(0)])) == [[1, 100 << 10]]
        assert engine.state().loaded_vms == 2  # two is the limit
        assert 200 << 10 < engine.state().loaded_bytes < 210 << 10
        assert decoded(await engine.run(two, [request(0)]))[0][0] == 2
        await engine.run(three, [request(0)])
        assert [engine.state().loaded_vms, engine.state().loaded_bytes >> 10] == [2, 401]  # two was used last: stays
        assert decoded(await engine.run(two, [request(0)]))[0][0] == 3
        assert decoded(await engine.run(one, [request(0)]))[0][0] == 1  # loaded in the place of three
        assert engine.state().loaded_bytes >> 10 == 201
    async with engine_in(home, max_bytes=200 << 10) as engine:
        with pytest.raises(InferenceError, match=r"shop/three v1 have 30\d+ bytes, more than the 204800"):
            await engine.run(three, [request(0)])
        with pytest.raises(PhasePlaceError):
            await engine.run(one, [request(0, phase="postprocess")])


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_vm_host_that_is_killed_in_mid_batch_costs_no_answer(tmp_path: Path) -> None:
    main = """\
import time
def execute(ctx, x):
    return ["alone", x]
def execute_batch(ctx, payloads):
    time.sleep(0.5)
    return [["together", x] for x in payloads]
"""
    home = home_in(tmp_path)
    version = released(home, main, BATCHES + "[limits]\ndeadline_ms = 5000\n")
    async with engine_in(home) as engine:
        await engine.run(version, [request(0)])
        running = asyncio.create_task(engine.run(version, [request(1), request(2)]))
        await asyncio.sleep(0.2)
        os.kill(shared_host().report().pid, signal.SIGKILL)
        assert decoded(await running) == [["together", 1], ["together", 2]]


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_the_results_of_a_batch_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vm_engine_module, "MAX_RESULTS_BYTES", 2500)
    home = home_in(tmp_path)
    version = released(home, "def execute(ctx, x): return 'a' * 1000\n", BATCHES)
    async with engine_in(home) as engine:
        first, second, third = decoded(await engine.run(version, [request(0)] * 3))
        assert (len(first), len(second)) == (1000, 1000)
        assert "the results of one batch of shop/rank v1 have more than 2500 bytes" in str(third)
        assert len(decoded(await engine.run(version, [request(0)]))[0]) == 1000


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_versions_loaded_in_advance_evict_none_in_use(tmp_path: Path) -> None:
    home, clock = home_in(tmp_path), ManualClock()
    main = "def execute(ctx, x): return x\n"
    config = "[cloud]\nreplicas = 2\n"
    one, two, three, four = (released(home, main, config, name=name) for name in ("one", "two", "three", "four"))
    async with engine_in(home, vms=2, clock=clock) as engine:

        def loaded() -> dict[str, int]:
            (process,) = engine.state().processes
            return {version.name.split("/")[1]: version.vms for version in process.loaded}

        await engine.load(one, may_unload=True)
        assert loaded() == {"one v1": 1}
        await engine.load(two, may_unload=False)
        with pytest.raises(NoRoomError, match="shop/three v1 is not loaded in advance"):
            await engine.load(three, may_unload=False)
        await engine.load(three, may_unload=True)  # "two" was not asked for
        assert loaded() == {"one v1": 1, "three v1": 1}
        for version in (one, three):
            assert decoded(await engine.run(version, [request(7)])) == [7]
        with pytest.raises(NoRoomError):
            await engine.load(four, may_unload=True)
        await clock.advance(RECENT_S + 1)
        await engine.run(three, [request(7)])
        await engine.load(four, may_unload=True)
        assert loaded() == {"three v1": 1, "four v1": 1}
        engine.keep([three])
        await clock.advance(UNUSED_S - 1)
        engine.unload_unused()
        assert loaded() == {"three v1": 1, "four v1": 1}
        await clock.advance(2)
        engine.unload_unused()
        assert loaded() == {"three v1": 1}  # a device may get it
        engine.keep([])
        engine.unload_unused()
        assert loaded() == {}
        assert decoded(await engine.run(three, [request(7)])) == [7]
        await engine.load(one, may_unload=True)
        await engine.run(one, [request(7)])
        assert loaded() == {"one v1": 1, "three v1": 1}


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_one_of_two_replicas_makes_room_for_a_new_version(tmp_path: Path) -> None:
    main = "import time\ndef execute(ctx, x): time.sleep(x)\n"
    home = home_in(tmp_path)
    one, two = (released(home, main, "[cloud]\nreplicas = 2\n", name=name) for name in ("one", "two"))
    async with engine_in(home, vms=2) as engine:
        await asyncio.gather(*(engine.run(one, [request(0.2)]) for _ in range(2)))
        assert engine.state().loaded_vms == 2
        await engine.load(two, may_unload=True)
        (process,) = engine.state().processes
        assert sorted((version.name, version.vms) for version in process.loaded) == [
            ("shop/one v1", 1),
            ("shop/two v1", 1),
        ]


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_replica_has_the_clouds_memory_and_a_request_that_needs_more_fails_alone(tmp_path: Path) -> None:
    main = """\
kept = []
def execute(ctx, x):
    if x == "keep":
        kept.append(bytes(20_000_000))
    return len(kept) if x == "keep" else len(bytes(x * 1_000_000))
"""
    home = home_in(tmp_path)
    limits = "[limits]\nmemory_mb = 16\n"
    small = released(home, main, limits, name="small")
    large = released(home, main, limits + "[cloud]\nmemory_mb = 64\n", name="large")
    assert small.manifest.cloud.to_json().keys() == {"max_batch", "batch_ms", "replicas", "queue"}
    async with engine_in(home, vms=2) as engine:
        (refused,) = await engine.run(small, [request(30)])
        assert "memory" in str(refused)
        assert isinstance(refused, LimitExceeded)
        assert decoded(await engine.run(large, [request(30)])) == [30_000_000]
        (refused,) = await engine.run(large, [request(80)])
        assert isinstance(refused, LimitExceeded)
        assert (refused.limit, refused.maximum) == ("memory_mb", 64)
        ends = [decoded(await engine.run(large, [request("keep")]))[0] for _ in range(6)]
        assert [one if isinstance(one, int) else type(one) for one in ends] == [
            *(1, 2, 3, LimitExceeded, LimitExceeded),  # the task keeps more and more
            1,  # loaded again
        ]
        for payload in (80, 1, 80, "keep"):  # payloads that are too large, and others between
            (last,) = decoded(await engine.run(large, [request(payload)]))
        assert last == 2
        assert decoded(await engine.run(small, [request(1)])) == [1_000_000]


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_load_that_fails_or_is_cancelled_leaves_the_version_not_loaded(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    broken = released(home, "raise ValueError('as it loads')\n", name="broken")
    slow = released(home, "import time\ntime.sleep(0.5)\ndef execute(ctx, x): return x\n", name="slow")
    async with engine_in(home) as engine:
        with pytest.raises(TaskError, match="as it loads"):
            await engine.load(broken, may_unload=True)
        assert not engine.is_loaded(broken)
        (failed,) = await engine.run(broken, [request(1)])
        assert "as it loads" in str(failed)
        assert not engine.is_loaded(broken)
        loading = asyncio.create_task(engine.load(slow, may_unload=True))
        await asyncio.sleep(0.1)
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loading
        assert not engine.is_loaded(slow)
        assert engine.state().loaded_vms == 0
        running = asyncio.create_task(engine.run(slow, [request(2)]))
        await asyncio.sleep(0)
        await engine.load(slow, may_unload=False)  # the request loads it
        assert engine.is_loaded(slow)
        assert decoded(await running) == [2]
        assert engine.state().loaded_vms == 1


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_two_manifests_of_one_version_are_one_series(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    versions = [released(home, f"def execute(ctx, x): return {number}\n") for number in range(2)]
    async with engine_in(home) as engine:
        scheduler = Scheduler(engine, SystemClock())
        for version in versions:
            await engine.load(version, may_unload=False)
        assert engine.state().loaded_vms == 2
        samples = [one for metric in InferenceWatch(scheduler, engine).metrics() for one in metric.samples]
        series = [(one.name, *sorted(one.labels.items())) for one in samples]
        assert len(series) == len(set(series))
        assert [one.value for one in samples if one.name == "walle_inference_loaded_vms"] == [2]
        await scheduler.close()

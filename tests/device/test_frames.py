"""Frames as events, from the app to tasks in VMs and back: arrays, results, drops, memory, and kill -9."""

import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.sim.frame_rig import BLOCK, FRAME, SUM, frame_of, frame_rig, image_of
from walle.engine_ext.vm.host import shared_host
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.trigger.task_results import ResultStream, TaskResult
from walle.vm import shared_memory_counts

ROOT = Path(__file__).parents[2]
SHOWS = """
    def execute(ctx, trigger):
        contents = trigger["event"]["contents"]
        return {
            "shape": contents["image"].shape,
            "last": int(contents["image"][-1, -1, 0]),
            "deep": [float(one[0]) for one in contents["deep"]["sounds"]],
            "recent": [event.contents for event in ctx.recent],
        }
"""


HOST = pytest.param(True, marks=pytest.mark.vm_host, id="host")


async def results_of(stream: ResultStream, count: int) -> list[TaskResult]:
    async with asyncio.timeout(60):
        return [await anext(stream) for _ in range(count)]


@pytest.mark.asyncio
@pytest.mark.parametrize("vm_host", [pytest.param(False, id="process"), HOST])
async def test_arrays_at_any_depth_reach_tasks_and_sequences_keep_none_of_them(tmp_path: Path, vm_host: bool) -> None:
    async with frame_rig(tmp_path, {"shows": (SHOWS, FRAME.format("shows"))}, vm_host=vm_host) as rig:
        results = rig.stream.results.open("shop/shows")
        for number in range(2):
            image = numpy.full((300, 400, 3), number + 5, "uint8")
            sounds = (numpy.array([number + 0.5], "float32"), memoryview(b"\7"))
            contents = {"image": image[:, ::2], "deep": {"sounds": [*sounds]}, "n": number}
            taken = await rig.intake.take_live(Event("frame", "", 1_000 + number, contents), can_wait=False)
            assert taken == (number, ("shop/shows",))
            if vm_host:
                image[:] = 0  # the app may use its memory again at once
        bare = {"image": None, "deep": {"sounds": [None, None]}}
        for number, result in enumerate(await results_of(results, 2)):
            assert result.failure is None
            assert result.output == {
                "shape": (300, 200, 3),
                "last": number + 5,
                "deep": [number + 0.5, 7.0],
                "recent": [{**bare, "n": earlier} for earlier in range(number + 1)],
            }
            assert (result.position, result.ts_ms, result.event_id) == (number, 1_000 + number, "frame")


@pytest.mark.asyncio
@pytest.mark.parametrize("vm_host", [pytest.param(False, id="process"), HOST])
async def test_a_result_has_the_cpu_time_of_its_run_and_not_the_time_that_it_waits(
    tmp_path: Path, vm_host: bool
) -> None:
    burns = """
    import time

    def execute(ctx, x):
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
    """
    waits = "import time\ndef execute(ctx, x):\n    time.sleep(0.1)"
    fails = "def execute(ctx, x):\n    raise ValueError"
    mains = {"burns": burns, "waits": waits, "fails": fails}
    tasks = {name: (main, FRAME.format(name)) for name, main in mains.items()}
    async with frame_rig(tmp_path, tasks, vm_host=vm_host) as rig:
        streams = {name: rig.stream.results.open(f"shop/{name}") for name in tasks}
        await rig.intake.take_live(frame_of(1), can_wait=False)
        cpu_s = {name: (await results_of(stream, 1))[0].cpu_s for name, stream in streams.items()}
    assert cpu_s["burns"] is not None
    assert cpu_s["burns"] >= 0.05
    assert cpu_s["waits"] is not None
    assert cpu_s["waits"] < 0.05
    assert cpu_s["fails"] is not None
    assert 0 < cpu_s["fails"] < 0.05


@pytest.mark.asyncio
async def test_a_wrong_array_is_refused_with_its_place_and_nothing_of_it_is_taken(tmp_path: Path) -> None:
    async with frame_rig(tmp_path, {"sum": (SUM, FRAME.format("sum"))}) as rig:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"n": 1, "image": numpy.zeros((9000, 9000), "uint8")}, r"contents\.image: makes .* than 67108864 bytes"),
            ({"a": [1, {"b c": numpy.zeros(3, "complex64")}]}, r'contents\.a\[1\]\["b c"\]: .*format'),
            ({"a": numpy.array([object()])}, r"contents\.a: is an array of format 'O'"),
            ({"a": numpy.array([1, 2, 3], "datetime64[s]"), "b": image_of(1)}, r"contents: contents\.a is of type"),
            ({"a": image_of(1), "b": {1, 2}}, r"contents: contents\.b is of type set"),
            ({"a": image_of(1), "b": "x" * 300_000}, r"event: 3000\d\d bytes, more than"),
        ]
        for contents, what in wrong:
            with pytest.raises(EventError, match=what):
                await rig.intake.take_live(Event("frame", "", 1_000, contents), can_wait=False)
        assert rig.stream.next_position == 0
        taken = await rig.intake.take_live(frame_of(3), can_wait=False)
        assert taken == (0, ("shop/sum",))
        assert await rig.outputs("sum") == [{"n": 3, "sum": 3 * 120_000}]


@pytest.mark.asyncio
async def test_a_slow_task_drops_frames_by_its_policy_and_each_trigger_has_one_result(tmp_path: Path) -> None:
    slow = """
    import time

    def execute(ctx, trigger):
        time.sleep(0.05)
        n = trigger["event"]["contents"]["n"]
        if n % 2:
            raise ValueError(f"not {n}")
        return n
    """
    configs = {
        "old": '[limits]\nqueue = 2\nqueue_full = "drop-oldest"\n',
        "new": '[limits]\nqueue = 2\nqueue_full = "drop-newest"\n',
        "fast": BLOCK,
    }
    tasks = {name: (SUM if name == "fast" else slow, FRAME.format(name) + limits) for name, limits in configs.items()}
    async with frame_rig(tmp_path, tasks) as rig:
        streams = {name: rig.stream.results.open(f"shop/{name}") for name in tasks}
        positions = []
        for number in range(60):
            taken = await rig.intake.take_live(frame_of(number), can_wait=False)
            assert taken is not None
            assert taken.tasks == ("shop/fast", "shop/new", "shop/old")
            positions.append(taken.position)
            await asyncio.sleep(0)  # a frame is taken in much less time than a run takes, also on a busy machine
        found = {name: await results_of(stream, 60) for name, stream in streams.items()}
        for name, results in found.items():
            assert [result.position for result in results] == positions, name
            for number, result in enumerate(results):
                kinds = (result.output is not None, result.failure is not None, result.dropped)
                assert sum(kinds) == 1, (name, result)
                if not result.dropped:
                    assert (result.failure is not None) == (name != "fast" and number % 2 == 1)
            dropped = sum(result.dropped for result in results)
            assert dropped == rig.stream.counts.dropped[f"shop/{name}"]
            assert (dropped > 10) == (name != "fast")
        failure = next(result.failure for result in found["old"] if result.failure is not None)
        assert "ValueError: not " in failure.error
        assert "main.py" in failure.place
        assert not found["old"][-1].dropped  # the latest frames are kept
        assert found["new"][-1].dropped or found["new"][-2].dropped


@pytest.mark.asyncio
async def test_queues_are_bounded_by_the_bytes_of_frames(tmp_path: Path) -> None:
    hold = "import time\ndef execute(ctx, trigger):\n    time.sleep(0.3)\n"
    limits = '[limits]\nqueue = 1000\nqueue_full = "drop-oldest"\n'
    async with frame_rig(tmp_path, {"hold": (hold, FRAME.format("hold") + limits)}) as rig:
        before = shared_memory_counts()["in_use"]
        for number in range(40):
            image = numpy.zeros((1024, 1024, 4), "uint8")
            await rig.intake.take_live(Event("frame", "", number, {"n": number, "image": image}), can_wait=False)
            assert shared_memory_counts()["in_use"] - before <= 17  # each has 4 MiB: 64 MiB wait at most, and one runs
        counts = rig.stream.counts
        assert 40 - counts.triggers - counts.dropped["shop/hold"] <= 16  # waiting frames; a busy machine runs several
        assert counts.dropped["shop/hold"] > 0


@pytest.mark.asyncio
async def test_an_ordinary_array_is_copied_once_for_all_tasks(tmp_path: Path) -> None:
    tasks = {f"sum{number}": (SUM, FRAME.format(f"sum{number}")) for number in range(4)}
    async with frame_rig(tmp_path, tasks) as rig:
        before = shared_memory_counts()
        for number in range(20):
            image = numpy.full((300, 300, 3), number, "uint8")
            await rig.intake.take_live(Event("frame", "", number, {"n": number, "image": image}), can_wait=False)
            assert shared_memory_counts()["in_use"] <= before["in_use"] + 1
            await rig.stream.settle()
            assert shared_memory_counts()["in_use"] <= before["in_use"]
        assert shared_memory_counts()["created"] <= before["created"] + 1
        assert (await rig.outputs("sum2"))[-1] == {"n": 19, "sum": 19 * 270_000}


@pytest.mark.night
@pytest.mark.asyncio
async def test_a_killed_host_in_mid_frame_costs_no_frame(tmp_path: Path) -> None:
    slow = SUM.replace("return", "import time; time.sleep(0.01)\n        return")
    async with frame_rig(tmp_path, {"sum": (slow, FRAME.format("sum") + BLOCK)}) as rig:
        results = rig.stream.results.open("shop/sum")
        for number in range(60):
            await rig.intake.take_live(frame_of(number), can_wait=False)
            if number in (20, 40):
                os.kill(shared_host().report().pid, signal.SIGKILL)
        for number, result in enumerate(await results_of(results, 60)):
            assert result.output == {"n": number, "sum": number * 120_000}, result


@pytest.mark.asyncio
async def test_a_task_that_keeps_its_frames_is_stopped_and_reported(tmp_path: Path) -> None:
    keeps = "kept = []\ndef execute(ctx, trigger):\n    kept.append(trigger)\n    return len(kept)\n"
    tasks = {
        "keeps": (keeps, FRAME.format("keeps") + BLOCK + "memory_mb = 16\n"),
        "sum": (SUM, FRAME.format("sum") + BLOCK),
    }
    async with frame_rig(tmp_path, tasks) as rig:
        before = shared_memory_counts()["bytes"]
        kept, summed = (rig.stream.results.open(f"shop/{name}") for name in tasks)
        for number in range(250):
            await rig.intake.take_live(frame_of(number), can_wait=False)
        assert [result.output for result in await results_of(summed, 250)] == [
            {"n": number, "sum": number % 256 * 120_000} for number in range(250)
        ]
        failures = [result.failure for result in await results_of(kept, 250) if result.failure is not None]
        assert failures
        assert all("memory_mb" in failure.error for failure in failures)
        assert shared_memory_counts()["bytes"] - before < 80 << 20


@pytest.mark.night
@pytest.mark.asyncio
async def test_thousands_of_frames_take_no_more_memory(tmp_path: Path) -> None:
    async with frame_rig(tmp_path, {"sum": (SUM, FRAME.format("sum") + BLOCK)}) as rig:
        resident = {}
        for number in range(10_000):
            await rig.intake.take_live(frame_of(number), can_wait=False)
            if number % 100 == 99:
                await rig.stream.settle()
            if number in (3_999, 9_999):
                resident[number] = [resident_bytes(pid) for pid in (os.getpid(), shared_host().report().pid)]
        for early, late in zip(resident[3_999], resident[9_999], strict=True):
            assert late - early < 6 << 20


@pytest.mark.asyncio
async def test_equal_frames_are_kept_and_the_longer_history_leaves_frames_out(tmp_path: Path) -> None:
    reads = """
    def execute(ctx, trigger):
        return [event.event_id for event in ctx.history()]
    """
    config = '[task]\nname = "reads"\n[trigger]\nsequence = ["click"]\n[history]\nrows = 10\n'
    async with frame_rig(tmp_path, {"reads": (reads, config), "sum": (SUM, FRAME.format("sum"))}) as rig:
        for number in (0, 1, 1, 2):  # two frames of one time may differ
            frame = Event("frame", "", 5_000, {"n": 7, "image": image_of(number)})
            assert await rig.intake.take_live(frame, can_wait=False) is not None
        click = Event("click", "", 5_000, {})
        assert await rig.intake.take_live(click, can_wait=False) is not None
        assert await rig.outputs("reads") == [["click"]]
        assert len(await rig.outputs("sum")) == 4


@pytest.mark.night
@pytest.mark.asyncio
@pytest.mark.vm_host
async def test_kill_9_of_a_device_with_frames_and_clicks_does_each_click_once(tmp_path: Path) -> None:
    rng, sent, pipe = random.Random(7), 0, subprocess.PIPE
    for life in range(4):
        command = [sys.executable, "-m", "tests.sim.frame_rig", str(tmp_path)]
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            async with asyncio.timeout(90):
                assert await process.stdout.readline() == b"ready\n"
                # The last life does all its frames; of earlier ones, those that a busy machine has not run are lost.
                for _ in range(50 if life == 3 else rng.randrange(21, 60)):
                    process.stdin.write(b"%d\n" % sent)
                    assert await process.stdout.readline() == b"%d\n" % sent
                    sent += 1
                if life == 3:
                    output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
                await process.wait()
    found: dict[str, list[Any]] = json.loads(output)
    clicks = list(range(0, sent, 2))
    assert found["clicks"] == clicks
    # The replay matches conditions as they were matched: a frame still precedes each click, and is between two.
    assert found["after_frame"] == [[click - 1, click] for click in clicks[1:]]
    assert found["two_clicks"] == []
    frames = [output["n"] for output in found["frames"]]
    assert len(frames) == len(set(frames)) > 20
    assert all(output["sum"] == output["n"] * 120_000 for output in found["frames"])


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.asyncio
@pytest.mark.parametrize("vm_host", [pytest.param(False, id="process", marks=pytest.mark.night), HOST])
async def test_frames_of_runs_that_fail_are_released_at_once(tmp_path: Path, vm_host: bool) -> None:
    """Nothing waits for the collector of cycles: it may come after hundreds of frames, of megabytes each."""
    fails = "def execute(ctx, trigger): raise ValueError('no')"
    async with frame_rig(tmp_path, {"fails": (fails, FRAME.format("fails"))}, vm_host=vm_host) as rig:
        gc.collect()
        before = shared_memory_counts()["in_use"]
        gc.disable()
        try:
            for number in range(12):
                await rig.intake.take_live(frame_of(number), can_wait=False)
                await rig.stream.settle()
            assert rig.stream.counts.failures == 12
            assert shared_memory_counts()["in_use"] <= before + 2
        finally:
            gc.enable()

"""Calls of a task version in its VM, and the errors for one that returns a wrong answer."""

import asyncio
import dataclasses
import struct
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.night.cases import at_night
from tests.sim.endless_models import ENDLESS_MODELS
from tests.sim.slow_model import slow_model
from tests.sim.task_folder import CONFIG, EVENT, TRIGGER, laid_out
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session
from walle.engine_ext.vm.host import VmHost
from walle.engine_ext.vm.loop_calls import DeadlineExceeded, TaskError, VMClosedError
from walle.engine_ext.vm.pool import VMPool
from walle.engine_ext.vm.sources import TaskLike
from walle.engine_ext.vm.vm import VM
from walle.pipeline.events.event import MAX_CONTENTS_DEPTH, Event
from walle.pipeline.features.put import PayloadError, Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.task.run.log import LogLine
from walle.task.run.run_result import TaskOutputError
from walle.task.run.run_version import deadline_s
from walle.task.run.runner import PhasePlaceError, TaskRunner


@pytest.fixture(scope="module")
def vm_host() -> Iterator[VmHost]:
    host = VmHost()
    yield host
    host.close()


@pytest_asyncio.fixture(params=["process", "host"])
async def runner(request: pytest.FixtureRequest, vm_host: VmHost) -> AsyncIterator[TaskRunner]:
    runner = TaskRunner(1, host=vm_host if request.param == "host" else None)
    yield runner
    await runner.close()


@pytest.mark.asyncio
async def test_features_come_while_another_task_hangs_to_its_deadline(tmp_path: Path) -> None:
    config = CONFIG + b"[limits]\ndeadline_ms = 2000\n"
    good = "def execute(ctx, trigger):\n    return len(ctx.events)\n"
    tasks = {
        "hangs": laid_out(tmp_path / "hangs", "import time\ndef execute(ctx, trigger):\n    time.sleep(60)\n", config),
        "good": laid_out(tmp_path / "good", good, config),
    }
    runner = TaskRunner(2)
    for files, manifest in tasks.values():
        await runner.load(files, manifest)
    ended: list[tuple[str, bool]] = []

    async def run(task: str, trigger: Trigger) -> TaskOutput:
        return await runner.run(*tasks[task], trigger, {}, {})

    async with FeatureStore(tmp_path / "features.db") as store:
        engine = StreamEngine(store, run, on_outcome=lambda task, ok, _: ended.append((task, ok)))
        engine.add_task("good", tasks["good"][1].trigger)
        engine.add_task("hangs", tasks["hangs"][1].trigger)
        for visit in range(12):  # fewer than the queue of the other task takes
            for kind in ("page_enter", "page_exit"):
                await engine.on_event(Event(kind, f"item/{visit}", visit, {}))
            while len(ended) <= visit:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert ended == [("good", True)] * 12  # all within the first run of the other
        while len(ended) == 12:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert ended[12] == ("hangs", False)
        assert len(await store.query("good")) == 12
        await engine.close()
    await runner.close()


@pytest.mark.asyncio
async def test_a_run_gets_the_deepest_event_and_whether_its_visit_is_complete(
    runner: TaskRunner, tmp_path: Path
) -> None:
    main = 'def execute(ctx, trigger):\n    return [ctx.visit, trigger["visit"], ctx.events[0].contents]\n'
    contents: dict[str, object] = {}
    for _ in range(MAX_CONTENTS_DEPTH - 1):
        contents = {"x": contents}
    event = Event("page_exit", "item/1", 5, contents)
    event.size_bytes()
    files, manifest = laid_out(tmp_path / "task", main)
    for visit in ("whole", "cut"):
        output = await runner.run(files, manifest, Trigger(event, 7, (event,), (), visit), {}, {})
        assert output.output == [visit, visit, contents]


@pytest.mark.asyncio
async def test_a_run_sees_the_trigger_the_pages_events_and_the_device(runner: TaskRunner, tmp_path: Path) -> None:
    main = """\
def preprocess(ctx, trigger):
    ctx.store.put("side", [ctx.device["id"], len(ctx.events)])
    ctx.store.put("kept", 1, upload=False)
    return [trigger["position"], trigger["event"]["contents"], ctx.store.query("t", 3)]


def postprocess(ctx, y):
    return {"y": y}
"""
    files, manifest = laid_out(tmp_path / "task", main)
    await runner.load(files, manifest)
    callbacks = {"store.query": lambda topic, since_ms, limit, skip: [topic, since_ms, limit, skip]}
    output = await runner.run(files, manifest, TRIGGER, {"id": "d0"}, callbacks)
    assert output.output == {"y": [7, {"n": 1}, ["shop/ipv/t", 3, 100, 0]]}
    side = Put.of("shop/ipv/side", ["d0", 2], version="v1")
    assert output.puts == [side, Put.of("shop/ipv/kept", 1, upload=False)]
    assert output.uploads == 2  # the output is one


@pytest.mark.asyncio
async def test_the_deadline_is_the_manifests_and_the_next_run_is_not_harmed(runner: TaskRunner, tmp_path: Path) -> None:
    main = "def execute(ctx, trigger):\n    while trigger['position'] == 7:\n        pass\n    return 1\n"
    files, manifest = laid_out(tmp_path / "task", main, CONFIG + b"[limits]\ndeadline_ms = 60\n")
    assert deadline_s(manifest) == 0.06
    await runner.load(files, manifest)
    with pytest.raises(DeadlineExceeded) as stopped:
        await runner.run(files, manifest, TRIGGER, {}, {})
    assert stopped.value.limit_s == 0.06
    later = Trigger(EVENT, 8, (), ())
    async with asyncio.timeout(10):
        while True:
            try:
                output = await runner.run(files, manifest, later, {}, {})
                break
            except DeadlineExceeded:
                pass  # a busy machine takes longer than that to create the VM again
    assert output.output == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "name",
    ["'slow'", *at_night("'slow.walle'"), "''.join(['sl', 'ow'])"],
    ids=["opened when it is loaded", "by its file's name", "opened in its run"],
)
@pytest.mark.parametrize("is_loaded", [*at_night(True), False], ids=["loaded", "not loaded"])
async def test_a_model_whose_loading_exceeds_the_deadline_fails_no_run(
    runner: TaskRunner, tmp_path: Path, name: str, is_loaded: bool
) -> None:
    main = f"def execute(ctx, x):\n    return ctx.session({name}).run({{'x': [[0.0] * 4]}})['y'].tolist()\n"
    model = slow_model()
    began = time.monotonic()
    Session(model)
    took_ms = (time.monotonic() - began) * 1_000
    limits = b"[limits]\ndeadline_ms = %d\n" % (took_ms * 0.6)  # a run needs some of it too, where the machine is busy
    files, manifest = laid_out(tmp_path / "a", main, CONFIG + limits, slow__walle=model)
    if is_loaded:
        await runner.load(files, manifest)
    for _ in range(2):
        assert (await runner.run(files, manifest, TRIGGER, {}, {})).output == [[0.0] * 4]
    other = laid_out(tmp_path / "b", "def execute(ctx, x):\n    return 1\n")
    await runner.run(*other, TRIGGER, {}, {})  # takes the only VM
    assert (await runner.run(files, manifest, TRIGGER, {}, {})).output == [[0.0] * 4]


@pytest.mark.asyncio
async def test_after_the_loading_of_a_model_the_deadline_continues(runner: TaskRunner, tmp_path: Path) -> None:
    main = "def execute(ctx, x):\n    ctx.session(''.join(['sl', 'ow']))\n    while True:\n        pass\n"
    config = CONFIG + b"[limits]\ndeadline_ms = 100\n"
    files, manifest = laid_out(tmp_path / "task", main, config, slow__walle=slow_model())
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await runner.run(files, manifest, TRIGGER, {}, {})
    assert time.monotonic() - began < 10


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["endless_loop", "empty_loop", "nested_loops", "growing_sequence"])
async def test_the_deadline_of_a_task_stops_its_model(runner: TaskRunner, tmp_path: Path, kind: str) -> None:
    endless = ENDLESS_MODELS[kind]()
    main = """
def execute(ctx, x):
    return ctx.session("endless").run({"go": x["position"] == 7, "x": [1.0]})["y"].tolist()
"""
    config = CONFIG + b"[limits]\ndeadline_ms = 100\n"
    files, manifest = laid_out(tmp_path / "task", main, config, endless__walle=endless.model)
    await runner.load(files, manifest)
    for _ in range(2):
        with pytest.raises(DeadlineExceeded, match=r"main\.py:3 in execute"):
            await runner.run(files, manifest, TRIGGER, {}, {})
        short = dataclasses.replace(TRIGGER, position=8)
        assert (await runner.run(files, manifest, short, {}, {})).output == endless.results["y"].tolist()


@pytest.mark.asyncio
async def test_modules_are_loaded_outside_the_deadline_also_in_a_new_vm(runner: TaskRunner, tmp_path: Path) -> None:
    main = "import time\ntime.sleep(0.3)\nprint('loaded')\n\ndef execute(ctx, x):\n    print('run')\n    return 1\n"
    files, manifest = laid_out(tmp_path / "task", main, CONFIG + b"[limits]\ndeadline_ms = 100\n")
    logs: list[list[str]] = []

    def on_log(lines: Sequence[LogLine]) -> None:
        logs.append([line.text for line in lines])

    for _ in range(2):
        assert (await runner.run(files, manifest, TRIGGER, {}, {}, on_log=on_log)).output == 1
    assert logs == [["loaded"], ["run"], ["run"]]


@pytest.mark.asyncio
async def test_a_version_that_migrates_and_does_not_load_leaves_its_log(runner: TaskRunner, tmp_path: Path) -> None:
    state = CONFIG + b'[state]\nversion = 2\non_upgrade = "migrate"\n'
    files, manifest = laid_out(tmp_path / "task", "print('loading')\nraise ValueError('at import')\n", state)
    logs: list[list[str]] = []
    with pytest.raises(TaskError, match="at import"):
        await runner.load(files, manifest, on_log=lambda lines: logs.append([line.text for line in lines]))
    assert logs == [["loading"]]


@pytest.mark.asyncio
async def test_calls_that_wait_for_a_new_vm_load_it_once(
    runner: TaskRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = 0
    load = TaskRunner._load

    async def counted(self: TaskRunner, *args: Any) -> list[LogLine]:
        nonlocal loads
        loads += 1
        return await load(self, *args)

    monkeypatch.setattr(TaskRunner, "_load", counted)
    files, manifest = laid_out(tmp_path / "task", "def execute(ctx, x):\n    return 1\n")
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(runner.run(files, manifest, TRIGGER, {}, {})) for _ in range(5)]
    assert [run.result().output for run in runs] == [1] * 5
    assert loads == 1


@pytest.mark.asyncio
async def test_modules_that_never_end_are_stopped(runner: TaskRunner, tmp_path: Path) -> None:
    main = "while True:\n    pass\n\ndef execute(ctx, x):\n    return 1\n"
    files, manifest = laid_out(tmp_path / "task", main)
    with pytest.raises(DeadlineExceeded) as stopped:
        await runner.run(files, manifest, TRIGGER, {}, {})
    assert stopped.value.limit_s == 2


@pytest.mark.asyncio
async def test_a_broken_model_fails_only_the_runs_that_need_it(runner: TaskRunner, tmp_path: Path) -> None:
    main = "def execute(ctx, x):\n    return 1 if x['position'] == 7 else ctx.session('broken')\n"
    files, manifest = laid_out(tmp_path / "task", main, broken__walle=b"nothing")
    logs: list[Sequence[LogLine]] = []
    await runner.load(files, manifest, on_log=logs.append)
    assert [line.level for line in logs[0]] == ["warning"]
    assert "model resources/broken.walle could not be loaded: " in logs[0][0].text
    assert (await runner.run(files, manifest, TRIGGER, {}, {})).output == 1
    with pytest.raises(TaskError, match="ModelError"):
        await runner.run(files, manifest, Trigger(EVENT, 8, (), ()), {}, {})


@pytest.mark.asyncio
async def test_a_phase_runs_only_where_task_toml_allows_it(runner: TaskRunner, tmp_path: Path) -> None:
    main = "def execute(ctx, x):\n    return [x, ctx.phase, ctx.device]\n"
    files, manifest = laid_out(tmp_path / "a", main, CONFIG + b'[phases]\nexecute = "cloud"\n')
    assert await runner.phase(files, manifest, "execute", 5, {"id": "d0"}) == [5, "execute", {"id": "d0"}]
    files, manifest = laid_out(tmp_path / "b", main)
    with pytest.raises(PhasePlaceError, match="'execute' on the cloud; put it under"):
        await runner.phase(files, manifest, "execute", 5, {})


@pytest.mark.asyncio
async def test_a_callback_that_fails_fails_the_run_with_its_message(runner: TaskRunner, tmp_path: Path) -> None:
    async def escalate(phase: str, payload: object, *_times: object) -> None:
        raise LookupError(f"no {phase} for {payload}")

    files, manifest = laid_out(tmp_path / "task", "def execute(ctx, x):\n    return ctx.escalate(5)\n")
    await runner.load(files, manifest)
    with pytest.raises(TaskError, match="no execute for 5"):
        await runner.run(files, manifest, TRIGGER, {}, {"escalate": escalate})


@pytest.mark.asyncio
async def test_a_put_that_cannot_be_stored_fails_its_run_which_keeps_its_log(
    runner: TaskRunner, tmp_path: Path
) -> None:
    main = 'def execute(ctx, x):\n    ctx.log.info("begins")\n    ctx.store.put("side", b"x" * (1 << 20))\n'
    files, manifest = laid_out(tmp_path / "task", main, CONFIG + b"[limits]\noutput_kb = 4096\n")
    logged: list[str] = []
    with pytest.raises(PayloadError, match="topic 'shop/ipv/side': 1048581 bytes, more than 1048576"):
        await runner.run(
            files, manifest, TRIGGER, {}, {}, on_log=lambda lines: logged.extend(line.text for line in lines)
        )
    assert logged == ["begins"]


@pytest.mark.asyncio
@pytest.mark.parametrize("puts", ["5", "[5]", "['side']", "[('side', 1, 2)]", "[('shop/other', 1)]", "[(5, 1)]"])
async def test_a_task_that_reached_into_its_runtime_fails_and_nothing_else(
    runner: TaskRunner, tmp_path: Path, puts: str
) -> None:
    main = f"def execute(ctx, x):\n    if x['position'] == 7:\n        ctx.store.puts = {puts}\n    return 1\n"
    files, manifest = laid_out(tmp_path / "task", main)
    with pytest.raises(TaskOutputError, match="shop/ipv v1 returned a"):
        await runner.run(files, manifest, TRIGGER, {}, {})
    assert (await runner.run(files, manifest, Trigger(EVENT, 8, (), ()), {}, {})).output == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("cpu", ["float('nan')", "float('inf')", "-1.0", "'1'", "None"])
async def test_a_false_cpu_time_fails_the_run(runner: TaskRunner, tmp_path: Path, cpu: str) -> None:
    """It is an app's figure: a number that is none, or negative, would spread in its sums."""
    main = f"""\
def execute(ctx, x):
    run = type(ctx).escalate.__globals__
    run["_cpu_s"] = lambda: x["position"] and Time()
class Time:
    def __rsub__(self, _): return {cpu}
    def __sub__(self, _): return {cpu}
"""
    files, manifest = laid_out(tmp_path / "task", main)
    with pytest.raises(TaskOutputError, match="cpu_s is"):
        await runner.run(files, manifest, TRIGGER, {}, {})


# What is not a dict answers the question for its parts in its own way: an array with an IndexError.
@pytest.mark.asyncio
@pytest.mark.parametrize("result", ["np.zeros(3)", "[1]", "'log'", "5", "None", "{'log': np.zeros(3)}"])
async def test_a_run_whose_runtime_returns_something_else_fails(
    runner: TaskRunner, tmp_path: Path, result: str
) -> None:
    main = f"""\
import walle.np as np
def execute(ctx, x):
    type(ctx).escalate.__globals__["_run_phases"] = lambda *given: {result}
"""
    files, manifest = laid_out(tmp_path / "task", main)
    await runner.run(files, manifest, TRIGGER, {}, {})
    with pytest.raises(TaskOutputError, match="shop/ipv v1 returned a"):
        await runner.run(files, manifest, TRIGGER, {}, {})


@pytest.mark.asyncio
async def test_concurrent_failing_runs_of_one_vm_each_get_their_own_log(runner: TaskRunner, tmp_path: Path) -> None:
    main = """\
def execute(ctx, x):
    ctx.log(f"run {x['position']}")
    print("end of", x["position"], end="")
    if x["position"] % 3:
        raise ValueError(x["position"])
"""
    files, manifest = laid_out(tmp_path / "task", main)
    await runner.load(files, manifest)
    logs: dict[int, list[LogLine]] = {}

    async def run(position: int) -> TaskOutput:
        trigger = Trigger(EVENT, position, (), ())
        return await runner.run(
            files, manifest, trigger, {}, {}, on_log=lambda lines: logs.update({position: [*lines]})
        )

    results = await asyncio.gather(*(run(position) for position in range(20)), return_exceptions=True)
    assert [isinstance(result, TaskError) for result in results] == [position % 3 > 0 for position in range(20)]
    assert logs == {n: [LogLine("info", f"run {n}"), LogLine("info", f"end of {n}")] for n in range(20)}


@pytest.mark.asyncio
async def test_a_failed_runs_log_is_taken_before_another_task_gets_the_vm(runner: TaskRunner, tmp_path: Path) -> None:
    main = "def execute(ctx, x):\n    ctx.log(x['position'])\n    raise ValueError\n"
    versions = [laid_out(tmp_path / name, main) for name in "ab"]
    logs: list[LogLine] = []

    async def run(position: int) -> None:
        trigger = Trigger(EVENT, position, (), ())
        with pytest.raises(TaskError):
            await runner.run(*versions[position % 2], trigger, {}, {}, on_log=logs.extend)

    await asyncio.gather(*(run(position) for position in range(6)))
    assert sorted(logs) == [LogLine("info", str(position)) for position in range(6)]


@pytest.mark.asyncio
async def test_no_log_is_taken_from_an_abandoned_vm(
    runner: TaskRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = "def execute(ctx, x):\n    ctx.log('before')\n    sum(range(10**8))\n"  # one call in C
    files, manifest = laid_out(tmp_path / "task", main, CONFIG + b"[limits]\ndeadline_ms = 60\n")
    created: list[str] = []
    create = VMPool._create_vm

    def count(pool: VMPool, entry: Any, task: TaskLike) -> VM:
        created.append(entry.files.name)
        return create(pool, entry, task)

    monkeypatch.setattr(VMPool, "_create_vm", count)
    logs: list[object] = []
    with pytest.raises(DeadlineExceeded):
        await runner.run(files, manifest, TRIGGER, {}, {}, on_log=logs.append)
    assert (len(created), logs) == (1, [])


@pytest.mark.asyncio
async def test_after_close_a_run_is_refused(tmp_path: Path) -> None:
    runner = TaskRunner(1)
    files, manifest = laid_out(tmp_path / "task", "def execute(ctx, x):\n    return 1\n")
    await runner.close()
    with pytest.raises(VMClosedError):
        await runner.run(files, manifest, TRIGGER, {}, {})


@pytest.mark.asyncio
async def test_resources_and_models_larger_than_a_tasks_memory_work(tmp_path: Path, runner: TaskRunner) -> None:
    main = """
def execute(ctx, x):
    row = ctx.session("big").run({"index": [8191]})["row"]
    return [bytes(ctx.resource("a/b.bin")), len(ctx.resource("empty")), row[0, 1023].item()]
"""
    folder, manifest = laid_out(tmp_path / "task", main, CONFIG + b"[limits]\nmemory_mb = 16\ndeadline_ms = 20000\n")
    (folder / "resources" / "a").mkdir(parents=True)
    (folder / "resources" / "a" / "b.bin").write_bytes(b"abc")
    (folder / "resources" / "empty").write_bytes(b"")
    graph = GraphBuilder("big")
    table = graph.raw("table", "float32", (8192, 1024), struct.pack("<f", 7.5) * (8192 * 1024))  # 32 MB
    graph.output("row", graph.op("Gather", [table, graph.input("index", (1,), "int64")]))
    graph.save(folder / "resources" / "big.walle")
    output = await runner.run(folder, manifest, TRIGGER, {}, {})
    assert output.output == [b"abc", 0, 7.5]

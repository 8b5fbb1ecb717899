"""Calls of a task version in its VM, and the errors for one that returns a wrong answer."""

import asyncio
import dataclasses
import os
import signal
import struct
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.sim.slow_model import slow_model
from tests.sim.tasks import task_version
from tests.sim.vm_hosts import CRASHES
from walle.deploy.cloud.bundle import build_bundle, unpack
from walle.deploy.signing import Signer
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Session
from walle.engine_ext.vm.host import NextHost, VmHost
from walle.engine_ext.vm.loop_calls import DeadlineExceeded, TaskError, VMClosedError
from walle.engine_ext.vm.pool import MAX_STRIKES, TaskQuarantined, VMPool, _Record
from walle.engine_ext.vm.sources import TaskLike
from walle.engine_ext.vm.vm import VM
from walle.errors import VMError
from walle.pipeline.events import MAX_CONTENTS_DEPTH, Event
from walle.pipeline.store import FeatureStore
from walle.pipeline.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.task_queue import Trigger
from walle.plain import decode
from walle.protocol import Manifest, TriggerCondition
from walle.task_log import LogLine
from walle.task_runner import PhasePlaceError, TaskOutputError, TaskRunner, deadline_s

CONFIG = b'[task]\nname = "ipv"\n[trigger]\nsequence = ["page_exit"]\n'
EVENT = Event("page_exit", "item/1", 5, {"n": 1})
TRIGGER = Trigger(EVENT, 7, (Event("page_enter", "item/1", 4, {}), EVENT), (EVENT,))


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


def laid_out(folder: Path, main: str, config: bytes = CONFIG, **files: bytes) -> tuple[Path, Manifest]:
    """Lay out the bundle of a version; `slow__walle` is the file resources/slow.walle."""
    resources = {f"resources/{name.replace('__', '.')}": data for name, data in files.items()}
    entries = "".join(f'"{path}" = "shared"\n' for path in resources)
    config += f"[files]\n{entries}".encode() if resources else b""
    tree = {"main.py": main.encode(), "task.toml": config, **resources}
    bundle = build_bundle(task_version(tree), Signer.generate())
    unpack(bundle.manifest, bundle.blobs, folder)
    return folder, bundle.manifest


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
        for visit in range(20):
            for kind in ("page_enter", "page_exit"):
                await engine.on_event(Event(kind, f"item/{visit}", visit, {}))
            while len(ended) <= visit:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert ended == [("good", True)] * 20  # all within the first run of the other
        while len(ended) == 20:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert ended[20] == ("hangs", False)
        assert len(await store.query("good")) == 20
        await engine.close()
    await runner.close()


@pytest.mark.asyncio
async def test_a_run_takes_the_deepest_event_and_knows_whether_its_visit_is_whole(
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
    assert output.puts == [("shop/ipv/side", ["d0", 2])]
    assert output.local == [("shop/ipv/kept", 1)]


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
    ["'slow'", "'slow.walle'", "''.join(['sl', 'ow'])"],
    ids=["opened when it is loaded", "by its file's name", "opened in its run"],
)
@pytest.mark.parametrize("is_loaded", [True, False], ids=["loaded", "not loaded"])
async def test_a_model_whose_loading_exceeds_the_deadline_fails_no_run(
    runner: TaskRunner, tmp_path: Path, name: str, is_loaded: bool
) -> None:
    main = f"def execute(ctx, x):\n    return ctx.session({name}).run({{'x': [[0.0] * 4]}})['y'].tolist()\n"
    model = slow_model()
    began = time.monotonic()
    Session(model)
    assert time.monotonic() - began > 0.15  # more than the deadline below
    files, manifest = laid_out(tmp_path / "a", main, CONFIG + b"[limits]\ndeadline_ms = 100\n", slow__walle=model)
    if is_loaded:
        await runner.load(files, manifest)
    for _ in range(2):
        assert (await runner.run(files, manifest, TRIGGER, {}, {})).output == [[0.0] * 4]
    other = laid_out(tmp_path / "b", "def execute(ctx, x):\n    return 1\n")
    await runner.run(*other, TRIGGER, {}, {})  # takes the only VM
    assert (await runner.run(files, manifest, TRIGGER, {}, {})).output == [[0.0] * 4]


@pytest.mark.asyncio
async def test_after_the_loading_of_a_model_the_deadline_goes_on(runner: TaskRunner, tmp_path: Path) -> None:
    main = "def execute(ctx, x):\n    ctx.session(''.join(['sl', 'ow']))\n    while True:\n        pass\n"
    config = CONFIG + b"[limits]\ndeadline_ms = 100\n"
    files, manifest = laid_out(tmp_path / "task", main, config, slow__walle=slow_model())
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await runner.run(files, manifest, TRIGGER, {}, {})
    assert time.monotonic() - began < 10


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
async def test_a_phase_runs_by_itself_where_it_may(runner: TaskRunner, tmp_path: Path) -> None:
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
    main = "def execute(ctx, x):\n    ctx.log('before')\n    sum(range(10**9))\n"  # one call in C
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

    def start_vm(self: NextHost, name: str, *args: Any, **options: Any) -> Any:
        warmed.append((name, host.report().restarts))
        return start(self, name, *args, **options)

    monkeypatch.setattr(NextHost, "start_vm", start_vm)
    with pytest.raises(DeadlineExceeded):
        await runner.run(*tasks["stuck"], TRIGGER, {}, {})
    assert (await runner.run(*tasks["stuck"], LATER, {}, {})).output == 8
    assert warmed == [("shop/b v1", 0), ("shop/a v1", 0)]
    assert host.report().restarts == 1
    await runner.close()
    host.close()


# Else a load, which runs none of its phases, would count as a use without harm, in a process that ends at once.
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
    runner._pool._keep("shop/a", record)  # as where the host ended while the task ran
    created.clear()
    with pytest.raises(DeadlineExceeded):
        await runner.run(*tasks["stuck"], TRIGGER, {}, {})
    assert (await runner.run(*tasks["stuck"], LATER, {}, {})).output == 8
    assert created == ["b", "stuck"]
    assert record.alone_runs == 2
    await runner.close()
    host.close()


@pytest.mark.asyncio
async def test_runs_go_on_beside_a_task_that_is_stuck_until_it_is_quarantined(
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

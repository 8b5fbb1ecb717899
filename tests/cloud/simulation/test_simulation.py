"""The simulation before a release: versions that pass, and the reports of those that fail."""

import asyncio
import io
import itertools
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy
import pytest
import pytest_asyncio

from tests.sim.processes import alive
from tests.sim.shop_cloud import no_task_left
from tests.sim.visits import TASK_CONFIG, event_at
from tests.sim.vm_hosts import CRASHES
from walle import cv
from walle.cloud.simulation.isolation import probe_layers
from walle.cloud.simulation.simulation import DEVICE_KINDS, SimulatedRun, Simulator, _Simulation
from walle.deploy.fleet.device_group import DeviceGroup, GroupResult
from walle.engine_ext.vm.host import VmHost
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.events.event_files import EventFiles
from walle.pipeline.features.topics import MAX_TOPICS
from walle.pipeline.trigger.stream_engine import StreamEngine
from walle.task.format.bundle import Bundle, TaskVersion, build_bundle
from walle.task.format.tree import TaskTree
from walle.task.run.log import LogLine
from walle.trust.signing import Signer

VISITS = 4
LOG = b"".join(json.dumps(event_at(position).to_dict()).encode() + b"\n" for position in range(VISITS * 3))
RUNS = VISITS * len(DEVICE_KINDS)


def bundle(main: str, config: str = TASK_CONFIG, version: str = "v1", more: dict[str, bytes] | None = None) -> Bundle:
    files = {"task.toml": config.encode(), "main.py": main.encode(), **(more or {})}
    return build_bundle(
        TaskVersion.parse(TaskTree(scenario="shop", task="count", version=version, commit="c" * 40, files=files)),
        Signer.generate(),
    )


@pytest_asyncio.fixture
async def simulator() -> AsyncIterator[Simulator]:
    with no_task_left():
        yield Simulator(1)


@pytest.mark.asyncio
async def test_a_task_that_trains_takes_its_first_steps_after_the_events(simulator: Simulator) -> None:
    config = TASK_CONFIG + "[training]\nwhen = { charging = true }\n"
    main = """\
def execute(ctx, trigger):
    ctx.store.put("example", trigger["position"], upload=False)

def train(ctx):
    done = 0 if ctx.checkpoint is None else ctx.checkpoint["done"]
    ctx.checkpoint = {"done": done + 1}
    if len(ctx.store.query("example")) != 4 or (done == 1 and ctx.device["id"] != ""):
        raise ValueError(f"step {done + 1}")
    return True
"""
    result = await simulator.run(bundle(main, config), LOG)
    assert (result.ok, result.runs, result.failures) == (False, RUNS, len(DEVICE_KINDS))
    assert "ValueError: step 2" in result.first_error
    steps: list[SimulatedRun] = []
    main = main.replace('ctx.device["id"] != ""', "False")
    result = await Simulator(1, on_run=steps.append).run(bundle(main, config), LOG)
    assert result.ok
    trained = [one for one in steps if one.trigger.event.event_id == "train"]
    assert len(trained) == 3 * len(DEVICE_KINDS)


@pytest.mark.asyncio
async def test_it_plays_the_events_on_each_kind_of_device(simulator: Simulator) -> None:
    main = """\
def execute(ctx, trigger):
    assert len(ctx.events) == 3
    before = ctx.store.query("shop/count")
    assert before == list(range(trigger["event"]["contents"]["n"])), before
    assert ctx.device["os"] in ("android", "ios")
    return len(before)
"""
    result = await simulator.run(bundle(main), LOG)
    assert (result.ok, result.runs, result.failures, result.first_error) == (True, RUNS, 0, "")


@pytest.mark.asyncio
async def test_queries_have_the_bounds_of_a_device(simulator: Simulator) -> None:
    main = """\
def execute(ctx, trigger):
    assert ctx.store.query("shop/count", limit=-1) == []
    try:
        ctx.store.query("shop/count", skip="1")
    except Exception as error:
        assert "skip of a query must be int, is str" in str(error), error
    else:
        raise AssertionError("no error")
    return 1
"""
    result = await simulator.run(bundle(main), LOG)
    assert (result.ok, result.runs, result.first_error) == (True, RUNS, "")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("return {'prices': [0, {1: 2}]}", r"output\.prices\[1\] has the key 1 of type int"),
        ("return {'n': 10**400}", r"output\.n is an int of more than 64 bits"),
        ("ctx.store.put('a', 1); ctx.store.put('b', {'a': {3}})", r"puts\[1\]\.payload\.a is of type set"),
        ("ctx.store.put('a', {(1, 2): 3}, upload=False)", r"local\[0\]\.payload has the key \(1, 2\)"),
    ],
)
async def test_an_output_that_is_not_plain_data_fails_with_its_place(
    simulator: Simulator, body: str, place: str
) -> None:
    result = await simulator.run(bundle(f"def execute(ctx, trigger):\n    {body}\n"), LOG)
    assert not result.ok
    assert re.search(rf"TypeError: {place}", result.first_error), result.first_error


@pytest.mark.asyncio
async def test_each_kind_of_device_has_a_separate_state(simulator: Simulator) -> None:
    main = """\
def execute(ctx, trigger):
    assert ctx.state.get("n", 0) == trigger["event"]["contents"]["n"], ctx.state
    ctx.state = {"n": ctx.state.get("n", 0) + 1}
    return ctx.state
"""
    result = await simulator.run(bundle(main, TASK_CONFIG + "[state]\n"), LOG)
    assert (result.ok, result.runs, result.first_error) == (True, RUNS, "")


@pytest.mark.asyncio
async def test_a_task_asks_for_older_events(simulator: Simulator) -> None:
    main = "def execute(ctx, trigger):\n    assert len(ctx.history()) == trigger['position'] + 1\n"
    result = await simulator.run(bundle(main, TASK_CONFIG + "[history]\n"), LOG)
    assert (result.ok, result.runs, result.first_error) == (True, RUNS, "")


@pytest.mark.asyncio
async def test_one_failure_on_one_kind_of_device_fails_the_version(simulator: Simulator) -> None:
    main = """\
def execute(ctx, trigger):
    if ctx.device["os"] == "ios" and trigger["event"]["contents"]["n"] == 2:
        raise ValueError("no such screen")
"""
    result = await simulator.run(bundle(main), LOG)
    assert (result.ok, result.runs, result.failures) == (False, RUNS, 1)
    assert "no such screen" in result.first_error


@pytest.mark.asyncio
async def test_a_task_that_puts_more_topics_than_a_device_takes_fails(simulator: Simulator) -> None:
    main = """\
def execute(ctx, trigger):
    for number in range(40):
        ctx.store.put(f"t{40 * trigger['event']['contents']['n'] + number}", 1)
"""
    result = await simulator.run(bundle(main), LOG)
    assert (result.ok, result.runs, result.failures) == (False, RUNS, 2 * len(DEVICE_KINDS))  # 40 topics in each run
    assert f"is beyond the {MAX_TOPICS} that a task may put" in result.first_error


@pytest.mark.asyncio
async def test_an_output_that_cannot_be_stored_is_a_failure(simulator: Simulator) -> None:
    result = await simulator.run(bundle("def execute(ctx, x):\n    return 1 << 70\n"), LOG)
    assert not result.ok
    assert result.failures == RUNS


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("main", "message"),
    [
        ("__import__('socket')\n\ndef execute(ctx, x):\n    pass\n", "socket"),
        ("raise ValueError('at import')\n", "at import"),
        ("def other():\n    pass\n", "has none of preprocess, execute, postprocess"),
        ("while True:\n    pass\n\ndef execute(ctx, x):\n    pass\n", "ran longer than 2 s"),
    ],
    ids=["forbidden", "raises", "no-phase", "never-loads"],
)
async def test_a_version_that_does_not_load_fails_with_or_without_events(
    simulator: Simulator, main: str, message: str
) -> None:
    result = await simulator.run(bundle(main), None)
    assert (result.ok, result.runs, result.failures) == (False, 0, 1)
    assert message in result.first_error


@pytest.mark.asyncio
async def test_log_lines_of_a_simulation_have_their_device_and_event() -> None:
    main = "print('loaded')\ndef execute(ctx, trigger):\n    ctx.log.error(ctx.device['id'])\n    assert 0\n"
    got: list[tuple[str, int | None, str, str]] = []

    def on_log(device: str, position: int | None, lines: Sequence[LogLine]) -> None:
        got.extend((device, position, *line) for line in lines)

    simulator = Simulator(1, on_log=on_log)
    result = await simulator.run(bundle(main), b"".join(LOG.splitlines(keepends=True)[:6]))
    assert (result.runs, result.failures) == (4, 4)
    assert result.first_error.endswith("(shop/count/v1/main.py:4 in execute)")
    assert got == [
        ("", None, "info", "loaded"),
        *((kind["id"], position, "error", kind["id"]) for kind in DEVICE_KINDS for position in (2, 5)),
    ]


@pytest.mark.asyncio
async def test_each_run_is_handed_over_with_its_output_or_failure_and_the_time_of_its_phases() -> None:
    main = """\
def preprocess(ctx, trigger):
    return trigger["event"]["contents"]["n"]

def execute(ctx, n):
    if n == 1:
        return object()
    for _ in range(100_000):
        pass
    return n
"""
    got: list[SimulatedRun] = []
    simulator = Simulator(1, on_run=got.append)
    result = await simulator.run(bundle(main), LOG, DEVICE_KINDS[:1])
    assert (result.ok, result.runs, result.failures, result.events) == (False, VISITS, 1, VISITS * 3)
    assert [run.trigger.position for run in got] == [2, 5, 8, 11]
    good = [run.output for run in got if run.output is not None]
    assert [output.output for output in good] == [0, 2, 3]
    assert all(output.phase_ms.keys() == {"preprocess", "execute"} for output in good)
    assert all(output.phase_ms["execute"] > output.phase_ms["preprocess"] > 0 for output in good)
    (failure,) = [run.failure for run in got if run.failure is not None]
    assert (failure.place, failure.error_type) == ("shop/count/v1/main.py:4 in execute", "TypeError")


def stateful(*users: str) -> tuple[Bundle, bytes]:
    """Return a task that counts its runs, and the events of users that take turns, three of each."""
    main = 'def execute(ctx, trigger):\n    ctx.state["n"] = ctx.state.get("n", 0) + 1\n    '
    main += 'return [ctx.device["id"], ctx.state["n"], len(ctx.recent), len(ctx.history())]\n'
    config = TASK_CONFIG.replace("page_exit", "tap").replace("[trigger]", "[trigger]\nwithout_visit = true")
    events = [
        {"stream": user, "event_id": "tap", "page_id": "", "ts_ms": 1000 + 10 * number, "contents": {}}
        for number in range(3)
        for user in users
    ]
    lines = "".join(json.dumps(event) + "\n" for event in events).encode()
    return bundle(main, config + "[state]\nversion = 1\n[history]\ndays = 1\n"), lines


@pytest.mark.asyncio
async def test_each_user_of_the_events_has_a_separate_device() -> None:
    got: list[SimulatedRun] = []
    task, events = stateful("phone-a", "phone-b")
    result = await Simulator(1, on_run=got.append).run(task, events, DEVICE_KINDS[:1])
    assert (result.ok, result.users, result.other_users, result.events) == (True, 2, 0, 6), result.first_error
    assert [(run.user, run.device, run.trigger.position) for run in got] == [
        *(("phone-a", "simulated-low-1", position) for position in (0, 2, 4)),
        *(("phone-b", "simulated-low-2", position) for position in (1, 3, 5)),
    ]
    outputs = [run.output.output for run in got if run.output is not None]
    assert outputs == [[f"simulated-low-{user}", n, n, n] for user in (1, 2) for n in (1, 2, 3)]


@pytest.mark.asyncio
async def test_users_beyond_the_bound_are_counted_and_not_played(simulator: Simulator) -> None:
    task, events = stateful("a", "b", "c")
    result = await simulator.run(task, events, DEVICE_KINDS[:1], users=2)
    assert (result.ok, result.runs, result.users, result.other_users, result.events) == (True, 6, 2, 1, 6)


@pytest.mark.asyncio
async def test_a_fault_names_the_user_on_whose_device_it_came_first(simulator: Simulator) -> None:
    main = 'def execute(ctx, trigger):\n    assert ctx.device["id"] != "simulated-high-2", "the second"\n'
    config = TASK_CONFIG.replace("page_exit", "tap").replace("[trigger]", "[trigger]\nwithout_visit = true")
    result = await simulator.run(bundle(main, config), stateful("a", "b")[1], DEVICE_KINDS)
    (fault,) = result.faults
    assert (fault.count, fault.devices, fault.event["user"], fault.event["position"]) == (
        3, ("simulated-high-2",), "b", 1,
    )  # fmt: skip
    assert fault.device == {**DEVICE_KINDS[1], "id": "simulated-high-2"}


@pytest.mark.asyncio
async def test_events_that_a_device_refuses_are_named_and_the_others_played(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = StreamEngine.on_event

    async def refusing(
        self: StreamEngine, event: Event, position: int | None = None, *, can_wait: bool = False
    ) -> None:
        if position == 4:
            raise EventError("contents", "too much")
        await taken(self, event, position, can_wait=can_wait)

    monkeypatch.setattr(StreamEngine, "on_event", refusing)
    result = await simulator.run(bundle("def execute(ctx, x):\n    return 1\n"), LOG)
    assert (result.ok, result.runs, result.refused) == (True, RUNS, ((4, "contents: too much"),))


@pytest.mark.asyncio
async def test_a_simulation_that_stops_early_says_so(simulator: Simulator) -> None:
    log = b"".join(json.dumps(event_at(position).to_dict()).encode() + b"\n" for position in range(60))
    result = await simulator.run(bundle("def execute(ctx, x):\n    return 1 / 0\n"), log)
    assert (result.ok, result.failures, result.events, result.is_cut) == (False, 10, 60, True)


@pytest.mark.asyncio
async def test_a_release_s_simulation_logs_into_the_cloud_s_log(
    simulator: Simulator, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "walle.task"):
        await simulator.run(bundle("def execute(ctx, x):\n    print('in the cloud')\n"), LOG)
    assert [record.message for record in caplog.records] == ["simulation: shop/count v1: in the cloud"] * RUNS


@pytest.mark.asyncio
async def test_a_version_without_events_passes_by_loading(simulator: Simulator) -> None:
    result = await simulator.run(bundle("def execute(ctx, x):\n    raise ValueError\n"), None)
    assert (result.ok, result.runs, result.failures) == (True, 0, 0)


@pytest.mark.asyncio
async def test_events_that_trigger_nothing_fail_it_and_broken_lines_are_named(simulator: Simulator) -> None:
    events = b"".join(LOG.splitlines(keepends=True)[:2]) + b"{]\n"
    result = await simulator.run(bundle("def execute(ctx, x):\n    pass\n"), events)
    assert (result.ok, result.runs) == (False, 0)
    assert "none of 2 simulated events started the task; the events that start it are page_exit" in result.first_error
    assert "1 lines were skipped, the first is line 3: not JSON" in result.first_error


@pytest.mark.asyncio
async def test_time_passes_after_the_last_event_until_each_timer_was_due(simulator: Simulator) -> None:
    config = TASK_CONFIG.replace('sequence = ["page_exit"]', "idle_s = 1800")
    assert config != TASK_CONFIG
    main = """\
def execute(ctx, trigger):
    return [trigger["event"]["event_id"], trigger["event"]["ts_ms"] - ctx.events[-1].ts_ms, len(ctx.events)]
"""
    found: list[SimulatedRun] = []
    simulation = Simulator(1, on_run=found.append)
    enter = b"".join(LOG.splitlines(keepends=True)[:2])
    result = await simulation.run(bundle(main, config), enter)
    assert (result.ok, result.first_error) == (True, "")
    outputs = [one.output.output for one in found if one.output is not None]
    assert outputs == [["@idle", 1_800_000, 2]] * len(DEVICE_KINDS)


@pytest.mark.asyncio
async def test_a_simulation_runs_escalated_phases_as_the_cloud_would(simulator: Simulator) -> None:
    main = """\
def execute(ctx, x):
    if isinstance(x, dict):
        return ctx.escalate((1, 2))
    assert x == [1, 2], x
    return sum(x)


def postprocess(ctx, y):
    assert y == 3
    return y
"""
    result = await simulator.run(bundle(main, TASK_CONFIG + '[phases]\nexecute = "auto"\n'), LOG)
    assert (result.ok, result.runs) == (True, RUNS), result
    result = await simulator.run(bundle(main), LOG)
    assert not result.ok
    assert "does not allow 'execute' on the cloud" in result.first_error


@pytest.mark.asyncio
async def test_execute_batch_is_tried_and_files_of_the_cloud_are_there_only(simulator: Simulator) -> None:
    main = """\
def execute(ctx, x):
    assert ctx.place == "device", "a batch runs in execute_batch"
    try:
        ctx.resource("big.bin")
    except Exception as error:
        assert "only the cloud has resources/big.bin" in str(error)
        return ctx.escalate(1)


def execute_batch(ctx, payloads):
    assert [device["id"][:9] for device in ctx.devices] == ["simulated"]
    return [RESULT for x in payloads]


def postprocess(ctx, y):
    assert y == 4, y
"""
    config = (
        TASK_CONFIG + '[phases]\nexecute = "auto"\n[files]\n"resources/big.bin" = "cloud"\n[cloud]\nmax_batch = 2\n'
    )
    files = {"resources/big.bin": b"1234"}
    good = main.replace("RESULT", 'ctx.resource("big.bin").nbytes')
    result = await simulator.run(bundle(good, config, more=files), LOG)
    assert (result.ok, result.runs) == (True, RUNS), result
    result = await simulator.run(bundle(main.replace("RESULT", 'ValueError("no good")'), config, more=files), LOG)
    assert not result.ok
    assert "EscalationError: failed: task shop/count v1: ValueError: no good" in result.first_error


@pytest.mark.asyncio
async def test_an_endless_loop_is_stopped_by_the_deadline_and_not_played_to_the_end(simulator: Simulator) -> None:
    main = "def execute(ctx, x):\n    while True:\n        pass\n"
    log = b"".join(json.dumps(event_at(position).to_dict()).encode() + b"\n" for position in range(300))
    began_s = time.monotonic()
    result = await simulator.run(bundle(main, TASK_CONFIG + "[limits]\ndeadline_ms = 40\n"), log)
    assert not result.ok
    assert (result.runs, result.failures) == (10, 10)
    assert "ran longer than 0.04 s and was stopped at" in result.first_error
    assert time.monotonic() - began_s < 15
    result = await simulator.run(bundle("def execute(ctx, x):\n    return 1\n"), LOG)
    assert result.ok  # the VMs are still good for others


@pytest.mark.asyncio
async def test_a_simulation_that_is_cancelled_ends(simulator: Simulator) -> None:
    main = "def execute(ctx, x):\n    while True:\n        pass\n"
    config = TASK_CONFIG + "[limits]\ndeadline_ms = 1000\n"  # the next simulation waits for the run's end
    running = asyncio.create_task(simulator.run(bundle(main, config), LOG))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(running, 0.5)
    result = await simulator.run(bundle("def execute(ctx, x):\n    return 1\n"), LOG)
    assert result.ok


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_simulation_that_is_cancelled_while_it_ends_leaves_no_process() -> None:
    hosts: list[VmHost] = []

    def new_host() -> VmHost:
        hosts.append(VmHost())
        return hosts[-1]

    main = "def execute(ctx, x):\n    while True:\n        pass\n"
    config = TASK_CONFIG + "[limits]\ndeadline_ms = 10_000\n"
    simulation = _Simulation(bundle(main, config), EventFiles.of({}), new_host, None, None, 1)
    running = asyncio.create_task(simulation.run(LOG, DEVICE_KINDS[:1], (), 60.0))
    async with asyncio.timeout(20):
        while not hosts[0].report().pid:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    pid = hosts[0].report().pid
    running.cancel()
    await asyncio.wait([running])
    closing = asyncio.create_task(simulation.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert alive([pid]) == []


READS = """\
def read(path):
    queue = [object]
    for one in queue:
        queue += type.__subclasses__(one)
        if one.__name__ == "FileIO":
            return one(path).read(1000)
    return None


def execute(ctx, trigger):
    return repr([read(path) for path in {paths}])
"""


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_task_reads_neither_the_clouds_files_nor_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALLE_TEST_SECRET", "the cloud's own")
    key = tmp_path / "key"
    key.write_text("the cloud's own")
    runs: list[SimulatedRun] = []
    simulator, layers = Simulator(1, on_run=runs.append), probe_layers()
    for paths in ([str(key)], ["/proc/self/environ"], [f"/proc/{os.getpid()}/environ"]):
        result = await simulator.run(bundle(READS.replace("{paths}", repr(paths))), LOG)
        if layers["landlock"]:
            assert not result.ok
            assert "PermissionError" in result.first_error
        elif paths[0] == "/proc/self/environ":  # no kernel layer: the task may read what its user may
            assert "WALLE_TEST_SECRET" not in repr([run.output for run in runs])


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_a_task_that_crashes_its_interpreter_fails_its_version_and_nothing_else() -> None:
    main = CRASHES + "def execute(ctx, trigger): run()\n"
    simulator = Simulator(1)
    result = await simulator.run(bundle(main), LOG)
    assert not result.ok
    assert "VM host" in result.first_error
    honest = await simulator.run(bundle("def execute(ctx, trigger):\n    return 1\n", version="v2"), LOG)
    assert (honest.ok, honest.runs) == (True, RUNS), honest


HOSTILE = """\
import string

def execute(ctx, trigger):
    string.Template.__new__ = lambda *args, **options: None
    del string.Template.__new__
    return 1
"""

HONEST = """\
import dataclasses, json, random, string, textwrap

@dataclasses.dataclass
class Visit:
    page: str

def execute(ctx, trigger):
    text = string.Template("$page").substitute(page=Visit("home").page)
    return textwrap.fill(json.dumps([text, random.Random(1).random()]), 20)
"""


@pytest.mark.parametrize("is_hosted", [pytest.param(True, marks=pytest.mark.vm_host), False])
@pytest.mark.asyncio
async def test_a_version_that_poisons_its_interpreter_fails_alone_and_is_named(
    is_hosted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    simulator = Simulator(1, vm_host=is_hosted)
    hostile = await simulator.run(bundle(HOSTILE), LOG)
    assert not hostile.ok
    assert re.search(r"^it changed its interpreter, .*string\.Template has other slots in C", hostile.first_error), (
        hostile.first_error
    )
    warned = [record.getMessage() for record in caplog.records if record.name.endswith(".discards")]
    assert len(warned) == 1
    assert warned[0].startswith("shop/count v1 changed its interpreter, which was discarded (1 so far, ")
    for number in range(5):
        honest = await simulator.run(bundle(HONEST, version=f"v{number + 2}"), LOG)
        assert (honest.ok, honest.runs, honest.first_error) == (True, RUNS, "")


@pytest.mark.vm_host
@pytest.mark.asyncio
async def test_each_simulation_has_a_separate_process_and_a_scenario_one_at_a_time() -> None:
    main = """\
import json

def execute(ctx, trigger):
    return json.dumps.__globals__["__builtins__"]["__import__"]("posix").getpid()
"""
    runs: list[SimulatedRun] = []
    simulator = Simulator(2, on_run=runs.append)
    await asyncio.gather(*(simulator.run(bundle(main), LOG) for _ in range(3)))
    processes = [run.output.output for run in runs if run.output]
    assert [len(list(found)) for _, found in itertools.groupby(processes)] == [RUNS] * 3  # none overlaps another
    assert len(set(processes)) == 3


@pytest.mark.asyncio
async def test_events_name_images_and_arrays_beside_them(simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_here(*_: object, **__: object) -> None:
        raise AssertionError("an image of a stranger is decoded in the cloud's own process")

    monkeypatch.setattr("walle.pipeline.events.event_files.image_files.decode", not_here)
    main = """\
def execute(ctx, trigger):
    contents = trigger["event"]["contents"]
    assert [event.contents["image"] for event in ctx.recent] == [None] * len(ctx.recent)
    return {"mean": float(contents["image"].astype("float32").mean()), "samples": contents["samples"].tolist()}
"""
    config = TASK_CONFIG.replace("page_exit", "frame") + '[simulation]\nevents = "simulation/events.jsonl"\n'
    image = numpy.full((20, 30, 3), 7, "uint8")
    samples = io.BytesIO()
    numpy.save(samples, numpy.array([0.5, -1], "float32"))
    names = ["frames/1.png", "frames/missing.png", "../main.py", "frames/1.png"]
    lines = [
        {
            "event_id": "frame",
            "page_id": "",
            "ts_ms": number,
            "contents": {"image": {"$image": name}, "samples": {"$npy": "s.npy"}, "n": number},
        }
        for number, name in enumerate(names)
    ]
    files = {
        "task.toml": config.encode(),
        "main.py": main.encode(),
        "simulation/events.jsonl": b"".join(json.dumps(line).encode() + b"\n" for line in lines),
        "simulation/frames/1.png": bytes(memoryview(cv.imencode(".png", image)[1])),
        "simulation/s.npy": samples.getvalue(),
    }
    tree = TaskTree(scenario="shop", task="count", version="v1", commit="c" * 40, files=files)
    version = TaskVersion.parse(tree)
    got: list[SimulatedRun] = []
    simulator = Simulator(1, on_run=got.append)
    bundle = build_bundle(version, Signer.generate())
    named = EventFiles.of(version.simulation_files)
    result = await simulator.run(bundle, version.simulation_events, files=named)
    assert (result.ok, result.runs, result.events) == (True, 2 * len(DEVICE_KINDS), 4)
    assert [position for position, _ in result.refused] == [1, 2]
    assert result.refused[0][1].startswith("contents.image: file 'frames/missing.png' does not exist")
    assert result.refused[1][1] == "contents.image: '../main.py' is not a path below the folder of the events"
    assert [run.output.output for run in got if run.output] == [{"mean": 7.0, "samples": [0.5, -1.0]}] * 4
    assert not any(entry.path.startswith("simulation") for entry in bundle.manifest.files)  # no device pulls them


@pytest.mark.asyncio
async def test_exclusive_files_are_those_beside_the_events_and_a_missing_required_one_is_said(
    simulator: Simulator,
) -> None:
    config = TASK_CONFIG + '[[exclusive]]\nname = "a"\nmax_bytes = 9\n[[exclusive]]\nname = "b"\nrequired = false\n'
    main = """\
def execute(ctx, trigger):
    a, b = ctx.exclusive("a"), ctx.exclusive("b")
    assert (a, b) == (b"of the a", None), (a, b)
    assert ctx.exclusive("a") is a
"""
    made = bundle(main, config)
    result = await simulator.run(made, LOG, files=EventFiles.of({"exclusive/a": b"of the a"}))
    assert (result.ok, result.runs, result.first_error) == (True, RUNS, "")
    result = await simulator.run(made, LOG)
    assert "exclusive file 'a' is required: for the simulation, add one as exclusive/a" in result.first_error
    result = await simulator.run(made, LOG, files=EventFiles.of({"exclusive/a": bytes(10)}))
    assert "exclusive/a has 10 bytes, more than its max_bytes, 9" in result.first_error
    unlisted = bundle(main.replace('ctx.exclusive("b")', 'ctx.exclusive("c")'), config)
    result = await simulator.run(unlisted, LOG, files=EventFiles.of({"exclusive/a": b"of the a"}))
    assert "task.toml does not list 'c' under [[exclusive]]" in result.first_error


ANDROID = DeviceGroup(app_version="10.1", os="android", devices=70, attributes={"os": "android", "memory_mb": 512})
IOS = DeviceGroup(app_version="9.0", os="ios", devices=30)


@pytest.mark.asyncio
async def test_it_plays_the_events_on_a_device_of_each_group_that_a_release_is_for(simulator: Simulator) -> None:
    main = """\
def execute(ctx, trigger):
    if ctx.device["app_version"] == "10.1":
        assert (ctx.device["id"], ctx.device["memory_mb"]) == ("simulated-10.1-android", 512)
    return len(ctx.store.query("shop/count"))
"""
    result = await simulator.run(bundle(main), LOG, groups=[ANDROID, IOS])
    assert (result.ok, result.runs) == (True, RUNS + 2 * VISITS)
    assert result.groups == (
        GroupResult("10.1", "android", 70, VISITS, 0),
        GroupResult("9.0", "ios", 30, VISITS, 0),
    )


@pytest.mark.asyncio
async def test_a_version_that_fails_in_one_group_fails_and_names_it(simulator: Simulator) -> None:
    main = "def execute(ctx, trigger):\n    return 1 // (ctx.device['app_version'] != '9.0')\n"
    result = await simulator.run(bundle(main), LOG, groups=[ANDROID, IOS])
    assert (result.ok, result.failures) == (False, VISITS)
    assert result.groups[1] == GroupResult("9.0", "ios", 30, VISITS, VISITS)
    assert "for app 9.0 on ios, and not on other devices" in result.first_error
    everywhere = await simulator.run(bundle("def execute(ctx, trigger):\n    return 1 // 0\n"), LOG, groups=[IOS])
    assert "not on other devices" not in everywhere.first_error


@pytest.mark.asyncio
async def test_a_group_for_which_no_time_is_left_is_not_played(simulator: Simulator) -> None:
    main = "def execute(ctx, trigger):\n    return 1\n"
    result = await simulator.run(bundle(main), LOG, groups=[ANDROID], group_limit_s=0.0)
    assert (result.ok, result.runs) == (True, RUNS)
    assert result.groups == (GroupResult("10.1", "android", 70, played=False),)

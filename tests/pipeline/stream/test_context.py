# ruff: noqa: E501 -- rows of tables

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.sim.vm_task import in_fresh_interpreter, write_task
from walle.engine_ext import _core
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.vm.loop_calls import LimitExceeded
from walle.pipeline.events.event import Event
from walle.pipeline.stream import run_log
from walle.pipeline.stream.events import encode_events
from walle.vm import VM, DeadlineExceeded, TaskError

EVENTS = [
    Event("page_enter", "detail", 1_000, {}).to_dict(),
    Event("click", "detail", 1_500, {"item": "a"}).to_dict(),
    Event("click", "detail", 2_500, {"item": "b"}).to_dict(),
    Event("page_exit", "detail", 3_000, {}).to_dict(),
]
TASK = "shop/ipv"
TRIGGER = {"event": EVENTS[-1], "position": 3}

type Make = Callable[..., VM]


@pytest_asyncio.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    vms: list[VM] = []

    def one(main: str, resources: Mapping[str, bytes] | None = None) -> VM:
        (tmp_path / "resources").mkdir(exist_ok=True)
        for name, data in (resources or {}).items():
            (tmp_path / "resources" / name).write_bytes(data)
        vms.append(VM(write_task(tmp_path, main)))
        return vms[-1]

    yield one
    for vm in vms:
        vm.close()
        assert await vm.wait_closed()


async def run(vm: VM, **options: Any) -> Any:
    phases = options.pop("phases", None)
    return await vm.call(
        "walle.pipeline.stream.context:run", TASK, TRIGGER, EVENTS, {"os": "android"}, phases, **options
    )


@pytest.mark.asyncio
async def test_each_phase_gets_what_the_one_before_gave(make: Make) -> None:
    vm = make("""
        def preprocess(ctx, trigger):
            clicks = ctx.events.key_by("click")
            return {"items": [event.contents["item"] for event in clicks], "position": trigger["position"]}

        def execute(ctx, x):
            ctx.log(f"{len(x['items'])} items")
            return {**x, "first_second": len(ctx.events.time_window(1_000, 2_000))}

        def postprocess(ctx, y):
            ctx.store.put("clicks", {"items": y["items"]})
            ctx.store.put("visits", y["position"], upload=False)
            ctx.log.warning(ctx.phase)
            return {**y, "os": ctx.device["os"]}
    """)
    result = await run(vm)
    assert 0 < result.pop("cpu_s") < 5
    assert 0 < result.pop("run_ms") < 60_000
    assert result == {
        "output": {"items": ["a", "b"], "position": 3, "first_second": 2, "os": "android"},
        "puts": [("shop/ipv/clicks", {"items": ["a", "b"]})],
        "local": [("shop/ipv/visits", 3)],
        "log": [("info", "2 items"), ("warning", "postprocess")],
    }
    again = await run(vm)
    assert {**again, "cpu_s": 0, "run_ms": 0} == {
        **result,
        "cpu_s": 0,
        "run_ms": 0,
    }  # nothing of a run stays for the next


@pytest.mark.asyncio
async def test_any_phase_may_be_absent_but_not_all(make: Make) -> None:
    vm = make("def execute(ctx, x): return x['position']")
    assert (await run(vm))["output"] == 3
    assert await vm.call("walle.pipeline.stream.context:load") == {"phases": ["execute"], "log": []}
    with pytest.raises(TaskError, match="main has none of preprocess, execute, postprocess"):
        await run(make("x = 1"))


@pytest.mark.asyncio
async def test_escalation_hands_the_present_phase_to_the_cloud(make: Make) -> None:
    vm, cloud = (
        make("""
        def execute(ctx, x):
            if ctx.device.get("place") == "cloud":
                ctx.log("on the cloud")
                return x["n"] * 2
            return ctx.escalate({"n": 21})

        def postprocess(ctx, y):
            return y + 1
        """)
        for _ in range(2)
    )
    asked: list[Any] = []

    async def escalate(phase: str, payload: Any, timeout_ms: float | None, spent_ms: float) -> tuple[str, Any]:
        asked.append((phase, payload))
        answer = await cloud.call("walle.pipeline.stream.context:phase", TASK, phase, payload, {"place": "cloud"})
        assert answer["log"] == [("info", "on the cloud")]
        return "", answer["output"]

    assert (await run(vm, callbacks={"escalate": escalate}))["output"] == 43
    assert asked == [("execute", {"n": 21})]
    with pytest.raises(TaskError, match="EscalationError: failed: callback 'escalate' raised MissingCallback"):
        await run(vm)
    with pytest.raises(TaskError, match="no phase 'preprocess'"):
        await cloud.call("walle.pipeline.stream.context:phase", TASK, "preprocess", None, {})


@pytest.mark.asyncio
async def test_a_phase_placed_on_the_cloud_goes_there_at_once(make: Make) -> None:
    vm = make("""
        def preprocess(ctx, trigger): return 1
        def execute(ctx, x): raise ValueError("not here")
        def postprocess(ctx, y): return y
    """)
    callbacks = {"escalate": lambda phase, payload, timeout_ms, spent_ms: ("", [phase, payload])}
    phases = {"preprocess": "device", "execute": "cloud", "postprocess": "auto"}
    assert (await run(vm, phases=phases, callbacks=callbacks))["output"] == ["execute", 1]


@pytest.mark.asyncio
async def test_resources_are_mapped(make: Make) -> None:
    vm = make(
        """
        def execute(ctx, x):
            data = ctx.resource("table.bin")
            assert data is ctx.resource("table.bin") and data.readonly
            return bytes(data[:3]), len(data), len(ctx.resource("empty"))
        """,
        {"table.bin": b"abc" * 10_000, "empty": b""},
    )
    assert (await run(vm))["output"] == (b"abc", 30_000, 0)


@pytest.mark.asyncio
async def test_models_with_control_flow_are_models_too(make: Make) -> None:
    graph = GraphBuilder("found")
    graph.output("places", graph.op("NonZero", [graph.input("x", (4,))]))
    vm = make(
        """
        def execute(ctx, x):
            return ctx.session("found").run({"x": [0.0, 1.0, 0.0, 2.0]})["places"].tolist()
        """,
        {"found.walle": graph.to_bytes()},
    )
    assert (await run(vm))["output"] == [[1, 3]]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["absent", "../main.py", "/etc/passwd", "a/../../main.py", ""])
async def test_the_name_of_an_unknown_resource_is_refused(make: Make, name: str) -> None:
    with pytest.raises(TaskError, match="resource") as caught:
        await run(make(f"def execute(ctx, x): return ctx.resource({name!r})"))
    assert caught.value.type_name == "TaskContextError"
    with pytest.raises(TaskError) as caught:
        await run(make(f"def execute(ctx, x): return ctx.session({name!r})"))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "resources", "message"),
    [
        ('ctx.session("intnet")', ["intent.walle", "b.walle", "t.bin"], "no model resources/intnet.walle; it has: b, intent"),
        ('ctx.session("intnet")', ["intnet.onnx"], "resources/intnet.onnx is not converted in a task's VM; convert it before: walle model convert resources/intnet.onnx resources/intnet.walle"),
        ('ctx.session("intnet")', ["a.onnx"], "convert its ONNX model: walle model convert resources/a.onnx resources/intnet.walle"),
        ('ctx.session("intnet")', [], "and no other model; make one: walle model convert MODEL.onnx resources/intnet.walle, and list it under [files]"),
        ('ctx.session("wrong")', ["wrong.walle"], "model 'resources/wrong.walle': not a sound .walle file: it begins with other bytes; an ONNX model is converted with: walle model convert"),
        ('ctx.resource("tabel")', ["table", *(f"x{n}" for n in range(9))], "no file resources/tabel; it has: table, x0, x1, x2, x3, x4, x5, x6 and 2 more"),
        ('ctx.resource("tabel")', [], 'and no other; list it under [files] of task.toml: "resources/tabel" = "shared"'),
        ('open("a")', [], "name 'open' is not defined; a task has no files: ctx.resource(name) reads those of resources/"),
        ("exit()", [], "name 'exit' is not defined; a run ends when its last phase returns"),
        ("ctx.history()", [], "the run has no ctx.history: add [history] to task.toml"),
        ('ctx.exclusive("a")', [], "the run has no ctx.exclusive: list the file under [[exclusive]]"),
        ('ctx.features("a")', [], "the run has no ctx.features: only a phase in the cloud has"),
    ],
)  # fmt: skip
async def test_an_error_says_what_exists_and_what_to_do(
    make: Make, body: str, resources: list[str], message: str
) -> None:
    vm = make(
        f"def execute(ctx, x): return {body}",
        dict.fromkeys(resources, b"\x08\x07 other bytes, more than a header" * 9),
    )
    with pytest.raises(TaskError) as caught:
        await run(vm)
    assert message in str(caught.value)
    assert caught.value.type_name in ("TaskContextError", "ModelError", "NameError")


@pytest.mark.asyncio
async def test_each_event_that_a_task_meets_has_one_form(make: Make) -> None:
    """The trigger's, those of events, recent and history, and the trigger of a phase in the cloud."""
    vm = make(
        """
        def forms(event):
            return [event["page_id"], event.page_id, event["contents"]["n"], event.contents["n"], dict(event)]

        def execute(ctx, trigger):
            if ctx.place == "cloud":
                return forms(trigger["event"])
            found = [trigger["event"], *ctx.events, ctx.events[0], *ctx.events.filter(lambda event: event["ts_ms"] > 0)]
            return [forms(one) for one in [*found, ctx.recent[-1], *ctx.history()]] + [trigger["event"]]

        def execute_batch(ctx, payloads):
            return [forms(one["event"]) for one in payloads]
        """
    )
    event = Event("click", "item", 7, {"n": 3})
    encoded = encode_events([event])
    callbacks = {"events.recent": lambda: encoded, "events.history": lambda *_: encoded}
    plain = {"event": event.to_dict(), "position": 0, "visit": "whole"}
    found = await vm.call("walle.pipeline.stream.context:run", TASK, plain, encoded, {}, callbacks=callbacks)
    want = ["item", "item", 3, 3, event.to_dict()]
    assert found["output"] == [*[want] * 6, event.to_dict()]  # the event itself is plain data
    assert (await vm.call("walle.pipeline.stream.context:phase", TASK, "execute", plain, {}))["output"] == want
    batch = await vm.call("walle.pipeline.stream.context:phase_batch", TASK, [plain], [{}])
    assert batch["outputs"] == [(None, want)]


@pytest.mark.asyncio
async def test_the_store_is_queried_through_a_callback(make: Make) -> None:
    vm = make("def execute(ctx, x): return ctx.store.query('clicks', since_ms=5)")
    callbacks = {"store.query": lambda topic, since_ms, limit, skip: [[topic, since_ms, limit, skip]]}
    assert (await run(vm, callbacks=callbacks))["output"] == [["shop/ipv/clicks", 5, 100, 0]]


@pytest.mark.asyncio
async def test_puts_and_log_are_bounded(make: Make) -> None:
    vm = make("""
        def execute(ctx, x):
            for number in range(1_000_000 if x["position"] == 3 else 0):
                ctx.log("x" * 5_000) if number < 300 else None
                ctx.store.put("t", number)
    """)
    with pytest.raises(TaskError, match="may put 1000 features"):
        await run(vm)
    vm = make("""
        def execute(ctx, x):
            for number in range(300):
                ctx.log("x" * 5_000)
    """)
    log = (await run(vm))["log"]
    assert len(log) == 201
    assert max(len(text) for _, text in log) == 1_000
    assert log[-1] == ("warning", "100 more lines were dropped")


@pytest.mark.asyncio
async def test_log_lines_of_a_failed_run_stay_for_one_call(make: Make) -> None:
    vm = make("""
        print("at import")
        def execute(ctx, x):
            ctx.log.warning("before")
            print("one\\ntwo, which has no end", end="")
            if ctx.device["os"] == "android":
                raise ValueError
            while ctx.device["os"] == "slow":
                pass
    """)
    take = "walle.pipeline.stream.run_log:take_failure"
    lines = [("warning", "before"), ("info", "one"), ("info", "two, which has no end")]
    with pytest.raises(TaskError):
        await run(vm)
    taken = await vm.call(take)
    assert taken["log"] == [("info", "at import"), *lines]
    assert taken["cpu_s"] > 0
    assert (await vm.call(take))["log"] == []
    with pytest.raises(DeadlineExceeded):
        await vm.call("walle.pipeline.stream.context:run", TASK, TRIGGER, EVENTS, {"os": "slow"}, deadline=0.2)
    taken = await vm.call(take)
    assert taken["log"] == lines
    assert taken["cpu_s"] > 0
    result = await vm.call("walle.pipeline.stream.context:run", TASK, TRIGGER, EVENTS, {"os": "other"})
    assert result["log"] == lines  # nothing of the runs before
    taken = await vm.call(take)  # the result could have been refused after the run returned
    assert (taken["log"], taken["place"].rpartition("/")[2]) == (lines, "main.py:3 in execute")
    assert await vm.call(take) == {"log": [], "place": "", "cpu_s": None}


@pytest.mark.asyncio
async def test_logs_of_failed_runs_stay_apart_in_bounded_memory(make: Make) -> None:
    vm = make("""
        def execute(ctx, x):
            for number in range(x["lines"]):
                ctx.log(number)
            raise ValueError
    """)
    take, run = "walle.pipeline.stream.run_log:take_failure", "walle.pipeline.stream.context:run"
    for run_id in range(1, 9):
        with pytest.raises(TaskError):
            await vm.call(run, TASK, {"lines": 200}, EVENTS, {}, None, None, run_id)
    assert (await vm.call(take, 9))["log"] == []
    assert (await vm.call(take, 1))["log"] == [("warning", "200 lines were dropped")]  # there is room for five logs
    assert (await vm.call(take, 5))["log"] == [("info", str(number)) for number in range(200)]
    assert (await vm.call(take, 5))["log"] == []
    for run_id in range(10, 10 + run_log.MAX_KEPT_LOGS):
        with pytest.raises(TaskError):
            await vm.call(run, TASK, {"lines": 1}, EVENTS, {}, None, None, run_id)
    assert (await vm.call(take, 8))["log"] == []
    assert (await vm.call(take, 10))["log"] == [("info", "0")]


@pytest.mark.asyncio
async def test_prints_of_loading_come_with_its_result_or_stay_for_one_call(make: Make) -> None:
    vm = make("print('loaded')\ndef execute(ctx, x): return 1")
    assert await vm.call("walle.pipeline.stream.context:load") == {"phases": ["execute"], "log": [("info", "loaded")]}
    assert (await vm.call("walle.pipeline.stream.run_log:take_failure"))["log"] == [("info", "loaded")]
    assert (await vm.call("walle.pipeline.stream.run_log:take_failure"))["log"] == []
    vm = make("print('loading')\nraise ValueError")
    with pytest.raises(TaskError):
        await vm.call("walle.pipeline.stream.context:load")
    assert (await vm.call("walle.pipeline.stream.run_log:take_failure"))["log"] == [("info", "loading")]


@pytest.mark.asyncio
@pytest.mark.parametrize("statement", ["print('x' * 99)", "ctx.log('x' * 100)"])
async def test_printed_and_logged_text_counts_once_towards_log_kb(tmp_path: Path, statement: str) -> None:
    main = f"def execute(ctx, x):\n    for _ in range(x['position']):\n        {statement}\n"
    vm = VM(write_task(tmp_path, main), limits={"log_kb": 1})
    await vm.call("walle.pipeline.stream.context:run", TASK, {**TRIGGER, "position": 10}, EVENTS, {})
    with pytest.raises(LimitExceeded, match="log_kb"):
        await vm.call("walle.pipeline.stream.context:run", TASK, {**TRIGGER, "position": 11}, EVENTS, {})
    vm.close()
    assert await vm.wait_closed()


@pytest.mark.asyncio
async def test_a_task_that_fails_names_its_line(make: Make) -> None:
    vm = make("""
        def execute(ctx, x):
            return x["nothing"]
    """)
    with pytest.raises(TaskError, match="KeyError: 'nothing'") as caught:
        await run(vm)
    assert 'main.py", line 3, in execute' in caught.value.traceback_text
    assert (await run(make("def execute(ctx, x): return 1")))["output"] == 1


@pytest.mark.asyncio
async def test_a_run_has_a_deadline(make: Make) -> None:
    vm = make("def execute(ctx, x):\n    while True: pass")
    with pytest.raises(DeadlineExceeded, match=r"main\.py:2"):
        await run(vm, deadline=0.1)
    with pytest.raises(DeadlineExceeded, match=r"main\.py:2"):
        await run(vm, deadline=0.1)


@pytest.mark.asyncio
async def test_a_log_that_was_not_taken_does_not_reach_the_next_task_in_the_interpreter(tmp_path: Path) -> None:
    created = _core.vm_counts()["created"]
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        vm = VM(
            write_task(tmp_path / name, f"def execute(ctx, x):\n    print('of {name}', end='')\n    raise ValueError\n")
        )
        assert (await vm.call("walle.pipeline.stream.run_log:take_failure"))["log"] == []
        with pytest.raises(TaskError):
            await run(vm)
        vm.close()
        assert await vm.wait_closed()
    assert _core.vm_counts()["created"] <= created + 1  # one interpreter ran them all


@pytest.mark.asyncio
async def test_load_loads_the_parts_of_the_libraries_that_the_code_names(tmp_path: Path) -> None:
    main = """
    import json
    import walle.cv as cv
    import walle.np as np

    def execute(ctx, trigger):
        return sum(np.linalg.norm(cv.resize(np.zeros((4, 4)), (2, 2))) for _ in range(trigger["position"]))

    def look():
        modules = json.dumps.__globals__["__builtins__"]["__import__"]("sys").modules
        return [name.removeprefix("walle.engine_ext.") for name in modules if ".np." in name or ".cv." in name]
    """
    async with in_fresh_interpreter(write_task(tmp_path, main)) as vm:
        await vm.call("walle.pipeline.stream.context:load")
        before = await vm.call("look")
        assert {"np.linalg", "np.creation", "cv.sizes"} <= set(before)
        assert not {"np.reductions", "np.signals", "cv.warp"} & set(before)
        await run(vm)
        assert await vm.call("look") == before


@pytest.mark.asyncio
async def test_metrics_of_a_run_are_in_its_result_and_wrong_ones_name_what_is_wrong(make: Make) -> None:
    vm = make("""
        import walle.np as np

        def execute(ctx, trigger):
            ctx.metric("confidence", 1)
            ctx.metric("confidence", np.float32(0.5))
            ctx.metric("found", True)
            errors = []
            wrong = [("Bad", 1), ("", 1), ("_a", 1), ("a" * 65, 1), ("latency_ms", 1), (7, 1), ("x", "1"), ("x", None),
                     ("x", float("nan")), ("x", 10**400), ("x", [1])]
            for name, value in wrong:
                try:
                    ctx.metric(name, value)
                except Exception as error:
                    errors.append(str(error))
            for number in range(20):
                try:
                    ctx.metric(f"m{number}", number)
                except Exception as error:
                    errors.append(str(error))
                    break
            return errors
    """)
    result = await run(vm)
    assert result["metrics"] == {
        "confidence": 0.5,
        "found": 1.0,
        **{f"m{number}": float(number) for number in range(14)},
    }
    errors = result["output"]
    assert len(errors) == 12
    assert "'Bad' is not a metric's name (lower-case letters" in errors[0]
    assert "the device's own" in errors[4]
    assert errors[6] == "the metric x must be a finite number, is '1'"
    assert errors[-1] == "the metric m14 is refused: a run may report 16 metrics"
    assert "metrics" in await run(vm)  # nothing of a run stays for the next

"""Event columns in a task VM: what crosses, what is fetched only when a task asks, and tasks that misuse the types."""

import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.sim.tasks import task_version
from tests.sim.vm_task import write_task
from walle.base import plain
from walle.engine_ext import _core
from walle.engine_ext.vm.loop_calls import LimitExceeded, TaskError
from walle.engine_ext.vm.vm import VM
from walle.pipeline.events.event import Event
from walle.pipeline.stream.events import Events
from walle.pipeline.trigger.sequences import RecentEvents
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import Manifest
from walle.task.format.bundle import build_bundle, unpack
from walle.task.run.runner import TaskRunner
from walle.trust.signing import Signer

CONFIG = b'[task]\nname = "ipv"\n[trigger]\nsequence = ["page_exit"]\n'
VISIT = (
    Event("page_enter", "item", 1_000, {"price": 5}),
    Event("click", "item", 1_500, {"item": {"id": "a", "price": 2.5}}),
    Event("click", "item", 9_000, {"item": {"id": "b"}}),
    Event("page_exit", "item", 9_500, {}),
)


@pytest_asyncio.fixture
async def runner() -> AsyncIterator[TaskRunner]:
    runner = TaskRunner(1)
    yield runner
    await runner.close()


def laid_out(folder: Path, main: str) -> tuple[Path, Manifest]:
    folder.parent.mkdir(exist_ok=True)
    files = {"main.py": textwrap.dedent(main).encode(), "task.toml": CONFIG}
    bundle = build_bundle(task_version(files), Signer.generate())
    unpack(bundle.manifest, bundle.blobs, folder)
    return folder, bundle.manifest


async def output_of(
    runner: TaskRunner, folder: Path, main: str, visit: tuple[Event, ...] = VISIT, recent: Any = VISIT
) -> Any:
    trigger = Trigger(visit[-1], 3, visit, recent)
    return (await runner.run(*laid_out(folder / "task", main), trigger, {}, {})).output


@pytest.mark.asyncio
async def test_a_task_filters_groups_and_aggregates_its_visit(runner: TaskRunner, tmp_path: Path) -> None:
    main = """
        def execute(ctx, trigger):
            events = ctx.events
            return {
                "clicks": events.named("click").distinct("item.id"),
                "dear": [event.ts_ms for event in events.where("item.price", ">", 1)],
                "table": events.group_by("event_id").aggregate(n="count", price=("item.price", "sum")),
                "sessions": list(events.sessions(2_000).count().items()),
                "contents": events[1].contents,
            }
    """
    assert await output_of(runner, tmp_path, main) == {
        "clicks": ["a", "b"],
        "dear": [1_500],
        "table": {"event_id": ["page_enter", "click", "page_exit"], "n": [1, 2, 1], "price": [0, 2.5, 0]},
        "sessions": [((1_000, 3_500), 2), ((9_000, 11_500), 2)],
        "contents": {"item": {"id": "a", "price": 2.5}},
    }


class CountedRecent(RecentEvents):
    """A time-level sequence that counts how often it is encoded."""

    def __init__(self) -> None:
        super().__init__([VISIT], 0, len(VISIT), 0)
        self.encoded = 0

    def encode(self) -> bytes | list[dict[str, Any]]:
        self.encoded += 1
        return super().encode()


@pytest.mark.asyncio
async def test_the_time_level_sequence_is_encoded_only_if_a_task_reads_it(runner: TaskRunner, tmp_path: Path) -> None:
    recent = CountedRecent()
    assert await output_of(runner, tmp_path / "a", "def execute(ctx, trigger): return 1\n", recent=recent) == 1
    assert recent.encoded == 0
    reads = "def execute(ctx, trigger): return [len(ctx.recent), ctx.recent.count(), ctx.recent.max('ts_ms')]\n"
    assert await output_of(runner, tmp_path / "b", reads, recent=recent) == [4, 4, 9_500]
    assert recent.encoded == 1
    assert await output_of(runner, tmp_path / "c", reads) == [4, 4, 9_500]  # a tuple


@pytest.mark.asyncio
async def test_events_with_arrays_cross_as_they_are(runner: TaskRunner, tmp_path: Path) -> None:
    visit = (Event("page_exit", "item", 1, {"a": memoryview(b"\1\2").cast("B")}),)
    main = "def execute(ctx, trigger): return int(sum(ctx.events[0].contents['a']))\n"
    assert await output_of(runner, tmp_path, main, visit) == 3


HOSTILE = """
    core = None
    good = bytes.fromhex("{good}")

    def execute(ctx, trigger):
        global core
        core = type(ctx.events)._columns.__globals__["_core"]
        globals()[trigger["function"]]()

    def damaged():
        plan = core.compile_plan({{None: {{
            "n": ("n", "spread"), "rise": ("n", "rise"), "t": ("t", "most_common", {{"max_chars": 3}}),
            "l": ("l", "column"), "seen": ("t", "first_seen", {{"max_chars": 3}}), "records": ({{"a": "l"}}, "records"),
        }}}}, True)
        result = core.compile_plan({{"l": ("l", "column"), "t": ("t", "column"), "m": ("l", "of_last")}}, False)
        for at in range(len(good)):
            for byte in range(256):
                try:
                    view = core.open_events(good[:at] + bytes([byte]) + good[at + 1:])
                    view.fields()
                    view.encode_results(result, {{}}).decode()
                    view.run(plan, {{}})
                    view.groups().by("n").aggregate((("n", "sum"), ("t", "distinct"), (None, "count")))
                except (ValueError, TypeError):
                    pass

    def deep():
        nested = b"\\x91" * 5_000
        for contents in (nested, b"\\x81\\xa1a" + nested, b"\\xdf\\xff\\xff\\xff\\xff", b"\\xdd\\xff\\xff\\xff\\xff"):
            try:
                core.open_events(b"\\x91\\x94\\xa1x\\xa0\\x01" + contents)
            except ValueError:
                pass
            try:
                core.unpack_event(contents)
            except ValueError:
                pass
        try:
            core.read_json_events(b'[{{"contents":' + b"[" * 100_000)
        except ValueError:
            pass

    def replaced():
        view = core.open_events(good)
        kind = type(view)
        for attempt in (
            lambda: kind(), lambda: object.__new__(kind), lambda: type("Sub", (kind,), {{}}),
            lambda: setattr(kind, "row", None), lambda: setattr(view, "__class__", int),
            lambda: kind.row(5, 0), lambda: kind.take([], [0]), lambda: view.take([9]), lambda: view.row(-1),
            lambda: view.named(1, 2, 3), lambda: view.where("n", "<", []), lambda: view.groups().aggregate((1,)),
            lambda: view.groups().windows(7, 1, 1, 1), lambda: view.slice(1, 0), lambda: view.take([2**70]),
            lambda: view.__reduce_ex__(2), lambda: view.run(view, {{}}), lambda: view.run(None, {{}}),
            lambda: view.run(kind, {{}}),
            lambda: view.run(core.compile_plan({{}}, False), Dict()), lambda: view.encode_results(view, {{}}),
            lambda: core.compile_plan([], True), lambda: core.compile_plan({{}}),
            lambda: core.compile_plan({{None: {{"n": ("n", "sum", {{"limit": "x"}})}}}}, True),
            lambda: core.compile_plan({{"\\ud800": {{}}}}, True),
            lambda: core.compile_plan({{None: nested_plan()}}, True),
            lambda: core.EventPlan(), lambda: setattr(core.EventPlan, "x", 1),
            lambda: core.compile_plan({{None: Dict()}}, True), lambda: core.compile_plan(Dict(), False),
            lambda: core.Encoded(), lambda: core.Encoded(b"\\xc1"), lambda: object.__new__(core.Encoded),
            lambda: setattr(core.Encoded, "decode", None), lambda: setattr(an_encoded(), "data", b"\\xc1"),
            lambda: an_encoded().__reduce_ex__(2), lambda: setattr(an_encoded(), "__class__", int),
            lambda: core.Encoded.decode(b"\\xc1"), lambda: core.Encoded.data.__get__(b"\\xc1"),
        ):
            try:
                attempt()
            except (TypeError, ValueError, IndexError, AttributeError, OverflowError):
                continue
            raise AssertionError(attempt.__code__.co_firstlineno)
        core.Encoded = int
        try:
            core.compile_plan({{}}, False)
        except TypeError:
            pass
        else:
            raise AssertionError("a replaced type was used")
        core.EventView = int
        try:
            core.open_events(good)
        except TypeError:
            return view.groups().views()
        raise AssertionError("a replaced type was used")

    def an_encoded():
        return core.open_events(good).encode_results(core.compile_plan({{"n": 1}}, False), {{}})

    class Dict(dict):
        def items(self):
            raise AssertionError("its code ran")

    def nested_plan():
        plan = {{}}
        plan["self"] = plan
        return plan

    def many_plans():
        fields = {{str(n): (".".join("k" * 100), "column", {{"limit": n}}) for n in range(250)}}
        kept = []
        while True:
            kept.append(core.compile_plan({{None: fields}}, True))

    def endless():
        view = core.open_events(good * 1)
        kept = []
        while True:
            kept.append(view.groups().windows(1, 10_000, 10, 0))
"""


@pytest.mark.asyncio
async def test_a_hostile_task_crashes_and_exceeds_nothing(tmp_path: Path) -> None:
    good = Events([Event("click", "p", 5, {"n": 1.5, "t": "text", "l": [1, {"a": None}]})] * 2).encode()
    main = textwrap.dedent(HOSTILE).format(good=good.hex())
    vm = VM(write_task(tmp_path, main), limits={"memory_mb": 24}, grace_s=5.0)
    replaced = False
    try:
        for function in ("damaged", "deep", "endless", "many_plans", "replaced", "replaced"):
            call = vm.call(
                "walle.pipeline.stream.context:run", "shop/ipv", {"function": function}, good, {}, deadline=60.0
            )
            if function in ("endless", "many_plans"):
                with pytest.raises(LimitExceeded, match="memory_mb"):
                    await call
            elif function == "replaced" and replaced:
                with pytest.raises(TaskError, match="was replaced"):  # a task's own VM is replaced for its later runs
                    await call
            else:
                await call
                replaced = function == "replaced"
    finally:
        vm.close()
        assert await vm.wait_closed()


PACKED = """
    TEMPLATE = {
        "version": 1, "clicks": ("click", ("event_id", "count")), "prices": ("item.price", "column"), "by": ("by",),
    }

    def execute(ctx, trigger):
        encoded = ctx.events.result_plan(TEMPLATE).encode(ctx.events, by="\\u4e2d")
        ctx.store.put("here", encoded, upload=False)
        ctx.store.put("there", [encoded, {"again": encoded}])
        return encoded
"""
FEATURE = {"version": 1, "clicks": 2, "prices": [None, 2.5, None, None], "by": "\u4e2d"}


@pytest.mark.asyncio
async def test_an_encoded_result_leaves_its_vm_as_bytes(runner: TaskRunner, tmp_path: Path) -> None:
    trigger = Trigger(VISIT[-1], 3, VISIT, VISIT)
    output = await runner.run(*laid_out(tmp_path / "task", PACKED), trigger, {}, {})
    put, local = output.puts
    assert isinstance(output.output, _core.Encoded)
    assert output.output.data == local.payload == plain.encode(FEATURE)
    assert put.payload == plain.encode([FEATURE, {"again": FEATURE}])


@pytest.mark.asyncio
async def test_an_encoded_value_goes_into_a_vm_and_back_and_counts_against_the_limits(tmp_path: Path) -> None:
    main = """
        def back(value):
            return type(value).__name__, value

        def nested(value):
            for _ in range(60):
                value = [value]
            return value

        def many(value):
            return [value] * 5
    """
    vm = VM(write_task(tmp_path, textwrap.dedent(main)))
    given = Events.result_plan(("value",))

    def encoded(value: Any) -> _core.Encoded:
        return given.encode(Events(), value=value)

    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    try:
        assert await vm.call("back", encoded({"a": [1]})) == ("Encoded", encoded({"a": [1]}))
        with pytest.raises(TaskError, match="nested deeper than 100 levels"):
            await vm.call("nested", encoded(deep))
        with pytest.raises(TaskError, match="more than 4000000 items, or bytes of encoded ones"):
            await vm.call("many", encoded(b"x" * 900_000))
    finally:
        vm.close()
        assert await vm.wait_closed()

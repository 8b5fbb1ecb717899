"""A task's log: bounds, escapes, and its way into `logging` and into an outcome report."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.sim.tasks import tree
from walle.base.clock import ManualClock
from walle.engine_ext.vm.loop_calls import TaskError
from walle.errors import VMError
from walle.pipeline.events.event import Event
from walle.pipeline.stream import context, run_log
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import PHASES, Failure, Manifest, printable
from walle.task.format.bundle import TaskVersion, build_bundle, unpack
from walle.task.format.failure import failure_of
from walle.task.run.log import (
    MAX_LINE_CHARS,
    MAX_LINES_PER_WINDOW,
    MAX_RUN_LINES,
    WINDOW_S,
    LogLine,
    TaskLog,
    last_lines,
    parse_lines,
)
from walle.task.run.runner import TaskRunner
from walle.trust.signing import Signer

CONFIG = b'[task]\nname = "ipv"\n[trigger]\nsequence = ["page_exit"]\n[limits]\ndeadline_ms = 200\n'
EVENT = Event("page_exit", "item/1", 5, {})
TRIGGER = Trigger(EVENT, 7, (EVENT,), (EVENT,))
ESCAPE = (
    "\x1b[2Jgone\r\n\x07\u202e\x9b"  # clears a terminal, writes over a line, begins a line, rings, turns text round
)


def test_bounds_are_those_of_the_vm() -> None:
    assert (MAX_RUN_LINES, MAX_LINE_CHARS) == (run_log.MAX_LOG_LINES + 1, run_log.MAX_LOG_CHARS)


def test_phases_are_those_of_the_vm() -> None:
    assert context._PHASES == PHASES


def test_no_control_character_gets_through() -> None:
    assert printable("Grüße, 世界 \U0001f600") == "Grüße, 世界 \U0001f600"
    assert printable(ESCAPE) == r"\x1b[2Jgone\r\n\x07\u202e\x9b"
    assert printable("\ud800\u2028\0") == r"\ud800\u2028\x00"


def test_lines_of_a_hostile_vm_are_bounded_and_escaped() -> None:
    good = [("info", ESCAPE), ["error", "x" * 5_000]]
    bad = [("loud", "x"), ("info", 3), "text", None, ("info", "a", "b")]
    lines = parse_lines([*good, *bad, *[("info", "more")] * 1_000])
    assert lines[0] == LogLine("info", r"\x1b[2Jgone\r\n\x07\u202e\x9b")
    assert lines[1] == LogLine("error", "x" * MAX_LINE_CHARS)
    assert len(lines) == MAX_RUN_LINES - len(bad) + 1
    assert lines[-1] == LogLine(
        "warning", f"{1_007 - MAX_RUN_LINES + len(bad)} lines were dropped: too many, or malformed"
    )
    for value in (None, "text", 5, {"info": "x"}):
        (line,) = parse_lines(value)
        assert line.text == f"the run's log was dropped: it is a {type(value).__name__}"


def test_a_report_has_the_last_lines_uncut() -> None:
    assert last_lines([]) == ""
    assert last_lines([LogLine("info", "a"), LogLine("error", "b")]) == "info: a\nerror: b"
    text = last_lines([LogLine("info", f"{number} " + "x" * 300) for number in range(100)])
    assert len(text) <= Failure.MAX_LOG_CHARS
    lines = text.split("\n")
    assert lines[-1].startswith("info: 99 x")
    assert all(line.startswith("info: ") for line in lines)
    assert len(last_lines([LogLine("info", str(number)) for number in range(100)]).split("\n")) == 20


def test_one_task_cannot_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log = TaskLog("device-1", clock)
    lines = [LogLine("debug", str(number)) for number in range(200)]
    with caplog.at_level(logging.DEBUG, "walle.task"):
        for _ in range(7):
            log.write("shop/loud", "v1", lines)
        log.write("shop/quiet", "v2", [LogLine("warning", "heard")])
        texts = [record.message for record in caplog.records]
        assert sum(text.startswith("device-1: shop/loud v1: ") for text in texts) == MAX_LINES_PER_WINDOW + 1
        assert texts[-2] == "device-1: shop/loud v1: logged more than 1000 lines in 60 s; what follows is dropped"
        assert texts[-1] == "device-1: shop/quiet v2: heard"
        caplog.clear()
        clock._now_s += WINDOW_S
        log.write("shop/loud", "v1", lines[:1])
        assert [record.message for record in caplog.records] == [
            "device-1: shop/loud v1: 400 lines were dropped",
            "device-1: shop/loud v1: 0",
        ]
        assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.DEBUG]


@pytest_asyncio.fixture
async def runner() -> AsyncIterator[TaskRunner]:
    runner = TaskRunner(1)
    yield runner
    await runner.close()


def laid_out(folder: Path, main: str, config: bytes = CONFIG) -> tuple[Path, Manifest]:
    version = TaskVersion.parse(tree({"main.py": main.encode(), "task.toml": config}))
    bundle = build_bundle(version, Signer.generate())
    unpack(bundle.manifest, bundle.blobs, folder)
    return folder, bundle.manifest


@pytest.mark.asyncio
async def test_a_successful_run_hands_its_lines_over(runner: TaskRunner, tmp_path: Path) -> None:
    main = "print('hello')\ndef execute(ctx, x):\n    ctx.log.error('\\x1b[2J')\n    print(5)\n"
    files, manifest = laid_out(tmp_path / "task", main)
    got: list[LogLine] = []
    await runner.load(files, manifest, on_log=got.extend)
    assert got == [("info", "hello")]
    got.clear()
    await runner.run(files, manifest, TRIGGER, {}, {}, on_log=got.extend)
    assert got == [("error", r"\x1b[2J"), ("info", "5")]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("raise ValueError('x')", "3 in execute"),
        ("while True: pass", "3 in execute"),
        ("helper()", "5 in helper"),
        ("import socket", "3 in execute"),
        ("for _ in iter(int, 1): print('x' * 1000)", "3 in execute"),
        ("bytearray(1 << 30)", "3 in execute"),
        ("import json; json.loads('{')", "3 in execute"),
        ("import walle.np as np; np.concatenate([np.zeros(2), np.zeros((2, 2))])", "3 in execute"),
        ("return object()", "1 in execute"),
        ("return bytes(9 << 20)", "1 in execute"),
        ("ctx.escalate(5)", "3 in execute"),
        ("ctx.events.plan([{'sum': 5}]).run(ctx.events)", "3 in execute"),
        ("raise ValueError('x\\n  File \"shop/ipv/v1/main.py\", line 99, in forged')", "3 in execute"),
        ("(lambda: 1 / 0)()", "3 in <lambda>"),
        ("execute(ctx, x)", "2 in execute"),
    ],
    ids=[
        "raises", "deadline", "deeper", "import", "log_kb", "memory", "library", "np", "refused", "output_kb",
        "callback", "plan", "forged", "lambda", "recursion",
    ],
)  # fmt: skip
async def test_a_run_that_fails_hands_its_lines_over_and_names_its_place(
    runner: TaskRunner, tmp_path: Path, body: str, place: str
) -> None:
    main = f"def execute(ctx, x):\n    ctx.log('last words')\n    {body}\ndef helper():\n    raise KeyError\n"
    if "socket" in body:
        main = main.replace("import socket", "__import__('socket')")
    files, manifest = laid_out(tmp_path / "task", main)
    got: list[LogLine] = []
    with pytest.raises(VMError) as failed:
        await runner.run(files, manifest, TRIGGER, {}, {}, on_log=got.extend)
    assert got[0] == ("info", "last words")
    failure = failure_of(failed.value)
    assert failure.place == f"shop/ipv/v1/main.py:{place}"
    assert "info: last words" in failure.log.split("\n") or "log_kb" in failure.error
    is_named = failure.place in failure.error
    assert is_named or "imports 'socket'" in failure.error or "result.output makes" in failure.error


@pytest.mark.asyncio
@pytest.mark.parametrize("body", ["while True: pass", "raise ValueError"])
async def test_a_long_name_of_a_function_is_cut_to_whole_characters(
    runner: TaskRunner, tmp_path: Path, body: str
) -> None:
    name = "a" + "ä" * 300
    files, manifest = laid_out(tmp_path / "task", f"def {name}():\n    {body}\ndef execute(ctx, x):\n    {name}()\n")
    with pytest.raises(VMError) as failed:
        await runner.run(files, manifest, TRIGGER, {}, {})
    place = failure_of(failed.value).place
    assert place.startswith("shop/ipv/v1/main.py:2 in aäää")
    assert len(place) < 250
    assert name.startswith(place.rpartition(" ")[2])


@pytest.mark.asyncio
async def test_a_phase_hands_its_lines_over(
    runner: TaskRunner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    main = "def execute(ctx, x):\n    print('phase')\n    return 1 // x\n"
    files, manifest = laid_out(tmp_path / "task", main, CONFIG + b'[phases]\nexecute = "cloud"\n')
    got: list[LogLine] = []
    assert await runner.phase(files, manifest, "execute", 1, {}, on_log=got.extend) == 1
    with caplog.at_level(logging.INFO, "walle.task"), pytest.raises(TaskError):
        await runner.phase(files, manifest, "execute", 0, {})
    assert got == [("info", "phase")]
    assert [record.message for record in caplog.records] == ["cloud: shop/ipv v1: phase"]


@pytest.mark.asyncio
async def test_a_task_that_forged_its_log_gets_its_output_stored_nevertheless(
    runner: TaskRunner, tmp_path: Path
) -> None:
    main = "def execute(ctx, x):\n    ctx.log.lines[:] = [('info', 5), ('loud', 'x'), 7]\n    return 1\n"
    files, manifest = laid_out(tmp_path / "task", main)
    got: list[LogLine] = []
    output = await runner.run(files, manifest, TRIGGER, {}, {}, on_log=got.extend)
    assert (output.output, got) == (1, [("warning", "3 lines were dropped: too many, or malformed")])


def test_a_place_that_is_unknown_is_empty() -> None:
    assert failure_of(ValueError("x")).place == ""
    failure = failure_of(TaskError("t", "E\x07", "m\x1b", "a\x1b\nb\u202e", "a\x1b.py:5"))
    assert (failure.error_type, failure.place) == (r"E\x07", r"a\x1b.py:5")
    assert (failure.error, failure.traceback) == (r"task t: E\x07: m\x1b (a\x1b.py:5)", "a\\x1b\nb\\u202e")

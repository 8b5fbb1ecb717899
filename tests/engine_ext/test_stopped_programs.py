"""Stops of runs as a program meets them: handlers of signals, limits, the command line, operators of np and cv."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from tests.engine_ext.sanitizer import SLOWDOWN
from tests.sim.endless_models import endless_loop, product
from walle import cv
from walle import np as wnp
from walle.engine_ext import _core
from walle.engine_ext.errors import RunCancelled, RunDeadlineExceeded
from walle.engine_ext.session import Module, Session
from walle.errors import EngineError

SHARED_MODEL = Path(__file__).parents[3] / "shared/cases/engine/endless_loop.onnx"
ALARM_S = 0.06
STOPPED_WITHIN_S = 0.2 * SLOWDOWN  # CPU time of the thread that runs; 0.1 s and less on an idle machine


class Alarm(Exception):  # noqa: N818 -- no error
    """An alarm, raised by the handler of its signal."""


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Set an alarm in seconds whose handler raises Alarm in the main thread."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_the_errors_of_a_stop_are_the_engines() -> None:
    assert issubclass(RunCancelled, EngineError)
    assert issubclass(RunDeadlineExceeded, EngineError)
    assert issubclass(RunDeadlineExceeded, TimeoutError)


def test_the_shared_endless_loop_is_stopped() -> None:
    pytest.importorskip("onnx")
    if not SHARED_MODEL.exists():
        pytest.skip(f"{SHARED_MODEL} is absent")
    module = Module(SHARED_MODEL)
    with pytest.raises(RunDeadlineExceeded):
        module.run(
            {one.name: np.ones([size or 1 for size in one.shape or ()], one.dtype) for one in module.inputs},
            deadline=0.1,
        )


def test_a_deadline_that_is_not_a_number_is_refused() -> None:
    endless = endless_loop()
    module = Module(endless.model)
    with pytest.raises(ValueError, match="deadline is nan"):
        module.run(endless.short, deadline=float("nan"))
    with pytest.raises(TypeError):
        module.run(endless.short, deadline="soon")  # type: ignore[arg-type]
    for seconds in (1e300, float("inf"), 60):
        np.testing.assert_array_equal(
            np.asarray(module.run(endless.short, deadline=seconds)["y"]), endless.results["y"]
        )
    with pytest.raises(RunDeadlineExceeded):
        module.run(endless.short, deadline=-1)


def test_a_deadline_covers_planning_and_leaves_no_half_plan() -> None:
    endless = product()
    session = Session(endless.model)
    with pytest.raises(RunDeadlineExceeded):
        session.run(endless.short, deadline=0)  # stopped in the planning of the first run
    assert session.plan() is None
    np.testing.assert_array_equal(np.asarray(session.run(endless.short)["y"]), endless.results["y"])
    assert session.plan() is not None


def test_a_profile_is_stopped() -> None:
    endless = product()
    session = Session(endless.model)
    with pytest.raises(RunDeadlineExceeded):
        session.profile(endless.long, deadline=0.1)
    assert len(session.profile(endless.short, deadline=60)) == 1


def test_handlers_that_raise_nothing_run_during_a_run_and_do_not_end_it() -> None:
    endless = endless_loop()
    module = Module(endless.model)
    rings: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rings.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        with pytest.raises(RunDeadlineExceeded):
            module.run(endless.long, deadline=0.5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(rings) >= 5  # 24 on an idle machine


def test_a_handler_can_run_and_cancel_the_same_module() -> None:
    endless = endless_loop()
    module = Module(endless.model)
    results: list[Any] = []

    def handle(number: int, frame: FrameType | None) -> None:
        results.append(module.run(endless.short)["y"].tolist())
        module.cancel()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(RunCancelled):
            module.run(endless.long)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert results == [[1.0]]


def test_a_signal_stops_no_run_of_another_thread(alarm: Callable[[float], None]) -> None:
    endless = endless_loop()
    module = Module(endless.model)
    outcomes: list[str] = []

    def run() -> None:
        try:
            module.run(endless.long, deadline=0.6)
        except RunDeadlineExceeded:
            outcomes.append("deadline")

    thread = threading.Thread(target=run)
    thread.start()
    alarm(0.1)
    with pytest.raises(Alarm):
        module.run(endless.long)
    thread.join()
    assert outcomes == ["deadline"]


def ones(*shape: int, dtype: str = "float32") -> Any:
    """Return a view of one element."""
    return _core.broadcast_to(_core.full((1,) * len(shape), 1, dtype), shape)


def evaluated(op: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> Callable[[], Any]:
    return lambda: _core.evaluate(op, inputs, attributes, outputs)


def called(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: function(*args)


def ones_in_memory(*shape: int, dtype: str = "float32") -> Any:
    return wnp.asarray(np.ones(shape, dtype))


def transposed_assignment(x: Any) -> Callable[[], Any]:
    return called(x.__setitem__, ..., x.T)


def image(size: int, channels: int = 3) -> Any:
    shape = (size, size, channels) if channels else (size, size)
    return wnp.asarray(np.random.default_rng(1).integers(0, 255, shape, "uint8"))


INDICES = np.zeros((30_000_000,), "int64")
LONG_OPERATORS: dict[str, Callable[[], Callable[[], Any]]] = {
    "elementwise": lambda: evaluated("ReduceSum", [ones(2, 20, 300_000_000)], keepdims=0),
    "broadcast rows": lambda: lambda: wnp.arctan(ones(2, 60_000_000)),
    "copy": lambda: lambda: ones(3, 80_000_000).copy(),
    "transpose": lambda: evaluated("Transpose", [np.ones((3000, 3000, 8), "float64")], perm=[2, 1, 0]),
    "gather": lambda: evaluated("Gather", [np.ones(9, "float32"), INDICES], axis=0),
    "scatter": lambda: evaluated(
        "ScatterElements", [np.ones(9, "float32"), INDICES, np.ones(INDICES.size, "float32")], axis=0, reduction="add"
    ),
    "max pool": lambda: evaluated("MaxPool", [np.ones((1, 4, 1024, 1024), "float32")], kernel_shape=[63, 63]),
    "mean pool": lambda: evaluated("AveragePool", [np.ones((1, 4, 1024, 1024), "float32")], kernel_shape=[63, 63]),
    "grid sample": lambda: evaluated(
        "GridSample", [np.ones((1, 64, 64, 64), "float32"), np.ones((1, 1000, 500, 2), "float32")]
    ),
    "regions of interest": lambda: evaluated(
        "RoiAlign",
        [np.ones((1, 8, 99, 99), "float32"), np.full((900, 4), [0, 0, 90, 90], "float32"), np.zeros(900, "int64")],
        output_height=32, output_width=32, sampling_ratio=8,
    ),
    "gru": lambda: evaluated(
        "GRU",
        [np.ones((3, 256, 8), "float32"), np.ones((1, 6144, 8), "float32"), np.ones((1, 6144, 2048), "float32")],
        hidden_size=2048,
    ),
    "convolution by columns": lambda: evaluated(
        "Conv", [np.ones((1, 64, 300, 300), "float32"), np.ones((64, 64, 5, 5), "float32")], pads=[2] * 4
    ),
    "suppression": lambda: evaluated(
        "NonMaxSuppression",
        [
            np.random.default_rng(2).random((1, 30_000, 4)).astype("float32"), np.ones((1, 1, 30_000), "float32"),
            np.array([30_000]), np.array([0.99], "float32"),
        ],
    ),
    "resize": lambda: called(cv.resize, image(3000), (9000, 9000), None, 0, 0, cv.INTER_CUBIC),
    "matrix of places": lambda: evaluated("NonZero", [np.ones((100, 1000, 1000), "bool")]),
    "chosen slices": lambda: evaluated(
        "Compress", [np.ones((60_000_000, 1), "uint8"), np.ones(60_000_000, "bool")], axis=0
    ),
    "distinct slices": lambda: evaluated("Unique", [np.arange(4_000_000) % 3_000_017], 4, axis=0),
    "range": lambda: evaluated("Range", [np.array(0), np.array(250_000_000), np.array(1)]),
    "counts": lambda: evaluated("BinCount", [np.zeros(200_000_000, "uint8")]),
    "plain depthwise convolution": lambda: evaluated(
        "Conv", [np.ones((1, 1, 2000, 2000), "float32"), np.ones((1, 1, 60, 60), "float32")]
    ),
    "statistics of components": lambda: evaluated(
        "ComponentStatistics", [(np.arange(64_000_000) * 7919 % 1_000_003).astype("int32").reshape(8000, 8000)], 2
    ),
    "edges": lambda: evaluated(
        "CannyEdges", [np.asarray(image(7000, 0)).astype("int16")] * 2, low=9.0, high=99.0
    ),
    "hull": lambda: evaluated("ConvexHull", [np.random.default_rng(3).random((1_000_000, 2))]),
    "elements by index": lambda: called(wnp.asarray(np.ones((3, 3, 3, 3))).__getitem__, (INDICES,) * 4),
    "elements by mask": lambda: called(ones(150_000_000).__getitem__, ones(150_000_000, dtype="bool")),
    "elements set by index": lambda: called(wnp.asarray(np.ones((3, 3, 3, 3))).__setitem__, (INDICES,) * 4, 1.0),
    "elements set by mask": lambda: called(ones_in_memory(60_000_000).__setitem__, ones(60_000_000, dtype="bool"), 1.0),
    "assignment": lambda: transposed_assignment(ones_in_memory(14_000, 14_000, dtype="uint8")),
    "concatenation": lambda: called(wnp.concatenate, [ones(100_000_000)] * 4),
    "repetition": lambda: called(wnp.repeat, ones_in_memory(3_000_000), 150),
    "conversion": lambda: called(wnp.asarray, ones(200_000_000), "float8_e4m3fn"),
    "list of elements": lambda: called(ones_in_memory(20_000_000).tolist),
    "array of a list": lambda: called(wnp.asarray, [1.0] * 10_000_000),
    "bytes of elements": lambda: called(ones_in_memory(10_000, 10_000).T.tobytes),
    "components": lambda: called(cv.connectedComponents, image(9000, 0) & 1),
    "template": lambda: called(cv.matchTemplate, image(2000, 0), image(40, 0), cv.TM_CCOEFF_NORMED),
    "box": lambda: called(cv.blur, ones_in_memory(9000, 9000, 3, dtype="uint8"), (31, 31)),
    "colours": lambda: called(cv.cvtColor, ones_in_memory(9000, 9000, 3, dtype="uint8"), cv.COLOR_BGR2Lab),
    "encoding": lambda: called(cv.imencode, ".png", image(4000)),
    "decoding": lambda: called(cv.imdecode, cv.imencode(".jpg", image(6000))[1], cv.IMREAD_COLOR),
    "sum of all pairs": lambda: called(lambda x: x.reshape(-1, 1) + x, ones(30_000)),
    "comparison with no number": lambda: called(lambda x: x == object(), ones(1_500_000_000, dtype="uint8")),
    "array of a range": lambda: called(wnp.asarray, range(100_000_000)),
    "spans of a small image": lambda: called(
        _core.fill_spans, ones_in_memory(2, 4000, dtype="uint8"),
        wnp.asarray(np.full((10_000_000, 3), [1, 0, 4000], "int32")), ones_in_memory(1, dtype="uint8"),
    ),
    "boxes without overlap": lambda: evaluated(
        "NonMaxSuppression",
        [
            np.zeros((1, 3_000_000, 4), "float32"),
            np.random.default_rng(4).random((1, 1, 3_000_000)).astype("float32"), np.array([1]),
            np.array([0.5], "float32"),
        ],
    ),
    "one tile": lambda: evaluated("EqualizeTiles", [np.zeros((32_000, 32_000), "uint8")] * 2, rows=1, columns=1),
    "lines of a black image": lambda: evaluated("HoughLines", [np.zeros((32_000, 32_000), "uint8")], 2, rho=4.0),
    "segments": lambda: evaluated("HoughSegments", [np.ones((9000, 9000), "uint8")], rho=4.0, threshold=10),
    "polygon": lambda: evaluated(
        "PolygonSpans",
        [np.stack([np.arange(20_000), np.arange(20_000) % 2 * 19_999], 1).astype("int32"), np.array([20_000])],
        height=20_000, width=20_000,
    ),
    "thin lines": lambda: evaluated(
        "LineSpans", [np.tile(np.array([[0, 0], [1 << 24, 1 << 24]], "int32"), (5, 1))], height=1 << 30, width=1 << 30
    ),
    "tuple of rows": lambda: called(_core.unstack, ones(20_000_000, 1)),
    "copy to shared memory": lambda: called(_core.shared_copy, ones(9000, 40_000)),
    "bilateral": lambda: called(cv.bilateralFilter, image(2000), 15, 50, 50),
    "median": lambda: called(cv.medianBlur, image(3000), 25),
    "dilate": lambda: called(cv.dilate, image(4000), cv.getStructuringElement(cv.MORPH_ELLIPSE, (41, 41))),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LONG_OPERATORS))
def test_a_signal_stops_a_long_operator(name: str, alarm: Callable[[float], None]) -> None:
    operator = LONG_OPERATORS[name]()
    for _ in range(2):
        began = time.thread_time()
        try:
            alarm(ALARM_S)
            operator()
        except Alarm:
            pass
        else:
            pytest.fail(f"ended by itself after {time.thread_time() - began:.2f} s of CPU time")
        assert time.thread_time() - began < ALARM_S + STOPPED_WITHIN_S


@pytest.mark.night
@pytest.mark.parametrize("command", ["run", "bench"])
def test_ctrl_c_ends_a_command(command: str, tmp_path: Path) -> None:
    model = tmp_path / "long.walle"
    if command == "run":
        model.write_bytes(endless_loop().model)
        (tmp_path / "go.json").write_text("true")
        (tmp_path / "x.json").write_text("[1]")
        options = ["--input", f"go={tmp_path / 'go.json'}", "--input", f"x={tmp_path / 'x.json'}"]
    else:
        model.write_bytes(product().model)
        options = ["--shape", "x=9000x9000"]
    watched = PROGRAM.format(method="Module.run" if command == "run" else "Session.run")
    child = subprocess.Popen(
        [sys.executable, "-c", watched, "model", command, str(model), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "begins\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130
    assert f"walle: stopped while {'running' if command == 'run' else 'timing'} {model}" in err
    assert "Traceback" not in err


# The command line, which says when the engine's run begins.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored where a shell runs tests in the background
from walle.cli import main
from walle.engine_ext.session import Module, Session

inner = {method}

def run(*args, **kwargs):
    print("begins", flush=True)
    return inner(*args, **kwargs)

{method} = run
main()
"""

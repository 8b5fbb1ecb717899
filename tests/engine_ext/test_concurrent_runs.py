"""Runs of one session or module on several threads at once: exact results, also with stops, faults and new plans."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.sim.endless_models import endless_loop
from walle.engine_ext.errors import RunCancelled, RunDeadlineExceeded, ShapeError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Module, Session, load

type Array = np.ndarray[Any, np.dtype[Any]]
type Inputs = dict[str, Any]

THREADS = 4
ROUNDS = 25


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def convolutions() -> tuple[bytes, list[Inputs]]:
    """Return packed convolutions, of groups too, whose NaNs and infinities are handled by a run of their own."""
    graph = GraphBuilder("convolutions")
    x = graph.input("x", (1, 32, 12, 12))
    first = graph.op("Conv", [x, graph.constant("a", normal(1, 32, 32, 3, 3) / 9)], pads=[1] * 4)
    groups = graph.op(
        "Conv", [graph.op("Relu", [first]), graph.constant("b", normal(2, 32, 4, 3, 3) / 9)], pads=[1] * 4, group=8
    )
    graph.output("y", graph.op("Softmax", [graph.op("ReduceMean", [groups], keepdims=0, axes=[3])]))
    inputs = [{"x": normal(seed, 1, 32, 12, 12)} for seed in range(6)]
    inputs[2]["x"][0, 5, 3, 3] = np.nan
    inputs[4]["x"][0, 9, 7, 7] = np.inf
    return graph.to_bytes(), inputs


def recurrent() -> tuple[bytes, list[Inputs]]:
    graph = GraphBuilder("recurrent")
    x = graph.input("x", (None, 2, 8))
    constants = [graph.constant("w", normal(1, 1, 96, 8)), graph.constant("r", normal(2, 1, 96, 32))]
    graph.output("y", graph.op("GRU", [x, *constants], outputs=2, hidden_size=32)[1])
    return graph.to_bytes(), [
        {"x": normal(seed, 3 + seed, 2, 8)} for seed in range(12)
    ]  # more shapes than plans are kept


def values_for_shapes() -> tuple[bytes, list[Inputs]]:
    """Return a model whose shapes depend on values of an input."""
    graph = GraphBuilder("values")
    x, shape = graph.input("x", (24,)), graph.input("shape", (2,), "int64")
    graph.output("y", graph.op("Softmax", [graph.op("Reshape", [x, shape])]))
    shapes = [(2, 12), (3, 8), (4, 6), (6, 4), (8, 3), (12, 2)]
    return graph.to_bytes(), [{"x": normal(seed, 24), "shape": np.array(one)} for seed, one in enumerate(shapes)]


def loop() -> tuple[bytes, list[Inputs]]:
    """Return a loop over pieces that are planned for each round's shapes, and split where values are needed."""
    graph = GraphBuilder("loop")
    rounds, x = graph.input("rounds", (), "int64"), graph.input("x", (None,))
    body = graph.subgraph("body")
    body.input("round", (), "int64")
    going, state = body.input("going", (), "bool"), body.input("state", None)
    body.output("again", going)
    kept = body.op("Gather", [state, body.op("Squeeze", [body.op("NonZero", [body.op("Sigmoid", [state])])])])
    body.output("next", body.op("Concat", [kept, body.op("Neg", [kept])], axis=0))
    graph.output("y", graph.op("Tanh", [graph.op("Loop", [rounds, None, x], body=body)]))
    return graph.to_bytes(), [{"rounds": seed % 5, "x": normal(seed, 2 + seed)} for seed in range(10)]


CASES: dict[str, Callable[[], tuple[bytes, list[Inputs]]]] = {
    one.__name__: one for one in (convolutions, recurrent, values_for_shapes, loop)
}


def run(session: Session | Module, inputs: Inputs, deadline: float | None = None) -> bytes:
    """Return the bytes of the output y, so that NaNs are compared too."""
    return np.asarray(session.run(inputs, deadline=deadline)["y"]).tobytes()


def on_threads(work: Callable[[int], None]) -> None:
    """Call work(number) on each of the threads, at once, and raise what it raises."""
    together = threading.Barrier(THREADS)

    def begin(number: int) -> None:
        together.wait()
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for one in [pool.submit(begin, number) for number in range(THREADS)]:
            one.result()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", list(CASES))
def test_runs_at_once_give_the_results_of_runs_one_by_one(name: str, threads: int) -> None:
    model, inputs = CASES[name]()
    alone = load(model, threads=threads)
    expected = [run(alone, one) for one in inputs]
    session = load(model, threads=threads)  # the first runs are concurrent, with their planning

    def work(number: int) -> None:
        for i in range(ROUNDS):
            place = (i * (number + 1) + number) % len(inputs)
            assert run(session, inputs[place]) == expected[place]

    on_threads(work)


@pytest.mark.parametrize("name", list(CASES))
def test_stops_at_random_points_leave_the_session_right(name: str) -> None:
    model, inputs = CASES[name]()
    alone = load(model)
    expected = [run(alone, one) for one in inputs]
    session = load(model)
    counts = {"stopped": 0, "whole": 0}

    def work(number: int) -> None:
        draw = np.random.default_rng(number)
        for i in range(ROUNDS):
            place = (i + number) % len(inputs)
            if number == 0:
                session.cancel()
                time.sleep(draw.uniform(0, 0.0005))
            deadline = i % 5 * draw.uniform(0, 0.0002) if number == 1 else None  # 0 at times, which stops a run at once
            try:
                assert run(session, inputs[place], deadline) == expected[place]
                counts["whole"] += 1
            except (RunCancelled, RunDeadlineExceeded):
                counts["stopped"] += 1

    on_threads(work)
    assert counts["stopped"] > 0
    assert counts["whole"] > 0
    for one, right in zip(inputs, expected, strict=True):
        assert run(session, one) == right


def test_a_fault_fails_only_the_run_that_caused_it() -> None:
    graph = GraphBuilder("gather")
    x, places = graph.input("x", (64,)), graph.input("places", (2000,), "int64")
    graph.output("y", graph.op("Gather", [x, places]))
    session = Session(graph.to_bytes())
    values = normal(3, 64)
    right = np.arange(2000) % 64
    wrong = np.where(np.arange(2000) == 1900, 64, right)

    def work(number: int) -> None:
        for i in range(8 * ROUNDS):
            if (i + number) % 2 == 0:
                assert run(session, {"x": values, "places": right}) == values[right].tobytes()
                continue
            with pytest.raises(ShapeError, match="index is out of range"):
                session.run({"x": values, "places": wrong})

    on_threads(work)


def test_a_run_does_not_wait_for_another_of_the_same_module() -> None:
    endless = endless_loop()
    module = Module(endless.model)
    stopped = threading.Event()

    def work() -> None:
        with pytest.raises(RunCancelled):
            module.run(endless.long)
        stopped.set()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        assert module.run(endless.short)["y"].tolist() == [1.0]
        assert not stopped.is_set()
    while not stopped.wait(0.05):
        module.cancel()
    thread.join()


def test_profile_and_plan_are_read_while_others_run() -> None:
    model, inputs = convolutions()
    session = Session(model)
    expected = [run(session, one) for one in inputs]
    plan = session.plan()
    assert plan is not None

    def work(number: int) -> None:
        for place in range(len(inputs)):
            if number % 2 == 0:
                assert run(session, inputs[place]) == expected[place]
            else:
                assert len(session.profile(inputs[place])) == len(plan.ops)
                assert session.plan() == plan

    on_threads(work)

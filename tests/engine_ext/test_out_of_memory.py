"""Memory that the system or the machine does not have: a MemoryError that names the node and the bytes."""

import multiprocessing
import re
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.night.cases import at_night
from walle import np as wnp
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import Module, Session

MB = 1 << 20


def ints(g: GraphBuilder, name: str, *values: int) -> Any:
    return g.constant(name, np.array(values, np.int64))


def folded() -> bytes:
    """Return a model with a result of 256 MB that is computed when it is planned."""
    g = GraphBuilder("g")
    g.output("y", g.op("NonZero", [g.constant("x", np.ones(32 * MB, np.bool_))], name="culprit"))
    return g.to_bytes()


def in_arena() -> bytes:
    """Return a model with results of 1 GB and 512 MB in the memory of a run."""
    g = GraphBuilder("g")
    many = g.op("Range", [ints(g, "a", 0), ints(g, "b", 128 * MB), ints(g, "c", 1)], name="fine")
    huge = g.op("Cast", [g.op("Neg", [many], name="culprit")], to="float32")
    g.output("y", g.op("ReduceSum", [huge]))
    return g.to_bytes()


def packed() -> bytes:
    """Return a model with 128 MB of weights, which are packed when it is planned."""
    g = GraphBuilder("g")
    weights = g.constant("w", np.ones((16384, 2048, 1, 1), np.float32))
    g.output("y", g.op("Conv", [g.input("x", (1, 2048, 1, 1)), weights], name="culprit"))
    return g.to_bytes()


def _in_child(answers: Connection, path: Path, more_bytes: int) -> None:
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + more_bytes, used_bytes + more_bytes))
    try:
        Session(path, threads=1)
    except BaseException as error:
        answers.send((type(error).__name__, str(error)))
    else:
        answers.send(("", ""))


@pytest.mark.parametrize(
    ("model", "more_mb", "node"),
    [
        (folded, 160, "(NonZero)"),
        *at_night((in_arena, 1200, "(Neg), whose result of 1073741824 bytes is the largest of the run")),
        (packed, 192, "(Conv)"),
    ],
)
def test_a_plan_that_lacks_memory_names_the_node(
    model: Callable[[], bytes], more_mb: int, node: str, tmp_path: Path
) -> None:
    path = tmp_path / "huge.walle"
    path.write_bytes(model())
    context = multiprocessing.get_context("spawn")
    answers, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(theirs, path, more_mb * MB))
    child.start()
    theirs.close()
    try:
        kind, text = answers.recv()
    finally:
        child.join(60)
    assert kind == "MemoryError"
    why = re.escape(f"node 'culprit' {node}: ") + r"cannot allocate \d{9,10} bytes: the system has not enough memory"
    assert re.fullmatch(why, text), text


def test_a_run_of_a_module_that_lacks_memory_names_the_node() -> None:
    g = GraphBuilder("g")
    size = g.input("size", (1,), "int64")
    g.output("y", g.op("Expand", [g.constant("one", np.ones(1, np.float32)), size], name="culprit"))
    why = r"node 'culprit' \(Expand\): cannot allocate 17592186044416 bytes: \d+ of the machine's \d+ bytes"
    with pytest.raises(MemoryError, match=why):
        Module(g.to_bytes()).run({"size": np.array([1 << 42])})


def test_an_array_that_the_machine_cannot_hold_says_how_many_bytes() -> None:
    with pytest.raises(MemoryError, match=r"cannot allocate \d{16} bytes: \d+ of the machine's \d+ bytes are in use"):
        wnp.zeros((1 << 48,))

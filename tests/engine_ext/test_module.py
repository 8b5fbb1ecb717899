"""Modules: control flow, sequences and shapes that depend on data, against NumPy."""

import threading
from pathlib import Path
from typing import Any

import numpy
import pytest

import walle
from walle.engine_ext import _core
from walle.engine_ext.errors import DTypeError, ModelError, ShapeError, UnsupportedError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import load

RNG = numpy.random.default_rng(11)


def normal(*shape: int) -> numpy.ndarray:
    return RNG.normal(size=shape).astype("float32")


def run(graph: GraphBuilder, **inputs: Any) -> dict[str, Any]:
    return walle.Module(graph.to_bytes()).run(inputs)


def doubling_loop(*, scan: bool = True) -> GraphBuilder:
    """Return a loop that doubles x for `rounds` iterations or until `limit` is exceeded, and stacks every state."""
    graph = GraphBuilder("doubling")
    rounds, limit = graph.input("rounds", (), "int64"), graph.input("limit", ())
    x = graph.input("x", (None,))
    body = graph.subgraph("body")
    body.input("round", (), "int64")
    body.input("going", (), "bool")
    state = body.input("state", None, None)
    doubled = body.op("Add", [state, state])
    largest = body.op("ReduceMax", [doubled], keepdims=0)
    body.output("go", body.op("Less", [largest, body.outer(limit)]))
    body.output("next", doubled)
    if scan:
        body.output("seen", doubled)
    results = graph.op("Loop", [rounds, None, x], outputs=2 if scan else 1, body=body)
    for name, value in zip(["last", "all"], results if scan else [results], strict=False):
        graph.output(name, value)
    return graph


def test_a_session_says_that_a_module_is_needed() -> None:
    with pytest.raises(UnsupportedError, match=r"'Loop'.*walle\.Module"):
        walle.Session(doubling_loop().to_bytes())
    graph = GraphBuilder("nonzero")
    graph.output("y", graph.op("NonZero", [graph.input("x", (3,))]))
    with pytest.raises(UnsupportedError, match=r"NonZero.*walle\.Module"):
        walle.Session(graph.to_bytes())


def test_load_returns_a_session_or_a_module() -> None:
    assert isinstance(load(doubling_loop().to_bytes()), walle.Module)
    plain = GraphBuilder("plain")
    plain.output("y", plain.op("Neg", [plain.input("x", (2,))]))
    session = load(plain.to_bytes(), backend="scalar")
    assert isinstance(session, walle.Session)
    plan = session.plan()
    assert plan is not None
    assert plan.backend == "scalar"
    sequence = GraphBuilder("sequence")
    sequence.output("n", sequence.op("Identity", [sequence.object_input("s")]))
    module = load(sequence.to_bytes())
    assert isinstance(module, walle.Module)
    assert len(module.run({"s": [[1.0], [2.0]]})["n"]) == 2
    with pytest.raises(ModelError):
        load(b"no model")


def test_a_loop_ends_by_count_or_condition_and_gathers() -> None:
    module = walle.Module(doubling_loop().to_bytes())
    x = numpy.array([1, 2], "float32")
    found = module.run({"rounds": 3, "limit": 1e9, "x": x})
    numpy.testing.assert_array_equal(found["last"], x * 8)
    numpy.testing.assert_array_equal(found["all"], [x * 2, x * 4, x * 8])
    found = module.run({"rounds": 100, "limit": 10.0, "x": x})
    numpy.testing.assert_array_equal(found["last"], x * 8)
    # No iteration: the state is returned unchanged, and the stacked states have a first axis of 0.
    found = module.run({"rounds": 0, "limit": 10.0, "x": x})
    numpy.testing.assert_array_equal(found["last"], x)
    assert numpy.asarray(found["all"]).shape == (0, 2)


def test_a_carried_state_may_change_its_shape() -> None:
    graph = GraphBuilder("growing")
    rounds = graph.input("rounds", (), "int64")
    body = graph.subgraph("body")
    count = body.input("round", (), "int64")
    going = body.input("going", (), "bool")
    state = body.input("state", None, "int64")
    axis = body.constant("axis", [0], "int64")
    body.output("go", body.op("Identity", [going]))
    body.output("next", body.op("Concat", [state, body.op("Unsqueeze", [count, axis])], axis=0))
    start = graph.constant("start", [7], "int64")
    graph.output("y", graph.op("Loop", [rounds, None, start], body=body))
    module = walle.Module(graph.to_bytes())
    assert numpy.asarray(module.run({"rounds": 40})["y"]).tolist() == [7, *range(40)]
    before = _core.live_storage_bytes()
    for rounds_now in range(1, 60):  # each a shape that is new to the body, or was evicted
        module.run({"rounds": rounds_now})
    assert _core.live_storage_bytes() - before < 64 * 1024  # cached plans of bodies are bounded


def test_branches_and_loops_nest_and_read_outer_values() -> None:
    graph = GraphBuilder("nested")
    rounds, flag = graph.input("rounds", (), "int64"), graph.input("flag", (), "bool")
    x, w = graph.input("x", (3,)), graph.constant("w", numpy.array([1, 2, 3], "float32"))
    then = graph.subgraph("then")
    inner_w, inner_x = then.outer(w), then.outer(x)
    body = then.subgraph("body")
    body.input("round", (), "int64")
    going = body.input("going", (), "bool")
    state = body.input("state", (3,))
    body.output("go", body.op("Identity", [going]))
    body.output("next", body.op("Mul", [state, body.outer(inner_w)]))
    then.output("y", then.op("Loop", [then.outer(rounds), None, inner_x], body=body))
    other = graph.subgraph("else")
    other.output("y", other.op("Neg", [other.outer(x)]))
    y = graph.op("If", [flag], then_branch=then, else_branch=other)
    graph.output("y", graph.op("Add", [y, w]))
    module, given = walle.Module(graph.to_bytes()), numpy.array([1, 1, 2], "float32")
    scale = numpy.array([1, 2, 3], "float32")
    for flag_now, wanted in [(True, given * scale**2 + scale), (False, scale - given)]:
        found = module.run({"rounds": 2, "flag": numpy.array(flag_now), "x": given})
        numpy.testing.assert_array_equal(found["y"], wanted)


@pytest.mark.parametrize("backward", [0, 1])
def test_scan_goes_along_any_axis_in_either_direction(backward: int) -> None:
    graph = GraphBuilder("scan")
    start, x = graph.input("start", (2,)), graph.input("x", (2, 5))
    body = graph.subgraph("body")
    total = body.op("Add", [body.input("state", (2,)), body.input("column", (2,))])
    body.output("next", total)
    body.output("seen", body.op("Identity", [total]))
    last, seen = graph.op(
        "Scan",
        [start, x],
        outputs=2,
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[backward],
        scan_output_axes=[1],
        scan_output_directions=[backward],
    )
    graph.output("last", last)
    graph.output("seen", seen)
    a, b = normal(2), normal(2, 5)
    found = run(graph, start=a, x=b)
    columns = b[:, ::-1] if backward else b
    sums = a[:, None] + numpy.cumsum(columns, axis=1)
    numpy.testing.assert_allclose(found["last"], sums[:, -1], rtol=1e-5)
    numpy.testing.assert_allclose(found["seen"], sums[:, ::-1] if backward else sums, rtol=1e-5)


def test_a_batched_scan_stops_each_row_at_its_length() -> None:
    graph = GraphBuilder("scan 8")
    lens, start = graph.input("lens", (2,), "int64"), graph.input("start", (2, 1))
    x = graph.input("x", (2, 3, 1))
    body = graph.subgraph("body")
    total = body.op("Add", [body.input("state", (1,)), body.input("item", (1,))])
    body.output("next", total)
    body.output("seen", total)
    last, seen = graph.op("Scan", [lens, start, x], outputs=2, body=body, num_scan_inputs=1, batched=1)
    graph.output("last", last)
    graph.output("seen", seen)
    values = numpy.array([[1, 2, 3], [4, 5, 6]], "float32")[..., None]
    found = run(graph, lens=numpy.array([3, 1]), start=numpy.zeros((2, 1), "float32"), x=values)
    assert numpy.asarray(found["last"]).tolist() == [[6], [4]]
    assert numpy.asarray(found["seen"])[..., 0].tolist() == [[1, 3, 6], [4, 0, 0]]


def test_pieces_meet_shapes_that_depend_on_data() -> None:
    graph = GraphBuilder("positive")
    x = graph.input("x", (None,))
    positive = graph.op("Greater", [x, graph.constant("zero", 0.0)])
    kept = graph.op("Compress", [graph.op("Mul", [x, x]), positive], axis=0)
    # A computed target shape: the graph is split at the Reshape.
    size = graph.op("Cast", [graph.op("ReduceSum", [graph.op("Cast", [positive], to="int64")], keepdims=1)], to="int64")
    column = graph.op("Reshape", [kept, graph.op("Concat", [size, graph.constant("one", [1], "int64")], axis=0)])
    graph.output("y", graph.op("Tanh", [column]))
    module = walle.Module(graph.to_bytes())
    for count in (5, 9, 0):
        given = normal(count)
        wanted = numpy.tanh(given[given > 0] ** 2)[:, None]
        numpy.testing.assert_allclose(module.run({"x": given})["y"], wanted, rtol=1e-5)
    assert {"Compress", "Reshape", "Tanh"} <= {op.op for op in module.plan().ops}


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("order", [0, 1])
def test_unique_agrees_with_numpy(axis: int | None, order: int) -> None:
    x = RNG.integers(0, 3, (6, 4)).astype("float32")
    along = {} if axis is None else {"axis": axis}
    y, first, inverse, counts = map(numpy.asarray, _core.evaluate("Unique", [x], {"sorted": order, **along}, 4))
    values, where, back, number = numpy.unique(x, axis=axis, return_index=True, return_inverse=True, return_counts=True)
    rank = numpy.arange(len(where)) if order else numpy.argsort(where)
    numpy.testing.assert_array_equal(y, numpy.take(values, rank, axis=axis or 0))
    numpy.testing.assert_array_equal(first, where[rank])
    numpy.testing.assert_array_equal(counts, number[rank])
    numpy.testing.assert_array_equal(rank[inverse], back.reshape(-1))


def test_nonzero_and_compress_agree_with_numpy() -> None:
    x = RNG.integers(0, 2, (3, 4, 5)).astype("int32")
    for value in (x, x.astype(bool), x[:0], numpy.array(3.0, "float32")):
        found = numpy.asarray(_core.evaluate("NonZero", [value], {})[0])
        wanted = numpy.array(numpy.nonzero(value)) if value.ndim else numpy.zeros((0, 1), "int64")
        numpy.testing.assert_array_equal(found, wanted)
    mask = numpy.array([True, False, True])
    numpy.testing.assert_array_equal(_core.evaluate("Compress", [x, mask], {"axis": 1})[0], x[:, [0, 2]])
    numpy.testing.assert_array_equal(_core.evaluate("Compress", [x, mask], {})[0], x.reshape(-1)[[0, 2]])
    with pytest.raises(ShapeError, match="at most 3"):
        _core.evaluate("Compress", [x, numpy.ones(4, bool)], {"axis": 0})


def test_sequences_and_optionals_come_in_and_go_out() -> None:
    graph = GraphBuilder("sequence")
    given, place = graph.object_input("s"), graph.input("place", (), "int64")
    x = graph.input("x", (None,))
    longer = graph.op("SequenceInsert", [given, x, place])
    graph.output("longer", longer)
    graph.output("shorter", graph.op("SequenceErase", [longer]))
    graph.output("item", graph.op("SequenceAt", [longer, place]))
    graph.output("length", graph.op("SequenceLength", [longer]))
    graph.output("joined", graph.op("ConcatFromSequence", [longer], axis=0))
    graph.output("nothing", graph.op("Optional", []))
    module = walle.Module(graph.to_bytes())
    assert module.inputs[0] == ("s", None, None)
    parts = [numpy.array(part, "float32") for part in ([1], [2, 3])]
    found = module.run({"s": parts, "place": 1, "x": numpy.array([9], "float32")})
    assert [numpy.asarray(one).tolist() for one in found["longer"]] == [[1], [9], [2, 3]]
    assert [numpy.asarray(one).tolist() for one in found["shorter"]] == [[1], [9]]
    assert numpy.asarray(found["item"]).tolist() == [9]
    assert int(numpy.asarray(found["length"])) == 3
    assert numpy.asarray(found["joined"]).tolist() == [1, 9, 2, 3]
    assert found["nothing"] is None
    with pytest.raises(ShapeError, match=r"SequenceInsert.*position 5 is out of range for a sequence of 2"):
        module.run({"s": parts, "place": 5, "x": numpy.array([9], "float32")})
    with pytest.raises(DTypeError, match="must have one dtype"):
        module.run({"s": [*parts, parts[0].astype("float64")], "place": 0, "x": numpy.array([9], "float32")})
    with pytest.raises(ModelError, match="it must be a sequence"):
        module.run({"s": None, "place": 0, "x": numpy.array([9], "float32")})


@pytest.mark.parametrize(("split", "sizes"), [(None, [1, 1, 1, 1, 1]), (2, [2, 2, 1]), ([1, 4], [1, 4])])
def test_split_to_sequence_gives_parts_of_the_asked_sizes(split: Any, sizes: list[int]) -> None:
    graph = GraphBuilder("split")
    x = graph.input("x", (2, 5))
    given = [x] if split is None else [x, graph.constant("split", split, "int64")]
    graph.output("s", graph.op("SplitToSequence", given, axis=1))
    value = normal(2, 5)
    found = run(graph, x=value)["s"]
    wanted = numpy.split(value, numpy.cumsum(sizes)[:-1], axis=1)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        numpy.testing.assert_array_equal(ours, theirs)


def test_a_node_between_pieces_is_named_in_its_error() -> None:
    graph = GraphBuilder("wrong")
    flag = graph.input("flag", (None,), "bool")
    branch, other = graph.subgraph("then"), graph.subgraph("else")
    for one in (branch, other):
        one.output("y", one.constant("one", 1.0))
    graph.output("y", graph.op("If", [flag], name="choice", then_branch=branch, else_branch=other))
    with pytest.raises(DTypeError, match=r"'choice' \(If\): the condition must be one bool"):
        run(graph, flag=numpy.array([True, False]))
    lonely = GraphBuilder("lonely")
    lonely.output("y", lonely.op("If", [lonely.input("f", (), "bool")]))
    with pytest.raises(ModelError, match=r"'then_branch' \(a subgraph\) is missing"):
        run(lonely, f=numpy.array(True))


def test_subgraphs_nest_to_a_bound() -> None:
    def nested(graph: GraphBuilder, depth: int) -> None:
        flag = graph.input("flag", (), "bool") if depth == 20 else graph.constant(f"flag{depth}", True, "bool")
        if depth == 0:
            graph.output("y", flag)
            return
        inner = graph.subgraph("then")
        nested(inner, depth - 1)
        graph.output("y", graph.op("If", [flag], then_branch=inner, else_branch=inner))

    graph = GraphBuilder("deep")
    nested(graph, 20)
    with pytest.raises(ModelError, match="nested more than"):
        walle.Module(graph.to_bytes())


def test_threads_may_share_a_module() -> None:
    module, wrong = walle.Module(doubling_loop(scan=False).to_bytes()), []

    def work(size: int) -> None:
        x = numpy.full(size, size, "float32")
        for rounds in range(1, 20):
            found = numpy.asarray(module.run({"rounds": rounds % 5, "limit": 1e9, "x": x})["last"])
            if found.tolist() != (x * 2 ** (rounds % 5)).tolist():
                wrong.append((size, rounds))

    threads = [threading.Thread(target=work, args=(size,)) for size in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_modules_and_sessions_on_one_file_share_its_weights(tmp_path: Path) -> None:
    graph = GraphBuilder("heavy")
    y = graph.input("x", (1, 512))
    for layer in range(8):
        weights = graph.constant(f"w{layer}", numpy.full((512, 512), 1 / 512, "float32"))
        y = graph.op("MatMul", [y, weights])
    graph.output("y", y)
    graph.save(tmp_path / "heavy.walle")
    before = _core.live_storage_bytes()
    runners = [kind(tmp_path / "heavy.walle") for kind in (walle.Session, walle.Module, walle.Session)]
    for runner in runners:
        found = numpy.asarray(runner.run({"x": numpy.ones((1, 512), "float32")})["y"])
        numpy.testing.assert_allclose(found, 1, rtol=1e-4)
    # Three sessions and modules share one packed copy of the weights; the file's own weights stay mapped.
    assert _core.live_storage_bytes() - before < 1.1 * 8 * 512 * 512 * 4


def test_a_module_runs_what_a_session_runs() -> None:
    graph = GraphBuilder("plain")
    graph.output("y", graph.op("Tanh", [graph.input("x", (2, 3))]))
    data, x = graph.to_bytes(), normal(2, 3)
    ours, theirs = walle.Module(data).run({"x": x}), walle.Session(data).run({"x": x})
    numpy.testing.assert_array_equal(numpy.asarray(ours["y"]), numpy.asarray(theirs["y"]))

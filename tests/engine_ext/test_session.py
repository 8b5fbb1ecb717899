"""Sessions against NumPy: plans, merging, memory, outputs, errors, threads."""

import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle.np as np
from walle.engine_ext import _core
from walle.engine_ext.errors import DTypeError, ModelError, ShapeError, UnsupportedError
from walle.engine_ext.model import GraphBuilder, Value
from walle.engine_ext.session import Session
from walle.engine_ext.session_info import Plan, TensorInfo

RNG = numpy.random.default_rng(7)


def normal(*shape: int) -> numpy.ndarray:
    return RNG.normal(size=shape).astype("float32")


def plan_of(session: Session) -> Plan:
    plan = session.plan()
    assert plan is not None
    return plan


def sigmoid(x: numpy.ndarray) -> numpy.ndarray:
    return 1 / (1 + numpy.exp(-x))


def run_one(
    op: str, inputs: list[numpy.ndarray], constants: tuple[int, ...] = (), outputs: int = 1, **attributes: Any
) -> list[numpy.ndarray]:
    graph = GraphBuilder(op)
    values: list[Value | None] = [
        graph.constant(f"c{i}", value) if i in constants else graph.input(f"x{i}", value.shape, value.dtype.name)
        for i, value in enumerate(inputs)
    ]
    results = graph.op(op, values, outputs=outputs, **attributes)
    for i, result in enumerate(results if outputs > 1 else [results]):
        graph.output(f"y{i}", result)
    given = {f"x{i}": value for i, value in enumerate(inputs) if i not in constants}
    return [numpy.asarray(y) for y in Session(graph.to_bytes()).run(given).values()]


def gru_graph(state: int = 32, width: int = 16) -> tuple[GraphBuilder, dict[str, numpy.ndarray]]:
    weights = {"wx": normal(width, 3 * state) / 4, "uz": normal(state, 2 * state) / 6, "un": normal(state, state) / 6}
    graph = GraphBuilder("cell")
    x, h = graph.input("x", (1, width)), graph.input("h", (1, state))
    wx, uz, un = (graph.constant(name, value) for name, value in weights.items())
    gates, new = graph.op("Split", [graph.op("MatMul", [x, wx])], axis=1, split=[2 * state, state])
    both = graph.op("Sigmoid", [graph.op("Add", [gates, graph.op("MatMul", [h, uz])])])
    update, reset = graph.op("Split", [both], axis=1, split=[state, state])
    candidate = graph.op("Tanh", [graph.op("Add", [new, graph.op("MatMul", [graph.op("Mul", [reset, h]), un])])])
    graph.output("h", graph.op("Add", [candidate, graph.op("Mul", [update, graph.op("Sub", [h, candidate])])]))
    return graph, weights


def test_a_recurrent_cell_agrees_with_numpy() -> None:
    graph, w = gru_graph()
    session = Session(graph.to_bytes())
    x, h = normal(1, 16), normal(1, 32)
    px = x @ w["wx"]
    gates = sigmoid(px[:, :64] + h @ w["uz"])
    update, reset = gates[:, :32], gates[:, 32:]
    candidate = numpy.tanh(px[:, 64:] + (reset * h) @ w["un"])
    expected = candidate + update * (h - candidate)
    numpy.testing.assert_allclose(numpy.asarray(session.run({"x": x, "h": h})["h"]), expected, rtol=1e-5, atol=1e-6)
    plan = plan_of(session)
    assert (plan.rasters_made, plan.rasters_left) == (4, 0)  # all four splits only rename memory
    assert "rasters 4 before merging and 0 after" in str(plan)


def test_infos_and_a_file(tmp_path: Path) -> None:
    graph, _ = gru_graph()
    graph.save(tmp_path / "cell.walle")
    session = Session(tmp_path / "cell.walle")
    assert session.inputs == [TensorInfo("x", (1, 16), "float32"), TensorInfo("h", (1, 32), "float32")]
    assert session.outputs == [TensorInfo("h", (1, 32), "float32")]
    (tmp_path / "cell.walle").unlink()  # the mapping outlives the file's name
    assert session.run({"x": normal(1, 16), "h": normal(1, 32)})["h"].shape == (1, 32)


class Named:
    """A path by its protocol alone; its text is not a path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


def test_a_path_is_read_by_its_protocol(tmp_path: Path) -> None:
    graph, _ = gru_graph()
    graph.save(tmp_path / "cell.walle")
    assert [info.name for info in Session(Named(tmp_path / "cell.walle")).inputs] == ["x", "h"]
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"broken\.onnx: it is not a valid ONNX model"):
        Session(Named(tmp_path / "broken.onnx"))
    with pytest.raises(ValueError, match="null"):
        Session(str(tmp_path / "cell.walle") + "\0.walle")


def test_outputs_belong_to_the_caller() -> None:
    graph = GraphBuilder("g")
    x = graph.input("x", (4,))
    graph.output("twice", graph.op("Add", [x, x]))
    graph.output("same", x)
    graph.output("part", graph.op("Slice", [x], starts=[1], ends=[3]))
    graph.output("constant", graph.constant("c", [5.0]))
    session = Session(graph.to_bytes())
    first = session.run({"x": [1, 2, 3, 4]})
    second = session.run({"x": [0, 0, 0, 0]})
    assert {name: value.tolist() for name, value in first.items()} == {
        "twice": [2, 4, 6, 8], "same": [1, 2, 3, 4], "part": [2, 3], "constant": [5],
    }  # fmt: skip
    first["constant"][0] = 0.0
    assert second["constant"].tolist() == [5]


def test_one_value_may_be_several_outputs() -> None:
    graph = GraphBuilder("g")
    y = graph.op("Neg", [graph.input("x", (2, 3))])
    for name, value in {
        "a": y,
        "b": y,
        "c": graph.op("Reshape", [y], shape=[3, 2]),
        "d": graph.op("Transpose", [y]),
    }.items():
        graph.output(name, value)
    x = normal(2, 3)
    out = Session(graph.to_bytes()).run({"x": x})
    for name, expected in {"a": -x, "b": -x, "c": -x.reshape(3, 2), "d": -x.T}.items():
        numpy.testing.assert_array_equal(numpy.asarray(out[name]), expected)


def test_new_shapes_get_new_plans_and_plans_are_cached() -> None:
    graph = GraphBuilder("g")
    x = graph.input("x", (None, None, 3))
    graph.output("y", graph.op("ReduceSum", [graph.op("Softmax", [x])], axes=[0]))
    session = Session(graph.to_bytes())
    assert session.plan() is None
    assert session.inputs[0].shape == (None, None, 3)
    assert session.outputs[0].shape is None
    for shape in [(2, 4, 3), (1, 1, 3), (0, 2, 3), (2, 4, 3), *((n, n, 3) for n in range(1, 12))]:
        given = normal(*shape)
        e = numpy.exp(given - given.max(-1, keepdims=True, initial=-9))
        numpy.testing.assert_allclose(
            numpy.asarray(session.run({"x": given})["y"]),
            (e / e.sum(-1, keepdims=True)).sum(0, keepdims=True),
            rtol=1e-5,
            atol=1e-6,
        )
    with pytest.raises(ShapeError, match=r"'x' has shape \(2, 4\)"):
        session.run({"x": normal(2, 4)})
    with pytest.raises(ShapeError, match="'x' has shape"):
        session.run({"x": normal(2, 4, 5)})


def test_wrong_inputs_are_named() -> None:
    session = Session(gru_graph()[0].to_bytes())
    with pytest.raises(ModelError, match=r"takes inputs \{x, h\}, got \{x\}"):
        session.run({"x": normal(1, 16)})
    with pytest.raises(ModelError, match="got"):
        session.run({"x": normal(1, 16), "g": normal(1, 32)})
    with pytest.raises(DTypeError, match="'x' is float64, the model takes float32"):
        session.run({"x": numpy.zeros((1, 16)), "h": normal(1, 32)})
    with pytest.raises(TypeError):
        session.run({"x": None, "h": normal(1, 32)})  # type: ignore[dict-item]


def test_views_and_buffers_are_taken_as_inputs() -> None:
    graph = GraphBuilder("g")
    graph.output("y", graph.op("Neg", [graph.input("x", (2, 3))]))
    session = Session(graph.to_bytes())
    x = normal(3, 4)
    numpy.testing.assert_array_equal(session.run({"x": x.T[:2, ::-1]})["y"], -x.T[:2, ::-1])
    numpy.testing.assert_array_equal(session.run({"x": np.asarray(x).T[:2, :3]})["y"], -x.T[:2, :3])


def test_composites_agree_with_numpy() -> None:
    x, scale, bias = normal(2, 3, 5), normal(5), normal(5)
    for axis in (-1, 0, 1):
        e = numpy.exp(x - x.max(axis, keepdims=True))
        softmax = e / e.sum(axis, keepdims=True)
        numpy.testing.assert_allclose(run_one("Softmax", [x], axis=axis)[0], softmax, rtol=1e-5)
        numpy.testing.assert_allclose(
            run_one("LogSoftmax", [x], axis=axis)[0], numpy.log(softmax), rtol=1e-4, atol=1e-6
        )
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / numpy.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias
    own, mean, _ = run_one("LayerNormalization", [x, scale, bias], (1, 2), outputs=3)
    numpy.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-6)
    numpy.testing.assert_allclose(mean, x.mean(-1, keepdims=True), rtol=1e-5, atol=1e-6)
    a, b, c = normal(4, 3), normal(5, 4), normal(5)
    numpy.testing.assert_allclose(
        run_one("Gemm", [a, b, c], (1, 2), transA=1, transB=1, alpha=0.5, beta=2.0)[0],
        0.5 * (a.T @ b.T) + 2 * c,
        rtol=1e-4,
        atol=1e-5,
    )
    numpy.testing.assert_array_equal(run_one("Clip", [x], min=-0.5, max=0.5)[0], numpy.clip(x, -0.5, 0.5))
    numpy.testing.assert_array_equal(run_one("Clip", [x])[0], x)


@pytest.mark.parametrize("linear_before_reset", [0, 1])
def test_gru_agrees_with_its_equations(linear_before_reset: int) -> None:
    steps, batch, width, h = 4, 2, 3, 5
    x, w, r, b, start = (
        normal(steps, batch, width),
        normal(1, 3 * h, width),
        normal(1, 3 * h, h),
        normal(1, 6 * h),
        normal(1, batch, h),
    )
    graph = GraphBuilder("gru")
    inputs = [
        graph.input("x", x.shape),
        *(graph.constant(name, value) for name, value in (("w", w), ("r", r), ("b", b))),
    ]
    ys, last = graph.op(
        "GRU",
        [*inputs, None, graph.input("h", start.shape)],
        outputs=2,
        hidden_size=h,
        linear_before_reset=linear_before_reset,
    )
    graph.output("ys", ys)
    graph.output("last", last)
    own = Session(graph.to_bytes()).run({"x": x, "h": start})
    state, states = start[0], []
    (wz, wr, wh), (rz, rr, rh) = numpy.split(w[0], 3), numpy.split(r[0], 3)
    bz, br, bh, cz, cr, ch = numpy.split(b[0], 6)
    for step in x:
        z = sigmoid(step @ wz.T + state @ rz.T + bz + cz)
        reset = sigmoid(step @ wr.T + state @ rr.T + br + cr)
        inner = reset * (state @ rh.T + ch) if linear_before_reset else (reset * state) @ rh.T + ch
        state = (1 - z) * numpy.tanh(step @ wh.T + inner + bh) + z * state
        states.append(state)
    numpy.testing.assert_allclose(numpy.asarray(own["ys"]), numpy.stack(states)[:, None], rtol=1e-4, atol=1e-5)
    numpy.testing.assert_allclose(numpy.asarray(own["last"]), state[None], rtol=1e-4, atol=1e-5)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_chains_of_transforms_merge_and_stay_right(data: st.DataObject) -> None:
    """Compare a random chain with branches that are joined again, in a session and in NumPy."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    there = numpy.arange(numpy.prod(shape), dtype="float32").reshape(shape)
    graph = GraphBuilder("chain")
    value = graph.input("x", shape)
    given, count = there, data.draw(st.integers(1, 7))
    for _ in range(count):
        axis = data.draw(st.integers(0, there.ndim - 1))
        match data.draw(
            st.sampled_from(["transpose", "slice", "join", "reshape", "expand", "gather", "pad", "neg", "split"])
        ):
            case "transpose":
                perm = data.draw(st.permutations(range(there.ndim)))
                value, there = graph.op("Transpose", [value], perm=perm), there.transpose(perm)
            case "slice":
                start, step = data.draw(st.integers(0, there.shape[axis] - 1)), data.draw(st.sampled_from([1, 2, -1]))
                end = there.shape[axis] if step > 0 else -(2**40)
                value = graph.op("Slice", [value], starts=[start], ends=[end], axes=[axis], steps=[step])
                there = there[(*[slice(None)] * axis, slice(start, None, step))]
            case "join":
                other = graph.op("Slice", [value], starts=[-1], ends=[-(2**40)], axes=[axis], steps=[-1])
                value = graph.op("Concat", [value, other], axis=axis)
                there = numpy.concatenate([there, numpy.flip(there, axis)], axis)
            case "reshape":
                rest = there.size // 2 if there.size % 2 == 0 else there.size
                to = (there.size // rest, rest)
                value, there = graph.op("Reshape", [value], shape=list(to)), there.reshape(to)
            case "expand":
                value = graph.op("Unsqueeze", [value], axes=[0])
                value, there = graph.op("Expand", [value], shape=[2, *there.shape]), numpy.stack([there, there])
            case "gather":
                indices = data.draw(
                    st.lists(st.integers(-there.shape[axis], there.shape[axis] - 1), min_size=1, max_size=4)
                )
                index = graph.constant(f"i{len(indices)}{there.size}{_}", indices)
                value, there = graph.op("Gather", [value, index], axis=axis), there.take(indices, axis)
            case "pad":
                pads = [0] * 2 * there.ndim
                pads[axis] = 1
                value = graph.op("Pad", [value], pads=pads, value=-1.0)
                there = numpy.pad(there, [(1 if i == axis else 0, 0) for i in range(there.ndim)], constant_values=-1)
            case "neg":
                value, there = graph.op("Neg", [value]), -there
            case "split":
                cut = data.draw(st.integers(0, there.shape[axis] - 1))
                parts = graph.op("Split", [value], axis=axis, split=[cut, there.shape[axis] - cut])
                value, there = parts[1], numpy.split(there, [cut], axis)[1]
        if there.ndim > 5 or there.size > 3000:
            break
    graph.output("y", value)
    own = Session(graph.to_bytes()).run({"x": given})["y"]
    assert own.shape == there.shape
    numpy.testing.assert_array_equal(numpy.asarray(own), there)


def test_successive_rasters_become_one_and_equal_ones_are_done_once() -> None:
    graph = GraphBuilder("g")
    x = graph.input("x", (4, 6))
    chain = graph.op("Transpose", [x], perm=[1, 0])
    chain = graph.op("Slice", [chain], starts=[1], ends=[5], axes=[0])
    chain = graph.op("Reshape", [chain], shape=[2, 2, 4])
    chain = graph.op("Concat", [chain, chain], axis=0)
    graph.output("a", graph.op("Neg", [chain]))
    again = graph.op("Reshape", [graph.op("Transpose", [x], perm=[1, 0])], shape=[24])
    other = graph.op("Flatten", [graph.op("Transpose", [x])], axis=0)
    graph.output("b", graph.op("Neg", [graph.op("Add", [again, other])]))
    session = Session(graph.to_bytes())
    plan = plan_of(session)
    assert (plan.rasters_made, plan.rasters_left) == (8, 2)
    given = normal(4, 6)
    own = session.run({"x": given})
    part = given.T[1:5].reshape(2, 2, 4)
    numpy.testing.assert_array_equal(own["a"], -numpy.concatenate([part, part]))
    numpy.testing.assert_array_equal(own["b"], -2 * given.T.reshape(1, 24))


def test_values_that_depend_on_constants_alone_are_computed_once() -> None:
    graph = GraphBuilder("g")
    weights = graph.op("Transpose", [graph.op("Exp", [graph.constant("w", normal(3, 4))])])
    graph.output("y", graph.op("MatMul", [graph.input("x", (2, 4)), weights]))
    assert [op.op for op in plan_of(Session(graph.to_bytes())).ops] == ["Linear"]


def test_memory_is_reused_and_a_run_allocates_its_outputs_only() -> None:
    graph = GraphBuilder("long")
    value = graph.input("x", (1000,))
    for _ in range(50):
        value = graph.op("Sin", [value])
    graph.output("y", value)
    session = Session(graph.to_bytes())
    assert plan_of(session).arena_bytes < 3 * 4096
    x = np.zeros(1000)
    before = _core.live_storage_bytes()
    y = session.run({"x": x})["y"]
    assert _core.live_storage_bytes() - before == (y.nbytes // 64 + 1) * 64


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "error", "message"),
    [
        ("Conv3000", [(1,)], {}, UnsupportedError, "'Conv3000_0': operator 'Conv3000' is unknown"),
        ("Add", [(2,), (3,)], {}, ShapeError, r"node 'Add_0' \(Add\): shapes \(2,\) and \(3,\)"),
        ("Add", [(2,)], {}, ModelError, r"\(Add\) has 1 inputs"),
        ("MatMul", [(2, 3), (2, 3)], {}, ShapeError, "3 columns against 2 rows"),
        ("Transpose", [(2, 3)], {"perm": [0, 5]}, ShapeError, "axis 5"),
        ("Reshape", [(2, 3)], {}, ModelError, "'shape' is missing"),
        ("Reshape", [(2, 3)], {"shape": [4]}, ShapeError, r"\(2, 3\) to \(4,\)"),
        ("Softmax", [(2,)], {"axis": "last"}, ModelError, "'axis' has the wrong type; it must be an int"),
        ("Pad", [(2,)], {"pads": [1, 1], "mode": "odd"}, UnsupportedError, "odd"),
        ("Split", [(4,)], {"split": [1, 2]}, ShapeError, "Split"),
        ("Cast", [(4,)], {"to": 99}, UnsupportedError, "'to' is 99, which is not a dtype"),
        ("ReduceSum", [(4,)], {"axes": [0, 0]}, ShapeError, "twice"),
    ],
)
def test_a_wrong_node_is_named(
    op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], error: type[Exception], message: str
) -> None:
    graph = GraphBuilder("g")
    made = graph.op(op, [graph.input(f"x{i}", shape) for i, shape in enumerate(shapes)], **attributes)
    graph.output("y", made[0] if isinstance(made, list) else made)
    with pytest.raises(error, match=message):
        Session(graph.to_bytes())


def test_threads_may_share_a_session() -> None:
    graph = GraphBuilder("g")
    x = graph.input("x", (32, 32))
    graph.output("y", graph.op("Tanh", [graph.op("MatMul", [x, x])]))
    session = Session(graph.to_bytes())
    wrong: list[int] = []

    def work(seed: int) -> None:
        given = numpy.random.default_rng(seed).normal(size=(32, 32)).astype("float32")
        expected = numpy.tanh(given @ given)
        runs = (session.run({"x": given})["y"] for _ in range(50))
        wrong.extend(seed for y in runs if not numpy.allclose(y, expected, atol=1e-4))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

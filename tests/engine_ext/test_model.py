"""GraphBuilder and the `.walle` reader: round trips, and errors for broken files."""

import contextlib
import struct
import zlib
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.engine_ext.errors import DTypeError, ModelError, ShapeError
from walle.engine_ext.model import BITS_ONLY, DTYPES, VERSION, GraphBuilder, Value, tensor_bytes
from walle.engine_ext.session import Module, Session
from walle.errors import EngineError


def small() -> bytes:
    graph = GraphBuilder("small")
    x = graph.input("x", (None, 3))
    graph.output("y", graph.op("Tanh", [graph.op("Add", [x, graph.constant("c", [1.0, 2.0, 3.0])])], name="last"))
    return graph.to_bytes()


def branching(depth: int = 2) -> bytes:
    """Return an If within an If whose innermost branches read a value of the outermost graph."""

    def branch(around: GraphBuilder, x: Value, condition: Value, left: int) -> GraphBuilder:
        body = around.subgraph(f"branch {left}")
        inner = body.outer(x)
        if left == 0:
            body.output("r", body.op("Neg", [inner]))
        else:
            asked = body.outer(condition)
            inside = branch(body, inner, asked, left - 1)
            other = branch(body, inner, asked, 0)
            body.output("r", body.op("If", [asked], then_branch=inside, else_branch=other))
        return body

    graph = GraphBuilder("branching")
    x, condition = graph.input("x", None, None), graph.input("c", (), "bool")
    both = branch(graph, x, condition, depth - 1)
    graph.output("y", graph.op("If", [condition], then_branch=both, else_branch=both))
    return graph.to_bytes()


def forged(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Return the file with some bytes changed and its checksums corrected."""
    changed = bytearray(data)
    for at, value in changes:
        changed[at % len(changed)] = value
    data_at = struct.unpack_from("<Q", changed, 40)[0]
    changed[56:60] = struct.pack("<I", zlib.crc32(changed[data_at:]))
    changed[60:64] = struct.pack("<I", zlib.crc32(changed[64:data_at], zlib.crc32(changed[:60])))
    return bytes(changed)


def test_subgraphs_read_the_graphs_around_them() -> None:
    for depth in (1, 2, 5):
        for condition in (True, False):
            out = Module(branching(depth)).run({"x": numpy.array([1, 2], "float32"), "c": numpy.array(condition)})
            numpy.testing.assert_array_equal(numpy.asarray(out["y"]), [-1, -2])


def test_subgraphs_that_reach_too_far_are_refused() -> None:
    data = branching(1)
    outer = data.index(b"\x02\x00\x00\x00^x\x03") + 7  # length, name, kind; then the number
    with pytest.raises(ModelError, match="value 99 of the graph around"):
        Module(forged(data, [(outer, 99)]))
    with pytest.raises(ModelError, match="nested"):
        Module(branching(40))


def test_mistakes_with_subgraphs_are_reported_immediately() -> None:
    graph = GraphBuilder("g")
    x = graph.input("x", (1,))
    with pytest.raises(ModelError, match="not a value of the graph around"):
        graph.outer(x)
    inner = graph.subgraph("inner")
    inner.output("r", inner.outer(x))
    with pytest.raises(ModelError, match="part of 'g'"):
        inner.to_bytes()


def test_every_dtype_comes_back_in_place() -> None:
    graph = GraphBuilder("constants")
    bits = {name: {"b": "int8", "B": "uint8", "H": "uint16"}[DTYPES[name][1]] for name in BITS_ONLY}
    values = {name: numpy.array([[0, 1], [1, 0]]).astype(bits.get(name, name)) for name in DTYPES}
    for name, value in values.items():
        graph.output(f"out {name}", graph.constant(name, value, name))
    out = Session(graph.to_bytes()).run({})
    for name, value in values.items():
        assert out[f"out {name}"].dtype == name
        assert out[f"out {name}"].tobytes() == value.tobytes()


def test_the_file_is_laid_out_as_documented() -> None:
    data = small()
    magic, version, flags, size, graph_at, graph_size, data_at, data_size, data_crc, head_crc = struct.unpack_from(
        "<8sIIQQQQQII", data
    )
    assert (magic, version, flags, size) == (b"WALLE\r\n\x1a", VERSION, 0, len(data))
    assert (graph_at, data_at % 64, data_at + data_size) == (64, 0, size)
    assert graph_at + graph_size <= data_at
    assert struct.unpack_from("<3f", data, data_at) == (1, 2, 3)
    assert data_crc == zlib.crc32(data[data_at:])
    assert head_crc == zlib.crc32(data[64:data_at], zlib.crc32(data[:60]))


def test_every_flipped_byte_and_every_cut_is_a_model_error() -> None:
    data = small()
    for at in range(len(data)):
        with pytest.raises(ModelError):
            Session(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(ModelError):
            Session(data[:at])
    with pytest.raises(ModelError):
        Session(data + b"\0")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(8, 4095), st.integers(0, 255)), min_size=1, max_size=5))
def test_forged_files_with_right_checksums_never_crash(changes: list[tuple[int, int]]) -> None:
    with contextlib.suppress(EngineError, MemoryError):
        Session(forged(small(), changes)).run({"x": numpy.zeros((2, 3), "float32")})
    with contextlib.suppress(EngineError, MemoryError):
        Module(forged(branching(), changes)).run({"x": numpy.zeros((2, 3), "float32"), "c": numpy.array(True)})


def test_files_that_are_not_models(tmp_path: Path) -> None:
    empty = tmp_path / "empty.walle"
    empty.touch()
    for path, message in [(tmp_path / "no.walle", "No such file"), (tmp_path, "not a regular file"), (empty, "empty")]:
        with pytest.raises(ModelError, match=message):
            Session(path)
    (tmp_path / "text.walle").write_text("walle " * 100)
    with pytest.raises(ModelError, match=r"text\.walle.*begins with other bytes"):
        Session(tmp_path / "text.walle")


def test_a_newer_version_says_so() -> None:
    data = bytearray(small())
    data[8] = VERSION + 1
    with pytest.raises(ModelError, match=f"version {VERSION + 1}, this engine reads {VERSION}"):
        Session(bytes(data))


def test_saving_is_atomic_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    graph = GraphBuilder("g")
    graph.output("y", graph.op("Neg", [graph.input("x", (2,))]))
    target = tmp_path / "m.walle"
    target.write_bytes(b"old")
    graph.save(target)
    assert target.read_bytes() == graph.to_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["m.walle"]
    with pytest.raises(FileNotFoundError):
        graph.save(tmp_path / "absent" / "m.walle")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        graph.save(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "m.walle"]


def test_the_same_graph_gives_the_same_bytes() -> None:
    assert small() == small()


def test_mistakes_in_building_are_reported_immediately() -> None:
    graph = GraphBuilder("g")
    x = graph.input("x", (2,))
    with pytest.raises(ModelError, match="two tensors named 'x'"):
        graph.constant("x", 1.0)
    with pytest.raises(ModelError, match="no output"):
        graph.to_bytes()
    with pytest.raises(DTypeError, match="'float33'"):
        graph.input("z", (1,), "float33")
    with pytest.raises(ShapeError, match="negative"):
        graph.input("z", (-3,))
    with pytest.raises(ShapeError, match="different lengths"):
        graph.constant("z", [[1, 2], [3]])
    with pytest.raises(DTypeError, match="asked for"):
        graph.constant("z", numpy.zeros(2), "float32")
    with pytest.raises(DTypeError, match="do not fit uint8"):
        graph.constant("z", [300], "uint8")
    with pytest.raises(ModelError, match="attribute 'axis'"):
        graph.op("Concat", [x], axis=[None])  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="another graph"):
        GraphBuilder("other").op("Neg", [x])
    graph.output("y", x)
    with pytest.raises(ModelError, match="two outputs named 'y'"):
        graph.output("y", x)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, ("int64", ())), (1.5, ("float32", ())), ([True, False], ("bool", (2,))), ([1, 2.5], ("float32", (2,))),
        ([[1, 2], [3, 4]], ("int64", (2, 2))), (numpy.zeros((2, 3)), ("float64", (2, 3))), ([], ("float32", (0,))),
    ],
)  # fmt: skip
def test_constants_find_their_dtype(value: object, expected: tuple[str, tuple[int, ...]]) -> None:
    assert tensor_bytes(value, None)[:2] == expected


def test_names_may_be_any_valid_utf8() -> None:
    graph = GraphBuilder("Grüße \U0001f680")
    graph.output("出力", graph.op("Neg", [graph.input("\u07ff\uffff\U0010ffff", (1,))]))
    data = graph.to_bytes()
    assert list(Session(data).run({"\u07ff\uffff\U0010ffff": [1.0]})) == ["出力"]
    for broken in (b"\xc1\xbf\xbf", b"\xed\xa0\x80", b"\xe0\x80\x80", b"\xff\xff\xff", b"ab\xe5"):
        with pytest.raises(ModelError, match="UTF-8"):
            Session(forged(data.replace("出".encode(), broken), []))

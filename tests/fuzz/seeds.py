"""Write the fuzzer's seed corpus: small models of every operator, made by the project's own converter and writer.

    python tests/fuzz/seeds.py FOLDER [max_bytes]

Most are the node tests of the ONNX package, also with all inputs but the first as constants, so that folding is met
too; the others are what no ONNX model says: operators that only decompositions use, every dtype, subgraphs in
subgraphs.
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

from walle.engine_ext.conversion.convert import convert_bytes
from walle.engine_ext.model import BITS_ONLY, DTYPES, GraphBuilder, Value
from walle.errors import EngineError


def node_tests() -> Iterator[bytes]:
    """Yield the node tests that convert, unchanged and with all inputs but the first as initializers."""
    for case in collect_testcases(""):
        if case.model is None:
            continue
        models = [case.model]
        values = case.data_sets[0][0] if case.data_sets else []
        infos = list(case.model.graph.input)
        if len(infos) > 1 and len(values) == len(infos):
            fixed = onnx.ModelProto.FromString(case.model.SerializeToString())
            del fixed.graph.input[:]
            fixed.graph.input.append(infos[0])
            try:
                fixed.graph.initializer.extend(
                    numpy_helper.from_array(value, info.name)
                    for info, value in zip(infos[1:], values[1:], strict=True)
                    if info.name
                )
                models.append(fixed)
            except (TypeError, AttributeError, ValueError):
                pass  # a sequence or an optional cannot be an initializer
        for model in models:
            try:
                yield convert_bytes(model)
            except (EngineError, ValueError, NotImplementedError):
                continue


def internal() -> Iterator[GraphBuilder]:
    """Yield models of operators that only decompositions use, and of every dtype."""

    def model(name: str, op: str, inputs: list[tuple[list[int], str]], **attributes: Any) -> GraphBuilder:
        g = GraphBuilder(name)
        values: list[Value | None] = [g.input(f"x{i}", shape, dtype) for i, (shape, dtype) in enumerate(inputs)]
        g.output("y", g.op(op, values, **attributes))
        return g

    yield model(
        "gather", "IndexedGather", [([4, 3], "float32"), ([2], "int64")], size=[2, 3], indexed_stride=[0, 1],
        plain_stride=[3, 1], index_stride=[1, 0], offsets=[0, 0, 0, 0], weight=[3], extent=[4], shape=[2, 3],
    )  # fmt: skip
    yield model(
        "scatter", "IndexedScatter", [([4, 3], "float32"), ([2], "int64"), ([2, 3], "float32")], size=[2, 3],
        indexed_stride=[0, 1], plain_stride=[3, 1], index_stride=[1, 0], offsets=[0, 0, 0, 0], weight=[3], extent=[4],
        reduction="add",
    )  # fmt: skip
    for op in ("PoolMax", "PoolMean", "PoolSum", "PoolArgMax"):
        yield model(op, op, [([1, 2, 5, 5], "float32")], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 1])
    for op in ("TopValues", "TopIndices"):
        yield model(op, op, [([3, 5], "int32")], k=2, axis=1)
    yield model(
        "lstm", "RecurrentSteps",
        [([3, 2, 8], "float32"), ([8, 2], "float32"), ([2, 2], "float32"), ([2, 2], "float32")],
        cell="LSTM",
    )  # fmt: skip
    yield model("gru", "RecurrentSteps", [([3, 2, 6], "float64"), ([6, 2], "float64"), ([2, 2], "float64")], cell="GRU")
    yield model("resample", "Resample", [([2, 4], "float32"), ([3, 2], "int64"), ([3, 2], "float32")], axis=1)
    yield model("deform", "DeformColumns", [([1, 2, 4, 4], "float32"), ([1, 8, 3, 3], "float32")], kernel_shape=[2, 2])
    yield model("strided", "AsStrided", [([3, 3], "float16")], shape=[3], strides=[4], offset=0)
    yield model("stack", "Stack", [([2], "uint8"), ([2], "uint8")], axis=0)
    g = GraphBuilder("dtypes")
    for dtype in DTYPES:
        bits = dtype in BITS_ONLY
        constant = g.constant(f"c_{dtype}", [1, 0, 1] if bits or dtype == "bool" else [1, 2, 3], dtype)
        x = g.input(f"x_{dtype}", [3], dtype)
        g.output(dtype, g.op("Cast", [g.op("Concat", [constant, x], axis=0)], to="float32"))
    yield g
    yield nested()


def nested() -> GraphBuilder:
    """Return a loop with a branch in it that captures values from two graphs out."""
    g = GraphBuilder("nested")
    x, trips = g.input("x", [2, 3]), g.constant("trips", 3)
    body = g.subgraph("body")
    body.input("i", [], "int64")
    condition = body.input("go", [], "bool")
    carried = body.input("carried", [2, 3])
    branches = {}
    for key, op in (("then_branch", "Neg"), ("else_branch", "Abs")):
        branch = body.subgraph(key)
        branch.output("y", branch.op(op, [branch.outer(carried)]))
        branches[key] = branch
    chosen = body.op("If", [condition], then_branch=branches["then_branch"], else_branch=branches["else_branch"])
    joined = body.op("Add", [chosen, body.outer(x)])
    body.output("again", body.op("Identity", [condition]))
    body.output("next", joined)
    body.output("seen", joined)
    last, seen = g.op("Loop", [trips, None, x], outputs=2, body=body)
    g.output("last", last)
    g.output("seen", seen)
    return g


def main(folder: Path, max_bytes: int) -> None:
    """Write each model that is small enough to a file named by the hash of its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for data in (*(graph.to_bytes() for graph in internal()), *node_tests()):
        if len(data) <= max_bytes:
            (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
            written += 1
    sys.stdout.write(f"{written} seeds of at most {max_bytes} bytes in {folder}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4096)

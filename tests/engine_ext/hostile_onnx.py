"""ONNX files that are broken or hostile, made by code: each with what an error of it says, or that it converts."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.sim.onnx_models import NODE, model

IMAGE = np.zeros((1, 4, 8, 8), np.float32)
X = np.zeros((2, 3, 4), np.float32)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@dataclass(frozen=True, slots=True)
class HostileFile:
    """A file. `error` is a pattern that the message of its error has; "" where the model is valid and converts.

    `prepare` makes the files beside it in its folder.
    """

    name: str
    data: bytes
    error: str
    prepare: Callable[[Path], object] | None = None


def one_node(node: onnx.NodeProto, inputs: dict[str, Any], weights: dict[str, Any] | None = None, **more: Any) -> bytes:
    return bytes(model([node], inputs, ["y"], weights=weights or {}, **more).SerializeToString())


def pool(op: str, **attributes: Any) -> bytes:
    return one_node(NODE(op, ["x"], ["y"], name="culprit", **attributes), {"x": IMAGE})


def conv(op: str = "Conv", **attributes: Any) -> bytes:
    node = NODE(op, ["x", "w"], ["y"], name="culprit", **attributes)
    return one_node(node, {"x": IMAGE}, {"w": np.ones((4, 4, 3, 3), np.float32)})


def attribute_cases() -> Iterator[HostileFile]:
    """Attributes that onnx's shape inference divides by, or computes sizes from."""
    for value, size in ((0, "zero"), (-1, "negative"), (1 << 62, "huge")):
        both = [value, value]
        names = r"culprit.*{}.*" + str(value)
        for op in ("MaxPool", "AveragePool", "LpPool"):
            yield HostileFile(
                f"{size} strides of {op}", pool(op, kernel_shape=[2, 2], strides=both), names.format("strides")
            )
        yield HostileFile(f"{size} strides of Conv", conv(strides=both), names.format("strides"))
        yield HostileFile(f"{size} dilations of Conv", conv(dilations=both), names.format("dilations"))
        yield HostileFile(f"{size} kernel of MaxPool", pool("MaxPool", kernel_shape=both), names.format("kernel_shape"))
        yield HostileFile(f"{size} group of Conv", conv(group=value), names.format("group"))
        yield HostileFile(
            f"{size} strides of ConvTranspose", conv("ConvTranspose", strides=both), names.format("strides")
        )
        node = NODE("DepthToSpace", ["x"], ["y"], name="culprit", blocksize=value)
        yield HostileFile(f"{size} block of DepthToSpace", one_node(node, {"x": IMAGE}), names.format("blocksize"))
        node = NODE("SpaceToDepth", ["x"], ["y"], name="culprit", blocksize=value)
        yield HostileFile(f"{size} block of SpaceToDepth", one_node(node, {"x": IMAGE}), names.format("blocksize"))
    pads = [1 << 62] * 4
    yield HostileFile("huge pads of Conv", conv(pads=pads), "culprit.*pads")
    yield HostileFile("strides that are text", conv(strides="2"), "culprit.*strides.*STRING.*INTS")
    yield HostileFile("a group that is a list", conv(group=[1, 1]), "culprit.*group.*INTS.*INT")
    group = NODE("GroupNormalization", ["x", "s", "s"], ["y"], name="culprit", num_groups=0)
    yield HostileFile(
        "zero groups of GroupNormalization",
        one_node(group, {"x": IMAGE}, {"s": np.ones(4, np.float32)}),
        "culprit.*num_groups",
    )
    split = NODE("Split", ["x"], ["y"], name="culprit", num_outputs=0)
    yield HostileFile("Split into zero", one_node(split, {"x": X}), "culprit.*num_outputs")
    heads = NODE("Attention", ["x", "x", "x"], ["y"], name="culprit", q_num_heads=0, kv_num_heads=0)
    yield HostileFile("Attention with zero heads", one_node(heads, {"x": X}, opset=23), "culprit")


def body(nodes: list[onnx.NodeProto], outputs: list[str], inputs: list[Any] | None = None) -> onnx.GraphProto:
    return helper.make_graph(nodes, "body", inputs or [], [onnx.ValueInfoProto(name=name) for name in outputs])


def function(name: str, nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], nodes, imports)


def calls(name: str, *functions: onnx.FunctionProto) -> bytes:
    node = NODE(name, ["x"], ["y"], domain="own", name="culprit")
    return bytes(model([node], {"x": X}, ["y"], functions=functions, domains=["own"]).SerializeToString())


def function_cases() -> Iterator[HostileFile]:
    """Functions that onnx's inliner follows without a bound."""

    def call(name: str, given: str = "a", made: str = "b") -> onnx.NodeProto:
        node: onnx.NodeProto = NODE(name, [given], [made], domain="own")
        return node

    yield HostileFile("a function that calls itself", calls("F", function("F", [call("F")])), "'F' calls itself")
    yield HostileFile(
        "functions that call each other",
        calls("F", function("F", [call("G")]), function("G", [call("F")])),
        "'F' → 'G'|'G' → 'F'",
    )
    inner = NODE(
        "If",
        ["c"],
        ["b"],
        then_branch=body([call("F", "a", "t")], ["t"]),
        else_branch=body([call("F", "a", "t")], ["t"]),
    )
    constant = NODE("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    yield HostileFile(
        "a function that calls itself in a branch", calls("F", function("F", [constant, inner])), "'F' calls itself"
    )
    doubling = [function("F0", [NODE("Neg", ["a"], ["b"])])]
    doubling += [function(f"F{i}", [call(f"F{i - 1}", "a", "t"), call(f"F{i - 1}", "t", "b")]) for i in range(1, 31)]
    yield HostileFile("2^30 nodes by functions", calls("F30", *doubling), r"more than \d+ nodes")
    chain = [function("F0", [NODE("Neg", ["a"], ["b"])])]
    chain += [function(f"F{i}", [call(f"F{i - 1}")]) for i in range(1, 2000)]
    yield HostileFile("a chain of 2,000 functions", calls("F1999", *chain), "nested more than")
    yield HostileFile("a function that is missing", calls("Nothing"), "culprit.*Nothing")


def branches(depth: int) -> onnx.GraphProto:
    graph = body([NODE("Identity", ["x"], ["r"])], ["r"])
    for index in range(depth):
        graph = body(
            [NODE("If", ["c"], [f"r{index}"], name=f"level {index}", then_branch=graph, else_branch=graph)],
            [f"r{index}"],
        )
    return graph


def control_cases() -> Iterator[HostileFile]:
    condition = np.array(True)
    deep = branches(8)
    deep.node[0].output[0] = deep.output[0].name = "y"
    graph = model([deep.node[0]], {"x": X, "c": condition}, ["y"])
    yield HostileFile("eight nested branches", graph.SerializeToString(), "")
    turns = np.array(3, np.int64)
    few = body([NODE("Neg", ["v"], ["w"])], ["w"], [helper.make_tensor_value_info("i", INT64, [])])
    loop = NODE("Loop", ["n", "c", "x"], ["y"], name="culprit", body=few)
    yield HostileFile(
        "a loop whose body has too few inputs",
        model([loop], {"n": turns, "c": condition, "x": X}, ["y"]).SerializeToString(),
        "culprit|'v'",
    )
    none = NODE("Loop", ["n", "c", "x"], ["y"], name="culprit")
    yield HostileFile(
        "a loop without a body",
        model([none], {"n": turns, "c": condition, "x": X}, ["y"]).SerializeToString(),
        "culprit",
    )
    half = NODE("If", ["c"], ["y"], name="culprit", then_branch=body([NODE("Identity", ["x"], ["t"])], ["t"]))
    yield HostileFile(
        "an If with one branch", model([half], {"c": condition, "x": X}, ["y"]).SerializeToString(), "culprit"
    )
    uneven = NODE("If", ["c"], ["y"], name="culprit", then_branch=body([NODE("Identity", ["x"], ["t"])], ["t"]),
                  else_branch=body([NODE("Identity", ["x"], ["t"])], ["t", "t"]))  # fmt: skip
    yield HostileFile(
        "branches with different numbers of results",
        model([uneven], {"c": condition, "x": X}, ["y"]).SerializeToString(),
        "culprit",
    )


def graph_cases() -> Iterator[HostileFile]:
    first, second = NODE("Neg", ["b"], ["a"], name="culprit"), NODE("Neg", ["a"], ["b"])
    yield HostileFile("a cycle", model([first, second], {}, ["b"]).SerializeToString(), "culprit.*'b'")
    yield HostileFile(
        "a missing input", one_node(NODE("Neg", ["nothing"], ["y"], name="culprit"), {"x": X}), "culprit.*nothing"
    )
    twice = [NODE("Neg", ["x"], ["y"]), NODE("Abs", ["x"], ["y"], name="culprit")]
    yield HostileFile("a value that is made twice", model(twice, {"x": X}, ["y"]).SerializeToString(), "culprit.*'y'")
    proto = model([NODE("Neg", ["w"], ["y"])], {"x": X}, ["y"], weights={"w": X})
    proto.graph.initializer.append(proto.graph.initializer[0])
    yield HostileFile("two initializers of one name", proto.SerializeToString(), "two initializers 'w'")
    proto = model([NODE("Neg", ["x"], ["y"])], {"x": X}, ["y"])
    proto.graph.input.append(proto.graph.input[0])
    yield HostileFile("two inputs of one name", proto.SerializeToString(), "'x'")
    proto = model([NODE("Neg", ["x"], ["y"])], {"x": X}, ["z"])
    yield HostileFile("an output without a producer", proto.SerializeToString(), "'z'")
    proto = model([NODE("Neg", ["x"], ["y"])], {"x": X}, [])
    yield HostileFile("no output", proto.SerializeToString(), "no output")
    yield HostileFile(
        "too many inputs of a node", one_node(NODE("Neg", ["x"] * 5000, ["y"], name="culprit"), {"x": X}), "culprit"
    )
    yield HostileFile("no inputs of a node", one_node(NODE("Conv", [], ["y"], name="culprit"), {}), "culprit")
    yield HostileFile(
        "too many outputs of a node",
        one_node(NODE("Neg", ["x"], ["y", *(f"o{i}" for i in range(500))], name="culprit"), {"x": X}),
        "culprit",
    )


def version_cases() -> Iterator[HostileFile]:
    for version in (0, -3):
        yield HostileFile(f"opset {version}", one_node(NODE("Neg", ["x"], ["y"]), {"x": X}, opset=version), "version")
    yield HostileFile("opset 2^62", one_node(NODE("Neg", ["x"], ["y"]), {"x": X}, opset=1 << 62), "opset")
    proto = model([NODE("Neg", ["x"], ["y"])], {"x": X}, ["y"])
    del proto.opset_import[:]
    yield HostileFile("no opset", proto.SerializeToString(), "opset")


def tensor(dims: list[int], kind: int = FLOAT, **fields: Any) -> onnx.TensorProto:
    return onnx.TensorProto(name="w", data_type=kind, dims=dims, **fields)


def with_tensor(one: onnx.TensorProto) -> bytes:
    proto = model([NODE("Neg", ["w"], ["y"])], {"x": X}, ["y"])
    proto.graph.initializer.append(one)
    return bytes(proto.SerializeToString())


def tensor_cases() -> Iterator[HostileFile]:
    yield HostileFile("negative dimensions", with_tensor(tensor([-4], raw_data=bytes(16))), "'w'.*-4")
    yield HostileFile("dimensions of 2^62", with_tensor(tensor([1 << 62, 1 << 62], raw_data=bytes(16))), "'w'")
    yield HostileFile("data that is cut off", with_tensor(tensor([4], raw_data=bytes(15))), "'w'.*15 bytes.*16")
    yield HostileFile(
        "more data than dimensions", with_tensor(tensor([4], raw_data=bytes(20_000))), "'w'.*20000 bytes.*16"
    )
    yield HostileFile("large data that is cut off", with_tensor(tensor([10_000], raw_data=bytes(39_999))), "'w'.*39999")
    yield HostileFile("numbers that are missing", with_tensor(tensor([4], float_data=[1.0, 2.0])), "'w'.*2 numbers.*4")
    yield HostileFile("numbers of 2^40 elements", with_tensor(tensor([1 << 40], float_data=[1.0])), "'w'")
    yield HostileFile("numbers in the field of another type", with_tensor(tensor([2], int64_data=[1, 2])), "'w'")
    yield HostileFile(
        "int4 of a wrong size", with_tensor(tensor([9], TensorProto.INT4, raw_data=bytes(4))), "'w'.*4 bytes.*5"
    )
    yield HostileFile("int4 of 2^60 elements", with_tensor(tensor([1 << 60], TensorProto.INT4, int32_data=[1])), "'w'")
    yield HostileFile(
        "texts of a wrong number", with_tensor(tensor([3], TensorProto.STRING, string_data=[b"a"])), "'w'.*1 texts.*3"
    )
    yield HostileFile(
        "texts that are not UTF-8", with_tensor(tensor([1], TensorProto.STRING, string_data=[b"\xff"])), "'w'.*UTF-8"
    )
    yield HostileFile("an unknown element type", with_tensor(tensor([4], 999, raw_data=bytes(16))), "'w'.*999")
    yield HostileFile("no element type", with_tensor(tensor([4], 0, raw_data=bytes(16))), "'w'.*type")
    proto = model([NODE("Neg", ["x"], ["y"])], {"x": X}, ["y"])
    proto.graph.input[0].type.tensor_type.elem_type = 999
    yield HostileFile("an input of an unknown type", proto.SerializeToString(), "'x'.*999")
    proto = model([NODE("Neg", ["x"], ["y"])], {"x": X}, ["y"])
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -7
    yield HostileFile("an input of a negative dimension", proto.SerializeToString(), "'x'.*-7")
    proto = model([NODE("Neg", ["x"], ["y"])], {"x": X}, ["y"])
    for dim in proto.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_value = 1 << 62
    yield HostileFile("an input of 2^186 elements", proto.SerializeToString(), "'x'|'y'")
    for name, indices in (("outside", [7]), ("negative", [-1])):
        proto = model([NODE("Neg", ["s"], ["y"])], {"x": X}, ["y"])
        values = numpy_helper.from_array(np.ones(1, np.float32), "s")
        places = numpy_helper.from_array(np.array(indices, np.int64), "s_indices")
        proto.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=places, dims=[4]))
        yield HostileFile(f"a sparse index {name}", proto.SerializeToString(), "'s'.*outside")
    proto.graph.sparse_initializer[0].dims[:] = [1 << 40]
    yield HostileFile("a sparse tensor of 2^40 elements", proto.SerializeToString(), "'s'.*GiB")


def external(location: str, **entries: str) -> bytes:
    one = tensor([4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        one.external_data.add(key=key, value=value)
    return with_tensor(one)


def external_cases() -> Iterator[HostileFile]:
    def weights(folder: Path) -> None:
        (folder / "w.bin").write_bytes(bytes(16))

    def link(folder: Path) -> None:
        (folder / "w.bin").symlink_to("/etc/passwd")

    def hard_link(folder: Path) -> None:
        (folder / "other.bin").write_bytes(bytes(16))
        (folder / "w.bin").hardlink_to(folder / "other.bin")

    def linked_folder(folder: Path) -> None:
        (folder / "down").symlink_to("/etc")

    yield HostileFile("external data", external("w.bin"), "", weights)
    for location in ("../../../../etc/passwd", "/etc/passwd", "", ".", "a\0b", "down/../../etc/passwd"):
        yield HostileFile(f"external data at {location!r}", external(location), "'w'.*location")
    yield HostileFile(
        "external data in a folder that is a link", external("down/passwd"), "'w'.*down/passwd", linked_folder
    )
    yield HostileFile("external data by a link", external("w.bin"), "'w'.*without links", link)
    yield HostileFile("external data by a hard link", external("w.bin"), "'w'.*several names", hard_link)
    yield HostileFile(
        "external data in a pipe", external("w.bin"), "'w'.*regular", lambda folder: os.mkfifo(folder / "w.bin")
    )
    yield HostileFile(
        "external data in a folder", external("w.bin"), "'w'.*regular", lambda folder: (folder / "w.bin").mkdir()
    )
    yield HostileFile("external data that is missing", external("w.bin"), "'w'.*w.bin")
    yield HostileFile("external data behind the end", external("w.bin", offset="8"), "'w'.*8 to 24", weights)
    yield HostileFile(
        "external data of 2^60 bytes", external("w.bin", length=str(1 << 60)), r"'w'.*w\.bin|digits", weights
    )
    yield HostileFile("external data at a negative offset", external("w.bin", offset="-4"), "'w'.*offset", weights)
    yield HostileFile("external data at no number", external("w.bin", offset="1e3"), "'w'.*offset", weights)


def from_constants(op: str, *constants: Any, **attributes: Any) -> bytes:
    """Return a model of one operator on constants."""
    names = [f"c{i}" if value is not None else "" for i, value in enumerate(constants)]
    weights = {name: value for name, value in zip(names, constants, strict=True) if name}
    return one_node(NODE(op, names, ["y"], name="culprit", **attributes), {}, weights)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def size_cases() -> Iterator[HostileFile]:
    """Small files with large results."""
    large = 1 << 35
    one = np.ones(1, np.float32)
    yield HostileFile("ConstantOfShape of 2^35", from_constants("ConstantOfShape", ints(large)), "culprit")
    yield HostileFile("ConstantOfShape of a negative size", from_constants("ConstantOfShape", ints(-5)), "culprit")
    yield HostileFile("Expand to 2^35", from_constants("Expand", one, ints(large)), "culprit")
    yield HostileFile("Expand to 2^62 squared", from_constants("Expand", one, ints(1 << 62, 1 << 62)), "culprit")
    yield HostileFile("Tile 2^35 times", from_constants("Tile", one, ints(large)), "culprit")
    yield HostileFile("Pad by 2^35", from_constants("Pad", one, ints(0, large)), "culprit")
    yield HostileFile("Pad by 2^63 - 1", from_constants("Pad", one, ints(0, (1 << 63) - 1)), "culprit")
    yield HostileFile("Range of 2^62", from_constants("Range", np.int64(0), np.int64(1 << 62), np.int64(1)), "culprit")
    yield HostileFile("Range by steps of 0", from_constants("Range", np.int64(0), np.int64(9), np.int64(0)), "culprit")
    yield HostileFile("OneHot of 2^40", from_constants("OneHot", ints(0), np.int64(1 << 40), ints(0, 1)), "culprit")
    yield HostileFile(
        "TopK of 2^40",
        one_node(NODE("TopK", ["x", "k"], ["y", "i"], name="culprit"), {"x": X}, {"k": ints(1 << 40)}),
        "culprit",
    )
    for scale in (1e12, float("nan"), float("inf"), -1.0):
        sizes = {"s": np.array([1, 1, scale, scale], np.float32)}
        yield HostileFile(
            f"Resize by {scale}",
            one_node(NODE("Resize", ["x", "", "s"], ["y"], name="culprit"), {"x": IMAGE}, sizes),
            "culprit",
        )
    shape = {"s": ints(-1, -1)}
    yield HostileFile(
        "Reshape with two open sizes",
        one_node(NODE("Reshape", ["x", "s"], ["y"], name="culprit"), {"x": X}, shape),
        "culprit",
    )
    yield HostileFile(
        "Reshape to another number of elements",
        one_node(NODE("Reshape", ["x", "s"], ["y"], name="culprit"), {"x": X}, {"s": ints(5)}),
        "culprit",
    )
    yield HostileFile(
        "Gather at an index outside", from_constants("Gather", np.ones((2, 2), np.float32), ints(5)), "culprit"
    )
    yield HostileFile(
        "Gather along an axis outside",
        from_constants("Gather", np.ones((2, 2), np.float32), ints(0), axis=9),
        "culprit",
    )
    yield HostileFile(
        "Slice by steps of 0",
        from_constants("Slice", np.ones(4, np.float32), ints(0), ints(4), ints(0), ints(0)),
        "culprit",
    )
    yield HostileFile(
        "Transpose by axes twice", from_constants("Transpose", np.ones((2, 2), np.float32), perm=[0, 0]), "culprit"
    )
    yield HostileFile(
        "Einsum of 52 axes",
        from_constants("Einsum", one, one, equation=",".join(["abcdefghijklmnopqrstuvwxyz"] * 2)),
        "culprit",
    )
    wide = np.ones((1, 200_000), np.float32)
    yield HostileFile("an outer product of 2^35", from_constants("Einsum", wide, wide, equation="ab,cd->bd"), "culprit")
    yield HostileFile(
        "MatMul of a column and a row of 200,000", from_constants("MatMul", wide.T.copy(), wide), "culprit"
    )
    window = np.ones(4, np.float32)
    signal = np.ones((1, 64, 1), np.float32)
    yield HostileFile("STFT by steps of 0", from_constants("STFT", signal, np.int64(0), window), "culprit")
    yield HostileFile("HannWindow of 2^40", from_constants("HannWindow", np.int64(1 << 40)), "culprit|memory")
    yield HostileFile(
        "RandomNormal of 2^40",
        one_node(NODE("RandomNormal", [], ["y"], name="culprit", shape=[1 << 40]), {}),
        "culprit",
    )
    yield HostileFile("EyeLike of 2^20 squared", from_constants("EyeLike", np.ones((1, 1), np.float32)), "")


def message_cases() -> Iterator[HostileFile]:
    """Bytes that are not, or hardly, protobuf messages."""
    good = one_node(NODE("Neg", ["x"], ["y"]), {"x": X})
    yield HostileFile("an empty file", b"", "no graph")
    yield HostileFile("half of a file", good[: len(good) // 2], ".")
    yield HostileFile("a length of 2^63", b"\x3a" + b"\xff" * 9 + b"\x01", "broken")
    yield HostileFile("a number without an end", b"\x08" + b"\xff" * 20, "broken")
    yield HostileFile("a group", b"\x3b\x3c", "field")
    deep = b""
    for _ in range(400):  # graph → node → attribute → graph, large enough to be walked
        deep = b"\x32" + varint(len(deep)) + deep
        deep = b"\x2a" + varint(len(deep)) + deep
        deep = b"\x0a" + varint(len(deep)) + deep
    yield HostileFile(
        "400 nested graphs", b"\x3a" + varint(len(deep + bytes(2))) + deep + b"\x12\x00", "nested|valid ONNX model"
    )
    padding = b"\x12" + varint(6000) + b"a" * 6000
    for _ in range(120):
        deep = padding
        for tag in (b"\x32", b"\x2a", b"\x0a") * 40:
            deep = tag + varint(len(deep)) + deep
    yield HostileFile("120 nested large messages", b"\x3a" + varint(len(deep)) + deep, "nested|valid ONNX model")
    yield HostileFile("100,000 nodes of nothing", wrapped_bytes(b"\x0a\x00" * 100_000), "no output|''|operator")
    yield HostileFile("text", b"no model at all", ".")


def wrapped_bytes(graph: bytes) -> bytes:
    return b"\x08\x08" + b"\x3a" + varint(len(graph)) + graph + b"\x42\x02\x10\x15"


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*made, value))


FILES: list[HostileFile] = [
    *attribute_cases(), *function_cases(), *control_cases(), *graph_cases(), *version_cases(), *tensor_cases(),
    *external_cases(), *size_cases(), *message_cases(),
]  # fmt: skip

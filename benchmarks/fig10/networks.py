"""Networks of Fig. 10 and related ones, nine in all, in their published sizes, with seeded random weights.

`write(folder, names)` writes them as ONNX files with a `manifest.json` of inputs, outputs, parameters and operations
 (two for each multiply-add of convolutions, matrix products and recurrent cells, by the direct algorithm).
"""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from benchmarks.fig10.onnx_graph import OnnxGraph

IMAGE = (1, 3, 224, 224)


def conv_norm(g: OnnxGraph, x: str, out: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> str:
    return g.norm(g.conv(x, out, kernel, stride, groups=groups))


def _residual(g: OnnxGraph, x: str, width: int, stride: int, *, bottleneck: bool) -> str:
    if bottleneck:
        out = 4 * width
        y = g.relu(conv_norm(g, g.relu(conv_norm(g, x, width)), width, 3, stride))
        y = conv_norm(g, y, out)
    else:
        out = width
        y = conv_norm(g, g.relu(conv_norm(g, x, width, 3, stride)), out, 3)
    same = stride == 1 and g.channels[x] == out
    return g.relu(g.add(y, x if same else conv_norm(g, x, out, 1, stride)))


def resnet(name: str, blocks: Iterable[int], *, bottleneck: bool) -> OnnxGraph:
    g = OnnxGraph(name)
    x = g.max_pool(g.relu(conv_norm(g, g.input("image", IMAGE), 64, 7, 2)), 1)
    for stage, count in enumerate(blocks):
        for block in range(count):
            x = _residual(g, x, 64 << stage, 2 if stage and not block else 1, bottleneck=bottleneck)
    g.classify(x)
    return g


def mobile_levels(g: OnnxGraph, x: str, width: float = 1.0) -> list[str]:
    """Add MobileNetV2; return its features at strides 8, 16 and 32."""

    def wide(channels: int) -> int:
        return max(8, int(channels * width + 4) // 8 * 8)

    x = g.relu6(conv_norm(g, x, wide(32), 3, 2))
    levels = []
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, channels, count, first_stride in stages:
        for block in range(count):
            stride, inner, out = (1 if block else first_stride), g.channels[x] * expansion, wide(channels)
            y = x if expansion == 1 else g.relu6(conv_norm(g, x, inner))
            y = conv_norm(g, g.relu6(conv_norm(g, y, inner, 3, stride, inner)), out)
            x = g.add(y, x) if stride == 1 and g.channels[x] == out else y
        if channels in {32, 96, 320}:
            levels.append(x)
    return levels


def mobilenet_v2() -> OnnxGraph:
    g = OnnxGraph("mobilenet_v2")
    g.classify(g.relu6(conv_norm(g, mobile_levels(g, g.input("image", IMAGE))[-1], 1280)))
    return g


def squeezenet() -> OnnxGraph:
    g = OnnxGraph("squeezenet1_1")

    def conv(x: str, out: int, kernel: int = 1, stride: int = 1) -> str:
        return g.relu(g.conv(x, out, kernel, stride, bias=True))

    x = g.max_pool(conv(g.input("image", IMAGE), 64, 3, 2))
    for fire, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        narrow = conv(x, squeeze)
        x = g.concat(conv(narrow, 4 * squeeze), conv(narrow, 4 * squeeze, 3))
        if fire in {1, 3}:
            x = g.max_pool(x)
    g.output("logits", g.mean(conv(x, 1000)), (1, 1000))
    return g


def shufflenet_v2() -> OnnxGraph:
    g = OnnxGraph("shufflenet_v2")

    def right(x: str, out: int, stride: int) -> str:
        y = g.relu(conv_norm(g, x, out))
        return g.relu(conv_norm(g, conv_norm(g, y, out, 3, stride, out), out))

    def shuffle(x: str, side: int) -> str:
        channels = g.channels[x]
        pairs = g.op("Reshape", x, g.whole(1, 2, channels // 2, side, side))
        turned = g.op("Transpose", pairs, perm=[0, 2, 1, 3, 4])
        return g.as_image(g.op("Reshape", turned, g.whole(1, channels, side, side)), channels)

    x = g.max_pool(g.relu(conv_norm(g, g.input("image", IMAGE), 24, 3, 2)), 1)
    for stage, (out, count) in enumerate(((116, 4), (232, 8), (464, 4))):
        side, half = 28 >> stage, out // 2
        channels = g.channels[x]
        left = g.relu(conv_norm(g, conv_norm(g, x, channels, 3, 2, channels), half))
        x = shuffle(g.concat(left, right(x, half, 2)), side)
        for _ in range(count - 1):
            kept, changed = (g.as_image(y, half) for y in g.ops("Split", x, g.whole(half, half), count=2, axis=1))
            x = shuffle(g.concat(kept, right(changed, half, 1)), side)
    g.classify(g.relu(conv_norm(g, x, 1024)))
    return g


def bert_squad(
    layers: int = 12, hidden: int = 768, heads: int = 12, length: int = 256, words: int = 30522
) -> OnnxGraph:
    g = OnnxGraph("bert_squad")
    ids, mask, types = (
        g.input(name, (1, length), TensorProto.INT64) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    embedded = g.op("Gather", g.normal((words, hidden), 0.02), ids, axis=0)
    embedded = g.op("Add", embedded, g.op("Gather", g.normal((2, hidden), 0.02), types, axis=0))
    x = g.layer_norm(g.op("Add", embedded, g.normal((1, length, hidden), 0.02)), hidden)
    seen = g.op("Cast", g.op("Unsqueeze", mask, g.whole(1, 2)), to=TensorProto.FLOAT)
    hidden_bias = g.op("Mul", g.op("Sub", g.constant(1), seen), g.constant(-10000))
    size = hidden // heads

    def head(perm: list[int]) -> str:
        split = g.op("Reshape", g.linear(x, hidden, hidden, 0.04), g.whole(1, length, heads, size))
        return g.op("Transpose", split, perm=perm)

    for _ in range(layers):
        query, key, value = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
        scores = g.op("Add", g.op("Div", g.op("MatMul", query, key), g.constant(math.sqrt(size))), hidden_bias)
        mixed = g.op("Transpose", g.op("MatMul", g.op("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        mixed = g.linear(g.op("Reshape", mixed, g.whole(1, length, hidden)), hidden, hidden, 0.04)
        x = g.layer_norm(g.op("Add", x, mixed), hidden)
        wide = g.gelu(g.linear(x, hidden, 4 * hidden, 0.04))
        x = g.layer_norm(g.op("Add", x, g.linear(wide, 4 * hidden, hidden, 0.02)), hidden)
    ends = g.ops("Split", g.linear(x, hidden, 2, 0.04), g.whole(1, 1), count=2, axis=-1)
    for name, end in zip(("start_logits", "end_logits"), ends, strict=True):
        g.output(name, g.op("Squeeze", end, g.whole(2)), (1, length))
    return g


def din(length: int = 100, size: int = 32) -> OnnxGraph:
    """Build Deep Interest Network: attention of the target over a history of visits, and a small network."""
    g = OnnxGraph("din")
    history, target = g.input("history", (1, length, size)), g.input("target", (1, size))

    def prelu(x: str) -> str:
        return g.op("PRelu", x, g.constant([0.25]))

    query = g.op("Expand", g.op("Unsqueeze", target, g.whole(1)), g.whole(1, length, size))
    x = g.op("Concat", query, history, g.op("Sub", query, history), g.op("Mul", query, history), axis=2)
    x = prelu(g.linear(prelu(g.linear(x, 4 * size, 80)), 80, 40))
    scores = g.op("Transpose", g.linear(x, 40, 1, 0.01), perm=[0, 2, 1])
    interest = g.op("Squeeze", g.op("MatMul", scores, history), g.whole(1))
    x = g.op("Concat", interest, target, g.op("Mul", interest, target), axis=1)
    x = prelu(g.linear(prelu(g.linear(x, 3 * size, 200)), 200, 80))
    g.output("click", g.op("Sigmoid", g.linear(x, 80, 1)), (1, 1))
    return g


def fcos_lite(side: int = 320, width: int = 224, classes: int = 80) -> OnnxGraph:
    """Build an anchor-free detector: MobileNetV2 1.4, a pyramid of five levels, heads with shared weights."""
    g = OnnxGraph("fcos_lite")
    features = mobile_levels(g, g.input("image", (1, 3, side, side)), 1.4)

    def twice(x: str) -> str:
        wide = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        return g.as_image(g.op("Resize", x, "", g.constant([1, 1, 2, 2]), **wide), width)

    top = g.conv(features[2], width, bias=True)
    middle = g.add(g.conv(features[1], width, bias=True), twice(top))
    low = g.add(g.conv(features[0], width, bias=True), twice(middle))
    pyramid = [g.conv(x, width, 3, bias=True) for x in (low, middle, top)]
    pyramid.append(g.conv(pyramid[-1], width, 3, 2, bias=True))
    pyramid.append(g.conv(g.relu(pyramid[-1]), width, 3, 2, bias=True))

    def shared(out: int, deviation: float = math.sqrt(2 / (9 * width))) -> tuple[list[str], int]:
        return [g.normal((out, width, 3, 3), deviation), g.normal((out,), 0.02)], out

    def by(layer: tuple[list[str], int], x: str) -> str:
        return g.conv_by(x, *layer, 3)

    def rows(x: str, values: int) -> str:
        return g.op("Reshape", g.op("Transpose", x, perm=[0, 2, 3, 1]), g.whole(1, -1, values))

    class_tower, box_tower = [shared(width), shared(width)], [shared(width), shared(width)]
    scored, boxed, centred = shared(classes, 0.01), shared(4, 0.01), shared(1, 0.01)
    results: dict[tuple[str, int], list[str]] = {("scores", classes): [], ("boxes", 4): [], ("centres", 1): []}
    for level, feature in enumerate(pyramid):
        a = b = feature
        for class_layer, box_layer in zip(class_tower, box_tower, strict=True):
            a, b = g.relu(by(class_layer, a)), g.relu(by(box_layer, b))
        distances = g.op("Mul", g.op("Relu", by(boxed, b)), g.constant(8 << level))
        values = g.op("Sigmoid", by(scored, a)), distances, g.op("Sigmoid", by(centred, b))
        for (key, parts), value in zip(results.items(), values, strict=True):
            parts.append(rows(value, key[1]))
    places = sum(math.ceil(side / stride) ** 2 for stride in (8, 16, 32, 64, 128))
    for (name, values_each), parts in results.items():
        g.output(name, g.op("Concat", *parts, axis=1), (1, places, values_each))
    return g


def voice_rnn(frames: int = 100, features: int = 40, hidden: int = 32) -> OnnxGraph:
    """Build a keyword detector: a GRU over the frames, and a small classifier of its last state."""
    g = OnnxGraph("voice_rnn")
    x = g.op("Transpose", g.input("frames", (1, frames, features)), perm=[1, 0, 2])
    deviation = 1 / math.sqrt(hidden)
    weights = [g.normal((1, 3 * hidden, size), deviation) for size in (features, hidden)]
    bias = g.normal((1, 6 * hidden), 0.1)
    last = g.ops("GRU", x, *weights, bias, count=2, hidden_size=hidden, linear_before_reset=1)[1]
    x = g.op("Relu", g.linear(g.op("Squeeze", last, g.whole(0)), hidden, 16))
    g.output("probability", g.op("Softmax", g.linear(x, 16, 2), axis=-1), (1, 2))
    return g


NETWORKS: dict[str, Callable[[], OnnxGraph]] = {
    "resnet18": lambda: resnet("resnet18", (2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda: resnet("resnet50", (3, 4, 6, 3), bottleneck=True),
    "mobilenet_v2": mobilenet_v2,
    "squeezenet1_1": squeezenet,
    "shufflenet_v2": shufflenet_v2,
    "bert_squad": bert_squad,
    "din": din,
    "fcos_lite": fcos_lite,
    "voice_rnn": voice_rnn,
}


def operations(model: onnx.ModelProto) -> int:
    """Return the floating-point operations of convolutions, matrix products and GRUs; a multiply-add counts as two."""
    graph = model.graph
    shapes = {
        value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.input, *graph.output)
    } | {constant.name: list(constant.dims) for constant in graph.initializer}
    count = 0
    for node in graph.node:
        if node.op_type == "Conv":
            count += math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
        elif node.op_type in {"MatMul", "Gemm"}:
            count += math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
        elif node.op_type == "GRU":
            count += shapes[node.input[0]][0] * sum(math.prod(shapes[name]) for name in node.input[1:3])
    return 2 * count


def described(model: onnx.ModelProto) -> dict[str, Any]:
    """Return a network's entry in the manifest: inputs are [shape, dtype]."""
    graph = model.graph
    return {
        "inputs": {
            value.name: [
                [size.dim_value for size in value.type.tensor_type.shape.dim],
                "int64" if value.type.tensor_type.elem_type == TensorProto.INT64 else "float32",
            ]
            for value in graph.input
        },
        "outputs": [value.name for value in graph.output],
        "params": sum(math.prod(constant.dims) for constant in graph.initializer),
        "flops": operations(model),
    }


def write(folder: Path, names: Iterable[str] = NETWORKS) -> None:
    """Write the networks that do not exist yet, and the manifest of all."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest_path = folder / "manifest.json"
    manifest = json.loads(manifest_path.read_bytes()) if manifest_path.exists() else {}
    for name in names:
        path = folder / f"{name}.onnx"
        if name in manifest and path.exists():
            continue
        model = NETWORKS[name]().model()
        onnx.save(model, path)
        manifest[name] = described(model)
        manifest_path.write_text(json.dumps(manifest, indent=1))

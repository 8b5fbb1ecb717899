"""The paper's four models of highlight recognition by architecture and size (§7.1, Table 1), with seeded weights.

The paper gives names and parameters, 8.15 M, 10.87 M, 2.06 M and 8 K, and neither input sizes nor operations. Its
weights are not public: these are untrained and are for latency only. Choices of ours:

item_detection    FCOS: MobileNetV2 (width 1.4) at 320 x 320, five pyramid levels, heads with shared weights
item_recognition  MobileNetV2 (width 2.0) at 224 x 224, 820 classes
face_detection    the detector's form with MobileNetV2 (width 1.0) at 320 x 320, three levels, one class and five points
voice_detection   a GRU of 32 units over 40 log-mel bands, 100 frames (a second), its state an input and an output

`write(folder)` writes ONNX files and a `manifest.json`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from benchmarks.fig10.networks import conv_norm, described, mobile_levels
from benchmarks.fig10.onnx_graph import OnnxGraph

PARAMETERS = {  # sizes in Table 1
    "item_detection": 8_150_000,
    "item_recognition": 10_870_000,
    "face_detection": 2_060_000,
    "voice_detection": 8_000,
}
_SEED = 2022


def detector(
    name: str, *, multiplier: float, width: int, side: int = 320, last: int = 0, levels: int = 5, classes: int = 80,
    points: int = 0,
) -> OnnxGraph:  # fmt: skip
    """Build an anchor-free detector in the manner of FCOS.

    `last` are the features after the backbone, from which the sixth level is made; without them three levels follow
    the backbone's. Each level's cells have scores, distances to the four sides, a centre score, and `points` pairs.
    """
    g = OnnxGraph(name, seed=_SEED)
    low, middle, top = mobile_levels(g, g.input("image", (1, 3, side, side)), multiplier)
    if last:
        top = g.relu6(conv_norm(g, top, last))
    p5 = g.conv(top, width, bias=True)
    p4 = g.add(g.conv(middle, width, bias=True), _twice(g, p5, width))
    p3 = g.add(g.conv(low, width, bias=True), _twice(g, p4, width))
    pyramid = [g.conv(level, width, 3, bias=True) for level in (p3, p4, p5)]
    for level in range(3, levels):
        pyramid.append(g.conv(top if level == 3 else g.relu(pyramid[-1]), width, 3, 2, bias=True))
    heads = _Heads(g, width, classes, points)
    for level, features in enumerate(pyramid):
        heads.add(features, stride=8 << level)
    heads.finish(sum(math.ceil(side / (8 << level)) ** 2 for level in range(levels)))
    return g


def _twice(g: OnnxGraph, x: str, width: int) -> str:
    """Add nearest-neighbour enlargement by two."""
    how = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    return g.as_image(g.op("Resize", x, "", g.constant([1, 1, 2, 2]), **how), width)


class _Heads:
    """Towers of two 3x3 convolutions for classes and for boxes, and the outputs; all levels share the weights."""

    def __init__(self, g: OnnxGraph, width: int, classes: int, points: int) -> None:
        self._g = g
        wide = math.sqrt(2 / (9 * width))

        def layer(results: int, deviation: float) -> tuple[list[str], int]:
            return [g.normal((results, width, 3, 3), deviation), g.normal((results,), 0.02)], results

        self._towers = [[layer(width, wide), layer(width, wide)] for _ in range(2)]
        self._layers = {"scores": layer(classes, 0.01), "boxes": layer(4, 0.01), "centres": layer(1, 0.01)}
        if points:
            self._layers["points"] = layer(2 * points, 0.01)
        self._parts: dict[str, list[str]] = {key: [] for key in self._layers}

    def add(self, features: str, *, stride: int) -> None:
        g = self._g
        sides = []
        for tower in self._towers:
            x = features
            for weights, results in tower:
                x = g.relu(g.conv_by(x, weights, results, 3))
            sides.append(x)
        for key, (weights, results) in self._layers.items():
            value = g.conv_by(sides[key != "scores"], weights, results, 3)
            if key in {"scores", "centres"}:
                value = g.op("Sigmoid", value)
            elif key == "boxes":
                value = g.op("Mul", g.op("Relu", value), g.constant(stride))
            rows = g.op("Reshape", g.op("Transpose", value, perm=[0, 2, 3, 1]), g.whole(1, -1, results))
            self._parts[key].append(rows)

    def finish(self, cells: int) -> None:
        for key, parts in self._parts.items():
            self._g.output(key, self._g.op("Concat", *parts, axis=1), (1, cells, self._layers[key][1]))


def recogniser() -> OnnxGraph:
    """Build the item recogniser."""
    g = OnnxGraph("item_recognition", seed=_SEED)
    features = mobile_levels(g, g.input("image", (1, 3, 224, 224)), 2.0)[-1]
    g.classify(g.relu6(conv_norm(g, features, 2560)), 820)
    return g


def voice(frames: int = 100, bands: int = 40, units: int = 32) -> OnnxGraph:
    """Build the voice detector: log-mel frames and the state before them to a probability for each frame."""
    g = OnnxGraph("voice_detection", seed=_SEED)
    x = g.op("Transpose", g.input("frames", (1, frames, bands)), perm=[1, 0, 2])
    state = g.input("state", (1, 1, units))
    deviation = 1 / math.sqrt(units)
    weights = [g.normal((1, 3 * units, size), deviation) for size in (bands, units)]
    bias = g.normal((1, 6 * units), 0.1)
    steps, last = g.ops("GRU", x, *weights, bias, "", state, count=2, hidden_size=units, linear_before_reset=1)
    hidden = g.op("Relu", g.linear(g.op("Reshape", steps, g.whole(frames, units)), units, 24))
    g.output("probability", g.op("Softmax", g.linear(hidden, 24, 2), axis=-1), (frames, 2))
    g.output("next_state", last, (1, 1, units))
    return g


ARCHITECTURES: dict[str, Callable[[], OnnxGraph]] = {
    "item_detection": lambda: detector("item_detection", multiplier=1.4, width=132, last=1792),
    "item_recognition": recogniser,
    "face_detection": lambda: detector("face_detection", multiplier=1.0, width=56, levels=3, classes=1, points=5),
    "voice_detection": voice,
}


def write(folder: Path) -> dict[str, Any]:
    """Write the networks that do not exist yet, and the manifest of all; return the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {}
    for name, build in ARCHITECTURES.items():
        path = folder / f"{name}.onnx"
        if path.exists():
            manifest[name] = described(onnx.load(path))
            continue
        model = build().model()
        manifest[name] = described(model)
        onnx.save(model, path)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return manifest

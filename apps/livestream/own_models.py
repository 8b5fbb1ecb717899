"""The app's own small models, which the repository has: weights in models/, and the graphs made of them.

    detector  image [1, 3, 320, 320], BGR, x / 127.5 - 1  ->  scores [1, 2100, classes], distances [1, 2100, 4]
    embedder  image [1, 3, 128, 128], RGB, x / 127.5 - 1  ->  embedding [1, 256]
    vad       input [1, 768] at 16 kHz, state [1, 1, 36]  ->  output [1, 1], stateN [1, 1, 36]

The cells of a detector are those of the grids of strides 8, 16 and 32, rows first; a distance is that of a box's left,
top, right or bottom side from the cell's centre, in pixels. The embedder is the first part of the item detector: means
of its features of strides 8 and 16. train/networks.py has the networks in PyTorch. train/train.py trains the detectors,
train/speech.py the vad.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from walle.engine_ext.model import GraphBuilder, Value

FOLDER = Path(__file__).with_name("models")
SIDE = 320
STRIDES = (8, 16, 32)
CROP = 128  # side of the embedder's input
EMBEDDING = 256
WINDOW, CONTEXT = 512, 256  # samples of a step of the voice detector, and those before it that it sees again
RATE = 16_000
BANDS, LOW_HZ, HIGH_HZ = 24, 80.0, 7600.0
# Blocks of a stage (train.py: Detector), as kernel and stride of each depthwise convolution.
STAGES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "s4": ((3, 2), (3, 1)),
    "s8": ((3, 2), (3, 1)),
    "s16": ((3, 2), (3, 1), (3, 1)),
    "s32": ((3, 2), (5, 1)),
}

type Weights = Mapping[str, NDArray[np.float32]]


def weights(name: str, folder: Path = FOLDER) -> dict[str, NDArray[np.float32]]:
    """Return the weights of item, face or voice by name; the file has them as float16."""
    with np.load(folder / f"{name}.npz") as pack:
        return {key: pack[key].astype(np.float32) for key in pack.files}


class OwnModels:
    """The models in a folder, by default those of the repository. They are an alternative to a `ModelFolder`."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder

    def settings(self, task: str) -> dict[str, Any]:
        """Return the settings of a task that go with these models."""
        found: dict[str, Any] = json.loads((self.folder / "settings.json").read_bytes()).get(task, {})
        return found

    def write(self, kind: str, target: Path) -> Path:
        """Write the model `kind`, one of KINDS, as a .walle file; return its path."""
        graph = GraphBuilder(f"own_{kind}")
        KINDS[kind](graph, self.folder)
        graph.save(target)
        return target

    def embedder_sha256(self) -> str:
        """Return the hash by which a gallery names the embedder that made it."""
        return hashlib.sha256((self.folder / "item.npz").read_bytes()).hexdigest()


def build_detector(graph: GraphBuilder, w: Weights) -> None:
    """Add a detector's graph."""
    features = _Features(graph, w)
    levels = features.levels(graph.input("image", (1, 3, SIDE, SIDE)), ("s4", "s8", "s16", "s32"))[1:]
    lateral = [features.conv(level, f"lateral.{k}") for k, level in enumerate(levels)]
    twice = graph.constant("twice", [1.0, 1.0, 2.0, 2.0], "float32")
    for k in (1, 0):
        larger = graph.op(
            "Resize", [lateral[k + 1], None, twice],
            mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric",
        )  # fmt: skip
        lateral[k] = graph.op("Add", [lateral[k], larger])
    low, high = graph.constant("low", np.float32(-4)), graph.constant("high", np.float32(4))
    scores, distances = [], []
    for k, (x, stride) in enumerate(zip(lateral, STRIDES, strict=True)):
        for block in range(2):
            x = features.separable(x, f"head.{k}.{block}", 5, 1)  # noqa: PLW2901 -- a layer's input is the one before
        results = len(w[f"out.{k}.b"])
        cells = (SIDE // stride) ** 2
        y = graph.op("Transpose", [features.conv(x, f"out.{k}", relu=False)], perm=[0, 2, 3, 1])
        y = graph.op("Reshape", [y, graph.constant(f"rows{k}", [1, cells, results], "int64")])
        parts = graph.op("Split", [y, graph.constant(f"parts{k}", [results - 4, 4], "int64")], axis=2, outputs=2)
        scores.append(graph.op("Sigmoid", [parts[0]]))
        reach = graph.op("Exp", [graph.op("Clip", [parts[1], low, high])])
        distances.append(graph.op("Mul", [reach, graph.constant(f"stride{k}", np.float32(stride))]))
    graph.output("scores", graph.op("Concat", scores, axis=1))
    graph.output("distances", graph.op("Concat", distances, axis=1))


def build_embedder(graph: GraphBuilder, w: Weights) -> None:
    """Add the embedder's graph, of the item detector's weights; its input has the channels in the other order."""
    turned = {**w, "stem.w": np.ascontiguousarray(w["stem.w"][:, ::-1])}
    levels = _Features(graph, turned).levels(graph.input("image", (1, 3, CROP, CROP)), ("s4", "s8", "s16"))[1:]
    means = [graph.op("GlobalAveragePool", [level]) for level in levels]
    joined = graph.op("Concat", means, axis=1)
    graph.output("embedding", graph.op("Reshape", [joined, graph.constant("shape", [1, EMBEDDING], "int64")]))


class _Features:
    """Layers of a detector with the names that their weights have."""

    def __init__(self, graph: GraphBuilder, w: Weights) -> None:
        self._graph, self._w = graph, w

    def levels(self, image: Value, stages: tuple[str, ...]) -> list[Value]:
        """Return the features after each stage."""
        x, found = self.conv(image, "stem", stride=2), []
        for stage in stages:
            for block, (kernel, stride) in enumerate(STAGES[stage]):
                x = self.separable(x, f"{stage}.{block}", kernel, stride)
            found.append(x)
        return found

    def separable(self, x: Value, name: str, kernel: int, stride: int) -> Value:
        """Add a depthwise convolution and one of 1 x 1."""
        if self._w[f"{name}.depth.w"].shape[2] != kernel:
            raise ValueError(f"{name} has a kernel of {self._w[f'{name}.depth.w'].shape[2]}, not {kernel}")
        return self.conv(self.conv(x, f"{name}.depth", stride=stride), f"{name}.point")

    def conv(self, x: Value, name: str, *, stride: int = 1, relu: bool = True) -> Value:
        """Add a convolution that keeps the size but for its stride, and ReLU. One input channel: depthwise."""
        w, b = self._w[f"{name}.w"], self._w[f"{name}.b"]
        kernel = w.shape[2]
        group = w.shape[0] if w.shape[1] == 1 else 1
        inputs = [x, self._graph.constant(f"{name}.w", w), self._graph.constant(f"{name}.b", b)]
        y: Value = self._graph.op(
            "Conv", inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4, group=group
        )
        result: Value = self._graph.op("Relu", [y]) if relu else y
        return result


def build_voice(graph: GraphBuilder, w: Weights) -> None:
    """Add the voice detector's graph: two log-mel frames of a window, a layer, a GRU and the probability of speech."""

    def constant(name: str, value: Any) -> Value:
        return graph.constant(name, np.ascontiguousarray(value, np.float32))

    def dense(x: Value, name: str) -> Value:
        product = graph.op("MatMul", [x, constant(f"{name}.w", w[f"{name}.weight"].T)])
        result: Value = graph.op("Add", [product, constant(f"{name}.b", w[f"{name}.bias"])])
        return result

    samples = graph.input("input", (1, CONTEXT + WINDOW))
    units = w["gru.weight_hh_l0"].shape[1]
    state = graph.input("state", (1, 1, units))
    starts = [graph.constant(f"at{at}", [at], "int64") for at in (0, CONTEXT, WINDOW, CONTEXT + WINDOW)]
    axis = graph.constant("axis", [1], "int64")
    frames = [graph.op("Slice", [samples, starts[k], starts[k + 2], axis]) for k in range(2)]
    spectrum = graph.op("MatMul", [graph.op("Concat", frames, axis=0), constant("fourier", _fourier())])
    power = graph.op("Mul", [spectrum, spectrum])
    bands = graph.op("MatMul", [power, constant("mel", np.concatenate([mel_matrix()] * 2))])
    logs = graph.op("Log", [graph.op("Add", [bands, constant("floor", np.float32(1e-5))])])
    scaled = graph.op(
        "Add", [graph.op("Mul", [logs, constant("slope", np.float32(0.25))]), constant("one", np.float32(1))]
    )
    x = graph.op("Reshape", [scaled, graph.constant("window", [1, 2 * BANDS], "int64")])
    x = graph.op("Relu", [dense(x, "inner")])
    x = graph.op("Reshape", [x, graph.constant("step", [1, 1, w["inner.bias"].shape[0]], "int64")])
    gates = [
        constant(name, _gates(w[f"gru.{key}"])) for name, key in (("gru.w", "weight_ih_l0"), ("gru.r", "weight_hh_l0"))
    ]
    bias = constant("gru.b", np.concatenate([_gates(w[f"gru.{key}"]) for key in ("bias_ih_l0", "bias_hh_l0")], 1))
    _, last = graph.op("GRU", [x, *gates, bias, None, state], outputs=2, hidden_size=units, linear_before_reset=1)
    y = dense(graph.op("Reshape", [last, graph.constant("units", [1, units], "int64")]), "out")
    graph.output("output", graph.op("Sigmoid", [y]))
    graph.output("stateN", last)


def _gates(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return PyTorch's gates (reset, update, new) in ONNX's order (update, reset, hidden), with its first axis."""
    reset, update, new = np.split(value, 3)
    return np.concatenate([update, reset, new])[None]


def _fourier() -> NDArray[np.float64]:
    """Return the transform of a windowed frame: cosines, then sines, [512, 2 * 257]."""
    time = np.arange(WINDOW)
    hann = 0.5 - 0.5 * np.cos(2 * math.pi * time / WINDOW)
    angles = 2 * math.pi * np.outer(time, np.arange(WINDOW // 2 + 1)) / WINDOW
    made: NDArray[np.float64] = hann[:, None] * np.concatenate([np.cos(angles), np.sin(angles)], 1)
    return made


def mel_matrix() -> NDArray[np.float64]:
    """Return the bands of mel, [257, 24]: triangles whose sum over the frequencies is 1."""
    low, high = (2595 * math.log10(1 + hertz / 700) for hertz in (LOW_HZ, HIGH_HZ))
    edges = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    hertz = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    rising = (hertz[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz[:, None]) / (edges[2:] - edges[1:-1])
    bands = np.clip(np.minimum(rising, falling), 0, None)
    made: NDArray[np.float64] = bands / bands.sum(0)
    return made


KINDS: Mapping[str, Callable[[GraphBuilder, Path], None]] = {
    "item": lambda graph, folder: build_detector(graph, weights("item", folder)),
    "embedder": lambda graph, folder: build_embedder(graph, weights("item", folder)),
    "face": lambda graph, folder: build_detector(graph, weights("face", folder)),
    "voice": lambda graph, folder: build_voice(graph, weights("voice", folder)),
}

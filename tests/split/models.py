"""Small models as files, whose cuts are of several kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.adapt.networks import network
from walle import nn, np
from walle.engine_ext.model import GraphBuilder


def saved(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file of a network of tests/adapt, and inputs of one sample."""
    model, inputs = network(name)
    path = folder / f"{name}.walle"
    nn.to_walle(model, path, *inputs)
    names = nn.from_onnx(path).input_names
    return path, {one: array[:1] for one, array in zip(names, inputs, strict=True)}


def shaped(path: Path) -> Path:
    """Write a model whose reshape takes its shape from an array that an earlier node made, and return its path."""
    graph = GraphBuilder("shaped")
    x = graph.input("x", (2, 3, 4, 5))
    y = graph.op("Relu", [x])
    size = graph.op("Shape", [y])
    z = graph.op("Tanh", [y])
    part = graph.op("Slice", [size, graph.constant("first", [0]), graph.constant("end", [2])])
    shape = graph.op("Concat", [part, graph.constant("rest", [-1])], axis=0)
    flat = graph.op("Reshape", [graph.op("Transpose", [z], perm=[0, 1, 3, 2]), shape])
    graph.output("flat", graph.op("Exp", [flat]))
    graph.save(path)
    return path


def two_ends(path: Path) -> Path:
    """Write a model with one output halfway, which is read further on, and one at the end; return its path."""
    graph = GraphBuilder("two ends")
    x = graph.input("x", (None, 6))
    weight = graph.constant("weight", (np.arange(36, dtype="float32").reshape(6, 6) - 18.0) / 40.0)
    half = graph.op("Tanh", [graph.op("MatMul", [x, weight])])
    graph.output("half", half)
    graph.output("whole", graph.op("Sigmoid", [graph.op("MatMul", [half, weight])]))
    graph.save(path)
    return path


def shrinking(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file of a model that makes its image small at once and then computes most, and an input."""
    nn.manual_seed(3)
    model = nn.Sequential(
        nn.MaxPool2d(8),
        nn.Conv2d(3, 96, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(96, 96, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
    )
    x = np.random.default_rng(0).normal(size=(1, 3, 128, 128)).astype("float32")
    path = folder / "shrinking.walle"
    nn.to_walle(model.eval(), path, x)
    return path, {nn.from_onnx(path).input_names[0]: x}

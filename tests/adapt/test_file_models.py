"""Models of files: the names of their inputs and outputs, and statistics that are not trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from walle import adapt
from walle.adapt.source import load_model
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.session import load

GOALS = """
model = "net.walle"
data = {train = "data.npz", test = "data.npz"}
training = {steps = 8, batch = 16, learning_rate = 0.05}
[algorithm]
name = "morphnet"
iteration_steps = 4
init_reg_strength = 4.0
[goals]
half = {parameters = "70"}
"""
CHANNELS = 8


@pytest.fixture
def statistics(tmp_path: Path) -> dict[str, Any]:
    """Write a network with a normalisation that another program made, and data; return its statistics."""
    random = numpy.random.default_rng(2)
    graph = GraphBuilder("net")

    def constant(name: str, *shape: int) -> Any:
        return graph.constant(name, random.normal(size=shape).astype("float32"))

    found = {
        "norm.mean": random.normal(size=CHANNELS).astype("float32"),
        "norm.var": random.uniform(0.5, 2.0, CHANNELS).astype("float32"),
    }
    x = graph.input("pixels", (-1, 1, 6, 6))
    y = graph.op("Conv", [x, constant("stem", CHANNELS, 1, 3, 3)], pads=[1, 1, 1, 1])
    norm = [constant("norm.scale", CHANNELS), constant("norm.shift", CHANNELS)]
    y = graph.op("Relu", [y])
    y = graph.op("BatchNormalization", [y, *norm, *(graph.constant(name, one) for name, one in found.items())])
    y = graph.op("GlobalAveragePool", [y])
    y = graph.op("Flatten", [y])
    graph.output("scores", graph.op("MatMul", [y, constant("dense", CHANNELS, 4)]))
    (tmp_path / "net.walle").write_bytes(graph.to_bytes())
    images = random.normal(size=(64, 1, 6, 6)).astype("float32")
    numpy.savez(tmp_path / "data.npz", x=images, y=random.integers(0, 4, 64))
    (tmp_path / "goals.toml").write_text(GOALS)
    return found


def test_adapted_files_have_the_names_of_the_given_file(statistics: dict[str, Any], tmp_path: Path) -> None:
    (outcome,) = adapt.run(tmp_path / "goals.toml", tmp_path / "out")
    assert outcome.fitted[0].meets_budgets
    session = load((tmp_path / "out" / "half.walle").read_bytes())
    assert [one.name for one in session.inputs] == ["pixels"]
    (name,) = session.run({"pixels": numpy.ones((3, 1, 6, 6), "float32")})
    assert name == "scores"
    found = {name: one.data for name, one in load_model("out/half.walle", tmp_path).named_parameters()}
    for name, given in statistics.items():
        assert 0 < len(found[name]) < CHANNELS
        assert set(found[name].tolist()) <= set(given.tolist())


def test_statistics_of_a_file_are_not_trained(statistics: dict[str, Any], tmp_path: Path) -> None:
    model = load_model("net.walle", tmp_path)
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert trained == {"stem", "norm.scale", "norm.shift", "dense"}
    assert set(statistics) <= set(dict(model.named_parameters()))

"""Graphs in parts: the places that one array passes, frontiers of several, and what parts compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.adapt.networks import network
from walle import nn, np
from walle.adapt.branches.features import features_of
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.nn.partition import Graph


@pytest.mark.parametrize("name", ["residual", "depthwise", "attention", "words", "recurrent"])
def test_parts_of_a_split_model_compute_the_same(name: str) -> None:
    model, inputs = network(name)
    expected = model(*inputs)
    graph = Graph(model, [one[:2] for one in inputs])
    bases = [(point, graph.base(point)) for point in graph.points()]
    given = [(point, base, features_of(base, inputs)) for point, base in bases]
    assert any(features is not None for _, _, features in given)
    for point, base, features in given:
        if features is None:  # the batch is not the first axis
            continue
        rest = graph.rest(point, features)
        assert np.allclose(rest(base(*inputs)), expected, rtol=1e-4, atol=1e-5)
        names = [*dict(base.named_parameters()), *dict(rest.named_parameters())]
        assert len(names) == len(set(names))
        assert set(names) >= set(dict(model.named_parameters()))


def test_a_split_is_not_between_a_product_and_its_scale_nor_within_a_shortcut() -> None:
    model, inputs = network("residual")
    graph = Graph(model, inputs)
    reached = [features_of(graph.base(point), inputs) for point in graph.points()]
    assert [one.shape for one in reached if one is not None] == [(2, 6, 8, 8), (2, 96)]


def test_running_statistics_of_a_part_are_not_trained() -> None:
    model, inputs = network("residual")
    graph = Graph(model, inputs)
    base = graph.base(graph.points()[0])
    trained = {name: one.requires_grad for name, one in base.named_parameters()}
    assert trained["stem.1.weight"]
    assert not trained["stem.1.running_var"]


@pytest.mark.parametrize("name", ["residual", "depthwise", "attention", "words", "recurrent"])
def test_the_values_of_each_frontier_make_the_outputs(name: str) -> None:
    model, inputs = network(name)
    expected = np.asarray(model(*inputs))
    graph = Graph(model, inputs)
    arrays = graph.arrays()
    outputs = list(zip(graph.output_names, graph.outputs, strict=True))
    given = [(str(at), str(one.dtype), one.shape) for at, one in enumerate(inputs)]
    frontiers = graph.frontiers()
    assert frontiers[0] == graph.inputs
    assert frontiers[-1] == []
    for values in frontiers[1:-1]:
        before = graph.part(given, graph.inputs, [(str(number), number) for number in values])
        passed = before(*inputs)
        passed = passed if isinstance(passed, tuple) else (passed,)
        assert [one.shape for one in passed] == [arrays[number].shape for number in values]
        assert [one.nbytes for one in passed] == [arrays[number].size_bytes for number in values]
        shapes = [(str(number), arrays[number].dtype, arrays[number].shape) for number in values]
        after = graph.part(shapes, values, outputs)
        assert np.allclose(np.asarray(after(*passed)), expected, rtol=1e-5, atol=1e-6)


def test_free_lengths_are_those_that_the_batch_changes() -> None:
    model, inputs = network("residual")
    graph = Graph(model, inputs)
    arrays = graph.arrays()
    assert arrays[graph.outputs[0]].free_shape == (None, 4)
    assert arrays[graph.inputs[0]].free_shape == (None, 1, 8, 8)


class Shaped(nn.Module):
    """A reshape to a shape that another array has."""

    def forward(self, x: Any) -> Any:
        y = nn.functional.relu(x)
        return np.tanh(y).reshape(x.shape[0], -1) * 2.0


def test_a_node_has_the_name_of_its_place_in_the_numbered_graph() -> None:
    graph = Graph(Shaped(), [np.ones((2, 3, 4), "float32")])
    assert [name for _, name, *_ in graph.numbered().nodes()] == [str(at) for at in range(graph.node_count)]


def test_fixed_values_depend_on_shapes_of_inputs_and_not_on_constants_alone(tmp_path: Path) -> None:
    graph = GraphBuilder("packed")
    x = graph.input("x", (2, 64))
    packed = graph.constant("packed", [[1] * 64] * 64, "int8")
    weight = graph.op("Cast", [packed], to="float32")
    y = graph.op("MatMul", [x, weight])
    shape = graph.op("Shape", [y])
    graph.output("y", graph.op("Reshape", [graph.op("Relu", [y]), shape]))
    graph.save(tmp_path / "packed.walle")
    found = Graph(nn.from_onnx(tmp_path / "packed.walle"), [np.zeros((2, 64), "float32")], free_batch=False)
    assert [one.tolist() for one in found.fixed().values()] == [[2, 64]]

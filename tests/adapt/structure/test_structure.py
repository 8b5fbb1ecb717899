"""Channels that can be removed: found by tracing, counted by formulas, and cut out of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapt.networks import NAMES, Residual, images, network
from walle import nn, np
from walle.adapt.costs.formula import CostFormula
from walle.adapt.structure.cut import cut, cut_structure
from walle.adapt.structure.network import Structure, find_structure
from walle.engine_ext.errors import ModelError


def without(model: nn.Module, structure: Structure, kept: list[list[int]]) -> nn.Module:
    """Return a copy in which no product reads the other channels."""
    silent: nn.Module = copy.deepcopy(model)
    parameters = dict(silent.named_parameters())
    for group, channels in zip(structure.groups, kept, strict=True):
        for name, axis in group.consumers:
            for channel, places in enumerate(group.places[name, axis]):
                if channel not in channels:
                    index: list[Any] = [slice(None)] * parameters[name].data.ndim
                    index[axis] = list(places)
                    parameters[name].data[tuple(index)] = 0.0
    return silent


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(data=st.data())
def test_a_smaller_network_is_the_whole_one_without_the_channels(name: str, data: st.DataObject) -> None:
    model, inputs = network(name)
    structure = find_structure(model, inputs)
    assert structure.groups
    kept = [
        sorted(data.draw(st.sets(st.integers(0, group.count - 1), min_size=1)), key=int) for group in structure.groups
    ]
    smaller = cut(model, structure, kept)
    expected = without(model, structure, kept)(*inputs)
    assert np.allclose(smaller(*inputs), expected, rtol=1e-4, atol=1e-5)
    widths = [len(one) for one in kept]
    again = find_structure(smaller, inputs)
    assert CostFormula(structure, None).of(widths) == CostFormula(again, None).whole()
    assert CostFormula(again, None).whole()["parameters"] == sum(one.data.size for one in smaller.parameters())


def test_single_channel_convolutions_of_a_file_are_cut(tmp_path: Path) -> None:
    model, inputs = network("depthwise")
    nn.to_walle(model, tmp_path / "net.walle", *inputs)
    read = nn.from_onnx(str(tmp_path / "net.walle"), ["*"])
    structure = find_structure(read, inputs)
    kept = [list(range(group.count))[:: 2 if group.count == 8 else 1] for group in structure.groups]
    assert np.allclose(cut(read, structure, kept)(*inputs), without(read, structure, kept)(*inputs), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(data=st.data())
def test_two_cuts_are_as_one(name: str, data: st.DataObject) -> None:
    model, inputs = network(name)
    structure = find_structure(model, inputs)

    def drawn(structure: Structure) -> list[list[int]]:
        return [sorted(data.draw(st.sets(st.integers(0, one.count - 1), min_size=1))) for one in structure.groups]

    first = drawn(structure)
    between = cut_structure(model, structure, first)
    assert CostFormula(between, None).whole() == CostFormula(structure, None).of(between.widths)
    second = drawn(between)
    both = [[own[at] for at in some] for own, some in zip(first, second, strict=True)]
    found = cut(cut(model, structure, first), between, second).state_dict()
    expected = cut(model, structure, both).state_dict()
    assert {name: one.tolist() for name, one in found.items()} == {name: one.tolist() for name, one in expected.items()}


def test_operations_are_those_of_the_papers_formula() -> None:
    model, inputs = network("residual")
    structure = find_structure(model, inputs)
    convolutions = 64 * 9 * (1 * 6 + 6 * 12 + 12 * 6)  # C_in · C_out · S_kernel · S_out
    assert CostFormula(structure, None).whole()["operations"] == convolutions + 6 * 16 * 4


def test_groups_are_named_by_the_layer_that_makes_them() -> None:
    structure = find_structure(Residual(), [images()])
    assert {group.name: group.count for group in structure.groups} == {"stem.0": 6, "first": 12}
    assert structure.kept["dense.weight", 0] == "an output of the network"
    assert structure.kept["stem.0.weight", 1] == "Conv at Conv"


def test_a_recurrent_layer_keeps_its_sizes() -> None:
    model, inputs = network("recurrent")
    structure = find_structure(model, inputs)
    assert structure.groups == ()
    assert "GRU" in structure.kept["gru.weight_ih_l0", 1]
    steps = 6 * 3 * 5 * (3 + 5)
    assert CostFormula(structure, None).whole()["operations"] == steps + 5 * 4


def test_an_operator_without_a_rule_keeps_what_it_reads() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 2)

        def forward(self, x: Any) -> Any:
            return self.second(np.sort(self.first(x), axis=1))

    structure = find_structure(Sorted(), [np.ones((2, 3), "float32")])
    assert structure.groups == ()
    assert structure.kept["first.weight", 0].startswith("TopValues")


class Normalised(nn.Module):
    """A normalisation over the channels, which counts those that no weight reads."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(3, 6), norm(6), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.second(self.norm(self.first(x)))


class Scores(nn.Module):
    """A product of two activations over the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.second = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        query = self.query(x)
        return self.second(np.matmul(np.matmul(query, np.swapaxes(query, -1, -2)), query))


@pytest.mark.parametrize(
    ("model", "shape", "reason"),
    [
        (Normalised(nn.LayerNorm), (4, 3), "LayerNormalization at "),
        (Normalised(nn.RMSNorm), (4, 3), "RMSNormalization at "),
        (Scores(), (4, 5, 3), "MatMul at "),
    ],
)
def test_channels_that_more_than_weights_sum_over_stay(model: nn.Module, shape: tuple[int, ...], reason: str) -> None:
    structure = find_structure(model, [np.ones(shape, "float32")])
    assert structure.groups == ()
    assert structure.kept["second.weight", 1].startswith(reason)


def test_a_group_keeps_a_channel() -> None:
    model, inputs = network("residual")
    structure = find_structure(model, inputs)
    with pytest.raises(ModelError, match="at least one stays"):
        cut(model, structure, [[], [0]])
    with pytest.raises(ModelError, match="channels of 1 groups; the network has 2"):
        cut(model, structure, [[0]])


def test_the_model_itself_is_unchanged() -> None:
    model, inputs = network("residual")
    before = model(*inputs)
    structure = find_structure(model, inputs)
    cut(model, structure, [[0], [0]])
    assert np.array_equal(model(*inputs), before)
    assert model.training is False

"""Wider networks, which compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapt.networks import NAMES, Residual, images, network
from walle import nn, np
from walle.adapt.costs.formula import CostFormula
from walle.adapt.structure.network import find_structure
from walle.adapt.structure.widen import can_widen, widen
from walle.engine_ext.errors import ModelError


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(data=st.data())
def test_a_wider_network_computes_the_same(name: str, data: st.DataObject) -> None:
    model, inputs = network(name)
    structure = find_structure(model, inputs)
    widths = [group.count + data.draw(st.integers(0, 2 * group.count + 1)) for group in structure.groups]
    assert all(can_widen(group) for group in structure.groups)
    wider = widen(model, structure, widths)
    assert np.allclose(wider(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    assert CostFormula(structure, None).of(widths) == CostFormula(find_structure(wider, inputs), None).whole()


@pytest.mark.parametrize("name", ["residual", "depthwise"])
def test_a_wider_model_of_a_file_computes_the_same(name: str, tmp_path: Path) -> None:
    model, inputs = network(name)
    nn.to_walle(model, tmp_path / "net.walle", *inputs)
    read = nn.from_onnx(str(tmp_path / "net.walle"), ["*"])
    structure = find_structure(read, inputs)
    wider = widen(read, structure, [group.count + 3 for group in structure.groups])
    assert np.allclose(wider(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


def test_noise_tells_copies_apart_and_comes_from_the_seed() -> None:
    model, inputs = network("residual")
    structure = find_structure(model, inputs)
    widths = [2 * group.count for group in structure.groups]

    def first(seed: int) -> Any:
        return widen(model, structure, widths, noise=0.1, seed=seed)

    one, same, other = first(1), first(1), first(2)
    assert np.array_equal(one(*inputs), same(*inputs))
    assert not np.array_equal(one(*inputs), other(*inputs))
    original, copies = one.first.weight.data[::2], one.first.weight.data[1::2]
    assert np.allclose(one(*inputs), model(*inputs), atol=0.5)
    assert not np.allclose(original, copies)
    assert np.allclose(original, copies, atol=0.1 * 6 * float(np.std(model.first.weight.data)))


def test_an_only_channel_of_many_places_is_not_copied() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 1), nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            one = self.first(x)
            return self.second(np.concatenate([one, one], 1))

    structure = find_structure(Twice(), [np.ones((4, 3), "float32")])
    assert [can_widen(group) for group in structure.groups] == [False]
    with pytest.raises(ModelError, match="first cannot have more channels"):
        widen(Twice(), structure, [2])


def test_widths_below_the_models_are_refused() -> None:
    model, inputs = network("residual")
    structure = find_structure(model, inputs)
    with pytest.raises(ModelError, match="5 channels; it has 6"):
        widen(model, structure, [5, 12])
    with pytest.raises(ModelError, match="widths of 1 groups; the network has 2"):
        widen(model, structure, [6])


def test_the_model_itself_is_unchanged() -> None:
    model = Residual().eval()
    before = model(images())
    widen(model, find_structure(model, [images()]), [9, 20], noise=1.0)
    assert np.array_equal(model(images()), before)

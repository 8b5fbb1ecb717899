"""Removal of channels: a smaller network with the remaining weights (not one with zeros), and new sizes of layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from walle import nn, np
from walle.adapt.structure.network import AxisName, Structure
from walle.engine_ext.errors import ModelError
from walle.engine_ext.nn.onnx_model import FileModel

type Widths = Sequence[Sequence[int]]  # channels that stay in each group, ascending


def cut(model: nn.Module, structure: Structure, kept: Widths) -> nn.Module:
    """Return a copy of the model with only these channels of each group.

    Raises:
        ModelError: a group would have no channel, or `kept` is not of the structure.
    """
    if len(kept) != len(structure.groups):
        raise ModelError(f"channels of {len(kept)} groups; the network has {len(structure.groups)}")
    smaller: nn.Module = copy.deepcopy(model)
    places = _places(structure, kept, _shapes(model))
    resize_layers(smaller, structure, [len(one) for one in kept], lambda array, name: _taken(array, name, places))
    return smaller


def resize_layers(
    model: nn.Module, structure: Structure, widths: Sequence[int], change: Callable[[Any, str], Any]
) -> None:
    """Put `change(array, name)` in place of each parameter and buffer, and change the sizes that layers say of them."""
    for path, module in model.named_modules(remove_duplicate=True):
        start = f"{path}." if path else ""
        own = module.__dict__
        for name, parameter in own["_parameters"].items():
            if parameter is not None:
                parameter.data = change(parameter.data, start + name)
        for name, array in own["_buffers"].items():
            if array is not None:
                own["_buffers"][name] = change(array, start + name)
        resize = _RESIZE.get(type(module))
        if resize is not None:
            resize(module)
    # After the weights, whose sizes the nodes of files repeat.
    for module in model.modules():
        if isinstance(module, FileModel):
            _resize_nodes(module, structure, widths)


def cut_arrays(arrays: Mapping[str, Any], model: nn.Module, structure: Structure, kept: Widths) -> dict[str, Any]:
    """Return arrays in the shapes of the model's parameters, by their names, with only these channels of each group."""
    places = _places(structure, kept, _shapes(model))
    return {name: _taken(array, name, places) for name, array in arrays.items()}


def cut_structure(model: nn.Module, structure: Structure, kept: Widths) -> Structure:
    """Return the structure of `cut(model, structure, kept)`, with the same groups: a group of one channel traced again
    could look like another.
    """
    moved = {
        axis: {place: at for at, place in enumerate(stay)}
        for axis, stay in _places(structure, kept, _shapes(model)).items()
    }
    groups = []
    for group, channels in zip(structure.groups, kept, strict=True):
        places = {
            axis: tuple(tuple(moved.get(axis, {}).get(one, one) for one in of_channels[at]) for at in channels)
            for axis, of_channels in group.places.items()
        }
        groups.append(replace(group, count=len(channels), places=places))
    return replace(structure, groups=tuple(groups))


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: one.shape for name, one in model.named_parameters()} | {
        name: one.shape for name, one in model.named_buffers()
    }


def _places(structure: Structure, kept: Widths, shapes: dict[str, tuple[int, ...]]) -> dict[AxisName, list[int]]:
    """Return, for each axis that loses places, those that stay."""
    removed: dict[AxisName, set[int]] = {}
    for group, channels in zip(structure.groups, kept, strict=True):
        stay = set(channels)
        if not stay or not stay <= set(range(group.count)):
            raise ModelError(f"{group.name}: channels {sorted(stay)} of {group.count}; at least one stays")
        for axis, of_channels in group.places.items():
            gone = {place for at, places in enumerate(of_channels) if at not in stay for place in places}
            removed.setdefault(axis, set()).update(gone)
    return {
        (name, at): [place for place in range(shapes[name][at]) if place not in gone]
        for (name, at), gone in removed.items()
        if gone
    }


def _taken(array: Any, name: str, places: dict[AxisName, list[int]]) -> Any:
    for at in range(array.ndim):
        stay = places.get((name, at))
        if stay is not None:
            array = np.take(array, stay, axis=at)
    return array


def _resize_nodes(model: FileModel, structure: Structure, widths: Sequence[int]) -> None:
    """Change the sizes that a file's nodes have written down: groups of channels, and shapes."""
    model.set_groups()
    for node, lengths in structure.reshaped.items():
        if any(lengths):
            model.set_shape(node, [None if length is None else length.of(widths) for length in lengths])


def _resize_convolution(layer: Any) -> None:
    first, second = layer.weight.shape[:2]
    if layer.groups > 1:  # a channel is a group of its own
        layer.groups = first
    inputs, outputs = (second * layer.groups, first)
    if isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d):
        inputs, outputs = first, second * layer.groups
    layer.in_channels, layer.out_channels = inputs, outputs


def _resize_linear(layer: Any) -> None:
    layer.out_features, layer.in_features = layer.weight.shape


def _resize_batch_norm(layer: Any) -> None:
    given = next((one for one in (layer.weight, layer.running_mean) if one is not None), None)
    if given is not None:
        layer.num_features = given.shape[0]


def _resize_layer_norm(layer: Any) -> None:
    if layer.weight is not None:
        layer.normalized_shape = tuple(layer.weight.shape)


def _resize_embedding(layer: Any) -> None:
    layer.num_embeddings, layer.embedding_dim = layer.weight.shape


def _resize_prelu(layer: Any) -> None:
    layer.num_parameters = layer.weight.shape[0]


# What a layer of walle.nn says of its sizes, by its weights.
_RESIZE: dict[type, Callable[[Any], None]] = {
    nn.Conv1d: _resize_convolution,
    nn.Conv2d: _resize_convolution,
    nn.ConvTranspose1d: _resize_convolution,
    nn.ConvTranspose2d: _resize_convolution,
    nn.Linear: _resize_linear,
    nn.BatchNorm1d: _resize_batch_norm,
    nn.BatchNorm2d: _resize_batch_norm,
    nn.LayerNorm: _resize_layer_norm,
    nn.RMSNorm: _resize_layer_norm,
    nn.Embedding: _resize_embedding,
    nn.PReLU: _resize_prelu,
}

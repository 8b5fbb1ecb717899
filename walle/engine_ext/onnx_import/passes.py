"""Optimisation passes: pure functions from a graph to a graph that computes the same.

They run to make a model smaller and quicker to plan, never to make it right: leaving any of them out changes no output
beyond rounding.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from walle.engine_ext import _core
from walle.engine_ext.model import BITS_ONLY, DTYPES
from walle.engine_ext.onnx_import.chains import fuse_gelu, fuse_layer_normalization
from walle.engine_ext.onnx_import.graph import Array, Attribute, Graph, Node, Rewriting, read_by, uses_of
from walle.engine_ext.onnx_import.quantised import fuse_quantised
from walle.errors import EngineError

type Pass = Callable[[Graph], Graph]

# Larger results of constants are left for the engine to compute when it plans, unless the file becomes smaller by them.
_MAX_FOLDED_BYTES = 1 << 16
_MAX_ROUNDS = 8
# Operators that must not be folded or merged: each run has other values.
_RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
# Input, weights and bias of a convolution or matrix product; what another pass attaches comes behind them.
_PRODUCT_INPUTS = 3
# Activations that the engine's Conv applies to its result.
_ACTIVATIONS = frozenset({"Relu", "Sigmoid", "Tanh"})
_FOLDED_TYPES = frozenset(DTYPES.keys() - BITS_ONLY)


def optimise(graph: Graph) -> Graph:
    """Return the graph and its subgraphs after all passes, repeated until none changes anything."""
    for _ in range(_MAX_ROUNDS):
        before = len(graph.nodes)
        for one in ALL:
            graph = one(graph)
        if len(graph.nodes) == before:
            break
    return replace(graph, nodes=tuple(node.with_subgraphs(optimise) for node in graph.nodes))


def fold_shapes(graph: Graph) -> Graph:
    """Replace Shape and Size of values whose shapes are known by constants."""
    constants, nodes = dict(graph.constants), []
    for node in graph.nodes:
        shape = graph.shape_of(node.inputs[0]) if node.op in {"Shape", "Size"} and node.domain == "" else None
        if shape is None or None in shape:
            nodes.append(node)
            continue
        end = node.attributes.get("end")
        part = shape[node.int_attribute("start") : end if isinstance(end, int) else None]
        whole = prod(int(dim or 0) for dim in shape)
        constants[node.outputs[0]] = np.array(part if node.op == "Shape" else whole, dtype=np.int64)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def fold_constants(graph: Graph) -> Graph:
    """Replace nodes that depend on constants alone by their values, computed by the engine."""
    constants, nodes = dict(graph.constants), []
    for node in graph.nodes:
        found = _folded(node, constants)
        if found is None:
            nodes.append(node)
        else:
            constants.update({name: value for name, value in found.items() if name})
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _folded(node: Node, constants: Mapping[str, Array]) -> dict[str, Array] | None:
    given = [constants.get(name) if name else None for name in node.inputs]
    known = all(value is not None or name == "" for name, value in zip(node.inputs, given, strict=True))
    if not known or not given or node.op in _RANDOM or any(True for _ in node.subgraphs()):
        return None
    arrays = [value for value in given if value is not None]
    if any(str(value.dtype) not in _FOLDED_TYPES for value in arrays):
        return None
    plain: dict[str, Any] = dict(node.attributes)
    try:
        made = _core.evaluate(node.op, given, plain, len(node.outputs))
    except (EngineError, TypeError, ValueError):
        return None  # refused again, with the node's name, where the model is loaded
    results = [_to_numpy(value) for value in made]
    size, before = sum(value.nbytes for value in results), sum(value.nbytes for value in arrays)
    if size > max(_MAX_FOLDED_BYTES, before):
        return None
    return dict(zip(node.outputs, results, strict=True))


def _to_numpy(value: Any) -> Array:
    """Return an engine's array as NumPy's; NumPy's buffers do not have the types of `BITS_ONLY`."""
    array: Array = np.array(value)
    return array.view(getattr(ml_dtypes, value.dtype)) if value.dtype in BITS_ONLY else array


def fold_branches(graph: Graph) -> Graph:
    """Replace an If with a constant condition by its branch."""
    rewriting, nodes = Rewriting(graph), list[Node]()
    for node in graph.nodes:
        condition = graph.constants.get(node.inputs[0]) if node.op == "If" and node.domain == "" else None
        branch = None
        if condition is not None and condition.size == 1:
            branch = node.attributes.get("then_branch" if condition.reshape(-1)[0] else "else_branch")
        if not isinstance(branch, Graph):
            nodes.append(node)
            continue
        # The branch's own names may be those of another branch.
        own = {*branch.constants, *(name for inner in branch.nodes for name in inner.outputs if name)}
        names = {name: rewriting.fresh(name) for name in sorted(own)}
        rewriting.constants.update({names[name]: value for name, value in branch.constants.items()})
        body = _renamed(branch, branch.nodes, names)
        nodes.extend(body.nodes)
        for inner, name in zip(body.outputs, node.outputs, strict=True):
            nodes.append(Node(op="Identity", inputs=(inner,), outputs=(name,), name=f"{node.name}/{name}"))
    return replace(graph, nodes=tuple(nodes), constants=rewriting.constants)


def fold_batch_normalization(graph: Graph) -> Graph:
    """Fold a BatchNormalization into the weights of the Conv, ConvTranspose or Gemm before it."""
    uses, producers = uses_of(graph), {name: node for node in graph.nodes for name in node.outputs}
    rewriting, changed, dropped = Rewriting(graph), dict[int, Node](), set[int]()
    for node in graph.nodes:
        producer = producers.get(node.inputs[0]) if node.op == "BatchNormalization" and node.inputs else None
        if producer is None or id(producer) in changed or uses.get(node.inputs[0], 0) != 1:
            continue
        merged = _merged_weights(producer, node, graph.constants)
        if merged is None:
            continue
        names = [
            rewriting.constant(f"{producer.name}.{part}", value)
            for part, value in zip(("weight", "bias"), merged, strict=True)
        ]
        changed[id(producer)] = replace(producer, inputs=(producer.inputs[0], *names), outputs=node.outputs[:1])
        dropped.add(id(node))
    nodes = [changed.get(id(node), node) for node in graph.nodes if id(node) not in dropped]
    return replace(graph, nodes=tuple(nodes), constants=rewriting.constants)


def _merged_weights(producer: Node, norm: Node, constants: Mapping[str, Array]) -> tuple[Array, Array] | None:
    """Return weights and bias, computed in float64; None where this pair cannot be merged."""
    operands = [*producer.inputs[1:], *norm.inputs[1:]]
    if producer.op not in {"Conv", "ConvTranspose", "Gemm"} or norm.int_attribute("training_mode") != 0:
        return None
    if "activation" in producer.attributes or len(producer.inputs) > _PRODUCT_INPUTS:
        return None  # fuse_activations or fuse_residuals attached something behind the sums
    if any(name not in constants for name in operands if name) or not producer.has_input(1) or len(norm.inputs) != 5:
        return None
    if any(norm.outputs[1:]) or any(producer.attributes.get(key, 1.0) != 1.0 for key in ("alpha", "beta")):
        return None
    weight = constants[producer.inputs[1]]
    scale, shift, mean, variance = (constants[name].astype(np.float64) for name in norm.inputs[1:])
    epsilon = norm.attributes.get("epsilon", 1e-5)
    factor = scale / np.sqrt(variance + (epsilon if isinstance(epsilon, float) else 1e-5))
    bias = constants[producer.inputs[2]].astype(np.float64) if producer.has_input(2) else np.zeros(1)
    if bias.ndim > 1 or scale.ndim != 1 or weight.ndim < 2:
        return None
    channels = scale.shape[0]
    # The axis of the output channels; those of a ConvTranspose lie within its groups.
    if producer.op == "ConvTranspose":
        groups = producer.int_attribute("group", 1)
        shaped = weight.astype(np.float64).reshape(groups, -1, channels // groups, *weight.shape[2:])
        spread = factor.reshape(groups, 1, channels // groups, *(1,) * (weight.ndim - 2))
        merged = (shaped * spread).reshape(weight.shape)
    elif producer.op == "Gemm" and producer.int_attribute("transB") == 0:
        merged = weight.astype(np.float64) * factor
    else:
        merged = weight.astype(np.float64) * factor.reshape(channels, *(1,) * (weight.ndim - 1))
    return merged.astype(weight.dtype), ((bias - mean) * factor + shift).astype(weight.dtype)


def fuse_residuals(graph: Graph) -> Graph:
    """Fuse an Add into the Conv before it, where the other operand has the shape of the Conv's result."""
    uses, producers = uses_of(graph), {name: node for node in graph.nodes for name in node.outputs}
    fused, dropped = dict[int, Node](), set[int]()
    for node in graph.nodes:
        if node.op != "Add" or node.domain != "":
            continue
        for name, other in (node.inputs, node.inputs[::-1]):
            conv, shape = producers.get(name), graph.shape_of(name)
            known = shape is not None and None not in shape and shape == graph.shape_of(other)
            if (
                conv is None
                or not known
                or not _can_fuse(graph, conv, uses)
                or conv.has_input(3)
                or id(conv) in dropped
            ):
                continue
            inputs = (*(*conv.inputs, "")[:3], other)
            fused[id(node)] = replace(conv, inputs=inputs, outputs=node.outputs)  # where the Add was: `other` is there
            dropped.add(id(conv))
            break
    nodes = [fused.get(id(node), node) for node in graph.nodes if id(node) not in dropped]
    return replace(graph, nodes=tuple(nodes))


def fuse_activations(graph: Graph) -> Graph:
    """Fuse an activation into the Conv before it, where it is the only reader."""
    uses, producers = uses_of(graph), {name: node for node in graph.nodes for name in node.outputs}
    fused, dropped = dict[int, Node](), set[int]()
    for node in graph.nodes:
        conv = producers.get(node.inputs[0]) if node.op in _ACTIVATIONS and node.domain == "" else None
        if conv is None or node.attributes or not _can_fuse(graph, conv, uses):
            continue
        fused[id(conv)] = replace(conv, outputs=node.outputs, attributes={**conv.attributes, "activation": node.op})
        dropped.add(id(node))
    nodes = [fused.get(id(node), node) for node in graph.nodes if id(node) not in dropped]
    return replace(graph, nodes=tuple(nodes))


def _can_fuse(graph: Graph, conv: Node, uses: Mapping[str, int]) -> bool:
    plain = conv.op == "Conv" and conv.domain == "" and "activation" not in conv.attributes
    return plain and uses.get(conv.outputs[0], 0) == 1 and graph.dtype_of(conv.outputs[0]) in {"float32", "float64"}


def drop_identities(graph: Graph) -> Graph:
    """Remove identities; one whose result is an output of the graph stays unless a producer can write that output."""
    produced = {name for node in graph.nodes for name in node.outputs if name}
    names: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        if node.op != "Identity" or node.domain != "":
            nodes.append(node)
            continue
        source, result = names.get(node.inputs[0], node.inputs[0]), node.outputs[0]
        if result not in graph.outputs:
            names[result] = source
        elif source in produced and source not in graph.outputs and source not in names.values():
            names[source] = result  # its producer writes the output itself
        else:
            nodes.append(node)
    return _renamed(graph, nodes, names)


def merge_equal(graph: Graph) -> Graph:
    """Merge nodes that compute the same from the same values."""
    names: dict[str, str] = {}
    first: dict[Any, Node] = {}
    nodes = []
    for given in graph.nodes:
        node = _with_names(given, names)
        key = _key(node)
        same = first.setdefault(key, node) if key is not None else node
        if same is node or any(name in graph.outputs for name in node.outputs):
            nodes.append(node)
        else:
            names.update({name: kept for name, kept in zip(node.outputs, same.outputs, strict=True) if name})
    return _renamed(graph, nodes, names)


def _key(node: Node) -> Any:
    if node.op in _RANDOM or any(True for _ in node.subgraphs()) or "" in node.outputs:
        return None
    plain = [
        (key, (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else repr(value))
        for key, value in sorted(node.attributes.items())
    ]
    return node.domain, node.op, node.version, node.inputs, len(node.outputs), tuple(plain)


def drop_dead(graph: Graph) -> Graph:
    """Remove nodes and constants that no output needs."""
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(name for name in node.outputs if name):
            kept.append(node)
            needed.update(read_by(node))
    constants = {name: value for name, value in graph.constants.items() if name in needed}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)


ALL: tuple[Pass, ...] = (
    drop_dead,
    fuse_quantised,  # before weights are folded into floats
    fold_shapes,
    fold_constants,
    fold_branches,
    fold_batch_normalization,
    drop_identities,
    merge_equal,
    fuse_layer_normalization,
    fuse_gelu,
    fuse_residuals,
    fuse_activations,
    drop_dead,
)


def _with_names(node: Node, names: Mapping[str, str]) -> Node:
    if names.keys().isdisjoint(read_by(node)) and names.keys().isdisjoint(node.outputs):
        return node
    attributes: dict[str, Attribute] = {
        key: _renamed(value, value.nodes, names) if isinstance(value, Graph) else value
        for key, value in node.attributes.items()
    }
    return replace(
        node,
        inputs=tuple(names.get(name, name) for name in node.inputs),
        outputs=tuple(names.get(name, name) for name in node.outputs),
        attributes=attributes,
    )


def _renamed(graph: Graph, nodes: Iterable[Node], names: Mapping[str, str]) -> Graph:
    """Return the graph with other nodes, and values renamed, in its subgraphs too."""
    return replace(
        graph,
        nodes=tuple(_with_names(node, names) for node in nodes),
        outputs=tuple(names.get(name, name) for name in graph.outputs),
    )

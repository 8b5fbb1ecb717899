"""Conversion of ONNX operators of older versions to the newest one: the table of what changed.

The engine has each operator in its newest form. A version that only takes more types needs no entry. What moved from
an attribute to an input is in MOVED; a changed default is found by comparing ONNX's own definitions; whatever else
changed has a function in CHANGED.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from onnx import defs, helper

from walle.engine_ext.errors import UnsupportedError
from walle.engine_ext.onnx_import.graph import Attribute, Graph, Node, Rewriting

# Opsets from here on are converted whole; of older ones the operators that did not change before it, and a few more.
OLDEST_OPSET = 7
# The newest version of the main operator set that this table was checked against.
NEWEST_OPSET = 28

# operator: (the first version in its newest form, the attributes that inputs 1 and on have replaced).
_AXES = ("axes",)
MOVED: dict[str, tuple[int, tuple[str, ...]]] = {
    "ReduceL1": (18, _AXES),
    "ReduceL2": (18, _AXES),
    "ReduceLogSum": (18, _AXES),
    "ReduceLogSumExp": (18, _AXES),
    "ReduceMax": (18, _AXES),
    "ReduceMean": (18, _AXES),
    "ReduceMin": (18, _AXES),
    "ReduceProd": (18, _AXES),
    "ReduceSum": (13, _AXES),
    "ReduceSumSquare": (18, _AXES),
    "Slice": (10, ("starts", "ends", "axes")),
    "Split": (13, ("split",)),
    "Squeeze": (13, _AXES),
    "TopK": (10, ("k",)),
    "Unsqueeze": (13, _AXES),
    "Upsample": (9, ("scales",)),
}

type Change = Callable[[Rewriting, Node], Iterator[Node]]


def _refusal(node: Node, why: str) -> UnsupportedError:
    return UnsupportedError(f"node {node.name!r} ({node.op}, opset {node.version}): {why}")


def renew(graph: Graph) -> Graph:
    """Return the graph with every operator of the main domain in its newest version.

    Raises:
        UnsupportedError: a version is newer than the table, or says something that the newest one cannot.
    """
    renewal = Rewriting(graph)
    nodes = [one for node in graph.nodes for one in _renewed(renewal, node.with_subgraphs(renew))]
    return replace(graph, nodes=tuple(nodes), constants=renewal.constants)


def _renewed(renewal: Rewriting, node: Node) -> Iterator[Node]:
    if node.domain != "" or node.version == 0:
        yield node
        return
    try:
        schema = defs.get_schema(node.op, node.version, "")
    except defs.SchemaError:
        yield node  # unknown to ONNX; refused where the engine's operators are looked up
        return
    if schema.since_version > NEWEST_OPSET:
        raise _refusal(node, f"version {schema.since_version} is newer than {NEWEST_OPSET}, the newest converted")
    node = _at_oldest(node, schema)
    newest = defs.get_schema(node.op, NEWEST_OPSET, "")
    node = _with_old_defaults(node, schema, newest)
    move = MOVED.get(node.op)
    if move is not None and schema.since_version < move[0]:
        node = _with_inputs(renewal, node, move[1])
    change = CHANGED.get(node.op)
    changed = change[1](renewal, node) if change and schema.since_version < change[0] else iter((node,))
    yield from (_without_defaults(one) for one in changed)


# Binary operators that had another broadcasting before opset 7: only by `axis`, and only where `broadcast` was 1.
_BROADCASTING = frozenset({"Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"})
# Other operators whose meaning changed.
_OTHERWISE = frozenset({*_BROADCASTING, "BatchNormalization", "Dropout", "PRelu"})


def _at_oldest(node: Node, schema: defs.OpSchema) -> Node:
    """Return a node of a version older than opset 7 in the form of opset 7, where both mean the same."""
    node = _without(node, "consumed_inputs")  # a hint that opset 6 removed
    if node.version >= OLDEST_OPSET or defs.get_schema(node.op, OLDEST_OPSET, "").since_version == schema.since_version:
        return node
    same = defs.get_schema(node.op, OLDEST_OPSET, "")
    if node.op in _BROADCASTING and node.int_attribute("axis", -1) == -1:
        return _without(node, "broadcast", "axis")
    if node.op == "Gemm":
        return _without(node, "broadcast")
    if node.op in {"BatchNormalization", "Dropout"} and node.int_attribute("is_test") == 1:
        return _without(node, "is_test")
    alike = len(schema.inputs) == len(same.inputs) and node.attributes.keys() <= same.attributes.keys()
    if alike and node.op not in _OTHERWISE:
        return node  # only its types and its text changed
    raise _refusal(node, f"this form is older than opset {OLDEST_OPSET}; upgrade it with onnx.version_converter")


def _default(schema: defs.OpSchema, name: str) -> Attribute | None:
    attribute = schema.attributes[name].default_value
    if not attribute.type:
        return None
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _with_old_defaults(node: Node, old: defs.OpSchema, newest: defs.OpSchema) -> Node:
    """Return the node with its version's defaults written out where the newest version has others."""
    said = dict(node.attributes)
    for name in old.attributes:
        default = _default(old, name)
        if name not in said and name in newest.attributes and default not in (None, _default(newest, name)):
            said[name] = default
    return replace(node, attributes=said)


def _without_defaults(node: Node) -> Node:
    """Return the node without attributes that have the newest version's default value."""
    if not defs.has(node.op):
        return node
    schema = defs.get_schema(node.op, NEWEST_OPSET, "")
    said = {
        name: value
        for name, value in node.attributes.items()
        if isinstance(value, np.ndarray | Graph) or name not in schema.attributes or value != _default(schema, name)
    }
    return replace(node, attributes=said)


def _with_inputs(renewal: Rewriting, node: Node, names: tuple[str, ...]) -> Node:
    """Move attributes into constant inputs."""
    inputs = [*node.inputs[:1]]
    for name in names:
        value = node.attributes.get(name)
        dtype = np.float32 if name in {"scales", "ratio"} else np.int64
        array = None if value is None else np.array(value, dtype=dtype)
        if array is not None and name == "k":
            array = array.reshape(1)
        inputs.append("" if array is None else renewal.constant(f"{node.name}.{name}", array))
    rest = {key: value for key, value in node.attributes.items() if key not in names}
    return replace(node, inputs=_trimmed(inputs), attributes=rest)


def _trimmed(inputs: list[str]) -> tuple[str, ...]:
    while inputs and inputs[-1] == "":
        inputs.pop()
    return tuple(inputs)


def _without(node: Node, *names: str) -> Node:
    return replace(node, attributes={key: value for key, value in node.attributes.items() if key not in names})


def _clip(renewal: Rewriting, node: Node) -> Iterator[Node]:
    dtype = np.dtype(renewal.graph.dtype_of(node.inputs[0]) or renewal.graph.dtype_of(node.outputs[0]) or "float32")
    inputs = [node.inputs[0]]
    for name in ("min", "max"):
        value = node.attributes.get(name)
        inputs.append("" if value is None else renewal.constant(f"{node.name}.{name}", np.array(value, dtype=dtype)))
    yield replace(_without(node, "min", "max"), inputs=_trimmed(inputs))


def _pad(renewal: Rewriting, node: Node) -> Iterator[Node]:
    pads = renewal.constant(f"{node.name}.pads", np.array(node.attributes.get("pads", []), dtype=np.int64))
    dtype = np.dtype(renewal.graph.dtype_of(node.inputs[0]) or renewal.graph.dtype_of(node.outputs[0]) or "float32")
    value = renewal.constant(f"{node.name}.value", np.array(node.attributes.get("value", 0.0), dtype=dtype))
    yield replace(_without(node, "pads", "value"), inputs=(node.inputs[0], pads, value))


def _softmax(renewal: Rewriting, node: Node) -> Iterator[Node]:
    """Flatten the dimensions from `axis` on: before opset 13 they count as one."""
    axis = node.int_attribute("axis", 1)
    shape = renewal.graph.shape_of(node.inputs[0])
    if shape is not None and (axis % len(shape) if shape else 0) >= len(shape) - 1:
        yield replace(node, attributes={**node.attributes, "axis": -1})
        return
    flat, result, size = (renewal.fresh(f"{node.name}.{part}") for part in ("flat", "result", "shape"))
    yield Node(
        op="Flatten", inputs=node.inputs, outputs=(flat,), attributes={"axis": axis}, name=f"{node.name}.flatten"
    )
    yield replace(node, inputs=(flat,), outputs=(result,), attributes={**node.attributes, "axis": -1})
    yield Node(op="Shape", inputs=node.inputs, outputs=(size,), name=f"{node.name}.shape")
    yield Node(
        op="Reshape",
        inputs=(result, size),
        outputs=node.outputs,
        attributes={"allowzero": 1},
        name=f"{node.name}.reshape",
    )


def _batch_normalization(_: Rewriting, node: Node) -> Iterator[Node]:
    if node.attributes.get("spatial", 1) != 1:
        raise _refusal(node, "spatial=0 normalises every place on its own; only spatial=1 is converted")
    if sum(name != "" for name in node.outputs) > 1:
        raise _refusal(node, "training outputs of a version before 14")
    yield replace(_without(node, "spatial"), outputs=node.outputs[:1])


def _dropout(_: Rewriting, node: Node) -> Iterator[Node]:
    # Before 12 there was no training mode: always the identity, with an output mask that is all true.
    yield replace(_without(node, "ratio"), inputs=node.inputs[:1])


def _upsample(_: Rewriting, node: Node) -> Iterator[Node]:
    """Yield a Resize with asymmetric coordinates whose mode nearest rounds down."""
    mode = {"nearest": "nearest", "linear": "linear", "bilinear": "linear"}.get(
        str(node.attributes.get("mode", "nearest"))
    )
    if mode is None:
        raise _refusal(node, f"mode {node.attributes['mode']!r}; known are nearest and linear")
    yield replace(
        node,
        op="Resize",
        inputs=(node.inputs[0], "", node.inputs[1]),
        attributes={"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    )


def _resize(renewal: Rewriting, node: Node) -> Iterator[Node]:
    if len(node.inputs) > 2:  # 11 on: the inputs are in place; only attributes were added
        yield node
        return
    yield from _upsample(renewal, node)


def _scatter(_: Rewriting, node: Node) -> Iterator[Node]:
    yield replace(node, op="ScatterElements")


def _dft(renewal: Rewriting, node: Node) -> Iterator[Node]:
    # Version 17 counts the axis over the signal with its last dimension of real and imaginary parts, as 20 does.
    axis = renewal.constant(f"{node.name}.axis", np.array(node.attributes.get("axis", 1), dtype=np.int64))
    inputs = [*node.inputs, ""][:2]
    yield replace(_without(node, "axis"), inputs=(*inputs, axis))


def _grid_sample(_: Rewriting, node: Node) -> Iterator[Node]:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = str(node.attributes.get("mode", "bilinear"))
    yield replace(node, attributes={**node.attributes, "mode": names.get(mode, mode)})


def _group_normalization(renewal: Rewriting, node: Node) -> Iterator[Node]:
    """Repeat scale and bias: version 18 has one for each group, 21 one for each channel."""
    shape = renewal.graph.shape_of(node.inputs[0])
    groups = node.int_attribute("num_groups", 1)
    if shape is None or shape[1] is None:
        raise _refusal(node, "the number of channels is not known; give the input a shape")
    channels = int(shape[1])
    inputs = [node.inputs[0]]
    for value in node.inputs[1:]:
        column, wide, flat = (renewal.fresh(f"{node.name}.{part}") for part in ("column", "wide", "flat"))
        yield Node(
            op="Reshape",
            inputs=(value, renewal.constant("shape", np.array([groups, 1]))),
            outputs=(column,),
            name=f"{node.name}.column",
        )
        size = renewal.constant("shape", np.array([groups, channels // groups]))
        yield Node(op="Expand", inputs=(column, size), outputs=(wide,), name=f"{node.name}.wide")
        yield Node(
            op="Reshape",
            inputs=(wide, renewal.constant("shape", np.array([channels]))),
            outputs=(flat,),
            name=f"{node.name}.flat",
        )
        inputs.append(flat)
    yield replace(node, inputs=tuple(inputs))


def _roi_align(_: Rewriting, node: Node) -> Iterator[Node]:
    yield replace(node, attributes={"coordinate_transformation_mode": "output_half_pixel", **node.attributes})


def _scan(_: Rewriting, node: Node) -> Iterator[Node]:
    """Mark version 8, which has sequence_lens and a batch axis in front, by an attribute of the engine's own."""
    yield replace(node, attributes={**node.attributes, "batched": 1})


# operator: (the first version that needs no change, the change).
CHANGED: dict[str, tuple[int, Change]] = {
    "BatchNormalization": (14, _batch_normalization),
    "Clip": (11, _clip),
    "DFT": (20, _dft),
    "Dropout": (12, _dropout),
    "GridSample": (20, _grid_sample),
    "GroupNormalization": (21, _group_normalization),
    "Hardmax": (13, _softmax),
    "LogSoftmax": (13, _softmax),
    "Pad": (11, _pad),
    "Resize": (11, _resize),
    "RoiAlign": (16, _roi_align),
    "Scan": (9, _scan),
    "Scatter": (NEWEST_OPSET + 1, _scatter),
    "Softmax": (13, _softmax),
    "Upsample": (NEWEST_OPSET + 1, _upsample),
}

"""Lowering rules: ONNX operators that the engine has under another name or in another form.

Most operators of the newest opset are the engine's by the same name. The rules here are for those that become several
operators of the engine, or none at run time.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from walle.engine_ext.errors import UnsupportedError
from walle.engine_ext.onnx_import import microsoft
from walle.engine_ext.onnx_import.graph import Array, Attribute, Graph, Node, Rewriting

_DOMAINS = frozenset({"", "ai.onnx.ml", microsoft.DOMAIN})

type Rule = Callable[[Rewriting, Node], Iterator[Node]]


def lower(graph: Graph) -> Graph:
    """Return the graph in operators of the engine; operators without a rule stay unchanged."""
    lowering = Rewriting(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        one = node.with_subgraphs(lower)
        rules = microsoft.RULES if node.domain == microsoft.DOMAIN else _RULES
        rule = rules.get(node.op) if node.domain in _DOMAINS else None
        nodes.extend(rule(lowering, one) if rule else (one,))
    return replace(graph, nodes=tuple(nodes), constants=lowering.constants)


def _constant(lowering: Rewriting, node: Node) -> Iterator[Node]:
    lowering.constants[node.outputs[0]] = constant_value(node)
    yield from ()


def constant_value(node: Node) -> Array:
    """Return the value of a Constant.

    Raises:
        UnsupportedError: none of its attributes is a form of value that ONNX defines.
    """
    for key, value in node.attributes.items():
        if key in {"value", "sparse_value"}:
            return np.asarray(value)
        if key in {"value_float", "value_floats"}:
            return np.array(value, dtype=np.float32)
        if key in {"value_int", "value_ints"}:
            return np.array(value, dtype=np.int64)
        if key in {"value_string", "value_strings"}:
            return np.array(value, dtype=object)
    raise UnsupportedError(f"node {node.name!r} (Constant) has no attribute with a value")


def _constant_of_shape(lowering: Rewriting, node: Node) -> Iterator[Node]:
    given: Attribute = node.attributes.get("value", np.zeros(1, dtype=np.float32))
    value = lowering.constant(f"{node.name}.value", np.asarray(given).reshape(()))
    yield replace(node, op="Expand", inputs=(value, node.inputs[0]), attributes={})


def _dropout(lowering: Rewriting, node: Node) -> Iterator[Node]:
    """Yield the identity, and an all-true mask, where the model is not for training; else the node."""
    if node.has_input(2):
        training = lowering.constants.get(node.inputs[2])
        if training is None or bool(training.reshape(-1)[0]):
            yield node
            return
    yield Node(op="Identity", inputs=node.inputs[:1], outputs=node.outputs[:1], name=node.name)
    if len(node.outputs) > 1 and node.outputs[1]:
        shape = lowering.fresh(f"{node.name}.shape")
        yield Node(op="Shape", inputs=node.inputs[:1], outputs=(shape,), name=f"{node.name}.shape")
        true = lowering.constant(f"{node.name}.true", np.array(True))
        yield Node(op="Expand", inputs=(true, shape), outputs=(node.outputs[1],), name=f"{node.name}.mask")


def _feature_vectorizer(lowering: Rewriting, node: Node) -> Iterator[Node]:
    """Yield casts of the features to float32, then the vectorizer."""
    inputs: list[str] = []
    for name in node.inputs:
        if lowering.graph.dtype_of(name) == "float32":
            inputs.append(name)
            continue
        inputs.append(lowering.fresh(f"{node.name}.float"))
        yield Node(
            op="Cast", inputs=(name,), outputs=(inputs[-1],), attributes={"to": "float32"}, name=f"{node.name}.float"
        )
    yield replace(node, inputs=tuple(inputs))


def _label_encoder(lowering: Rewriting, node: Node) -> Iterator[Node]:
    """Yield the encoder with keys, values and default as inputs: attributes of the engine have no element type."""
    tables = {}
    for part in ("keys", "values"):
        found = [(key, value) for key, value in node.attributes.items() if key.startswith(f"{part}_")]
        if len(found) != 1:
            raise UnsupportedError(
                f"node {node.name!r} (LabelEncoder) has {len(found)} attributes {part}_*; it needs one"
            )
        tables[part] = _table(*found[0])
    kind = str(tables["values"].dtype)
    defaults = [value for key, value in node.attributes.items() if key.startswith("default_")]
    default = defaults[-1] if defaults else {"float32": -0.0, "int64": -1, "object": "_Unused"}.get(kind, 0)
    constants = (tables["keys"], tables["values"], np.asarray(default, dtype=tables["values"].dtype).reshape(()))
    names = [lowering.constant(f"{node.name}.{part}", value) for part, value in zip("kvd", constants, strict=True)]
    yield replace(node, inputs=(node.inputs[0], *names), attributes={})


def _table(name: str, value: Attribute) -> Array:
    dtypes = {"floats": np.float32, "int64s": np.int64, "strings": object}
    return np.asarray(value, dtype=dtypes.get(name.partition("_")[2])).reshape(-1)


_RULES: dict[str, Rule] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Dropout": _dropout,
    "FeatureVectorizer": _feature_vectorizer,
    "LabelEncoder": _label_encoder,
}
# The operators that the rules replace: the engine need not know these names.
LOWERED = frozenset(_RULES)

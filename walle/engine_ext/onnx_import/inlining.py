"""Functions of an ONNX model, its own and those of ONNX's definitions, replaced by their bodies (docs/adr/0014)."""

from collections.abc import Collection, Iterator

import onnx
from onnx import defs, helper, inliner, shape_inference

from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.onnx_import.checks import subgraphs, title
from walle.engine_ext.onnx_import.shapes import bare


def inline(model: onnx.ModelProto, operators: Collection[str]) -> onnx.ModelProto:
    """Return the model with the bodies of all functions in place of their calls, those of ONNX's own too whose
    operators are not among `operators`.

    Raises:
        ModelError: the functions of the model cannot be inlined.
        UnsupportedError: the definition of an operator cannot; names the node.
    """
    if not model.functions and _op_types(model.graph) <= {*operators, "Constant"}:
        return model
    kept = [("", name) for name in operators]
    try:
        return inliner.inline_selected_functions(_prepared(model), kept, exclude=True, inline_schema_functions=True)
    except MemoryError:
        raise
    except Exception as error:  # the inliner's own family
        why = " ".join(str(error).split())
        if model.functions:
            raise ModelError(f"the functions of the model cannot be inlined: {why}") from error
        versions = {one.domain: one.version for one in model.opset_import}
        for index, node in _nodes(model.graph):
            schema = _schema(node, versions)
            if node.op_type not in operators and schema is not None and _is_function(schema):
                raise UnsupportedError(
                    f"{title(node, index)}: the engine does not have this operator, and onnx cannot replace it by its"
                    f" definition: {why}"
                ) from error
        return model  # operators that stay unknown are refused by name when the graph is written


def _prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that says what onnx's inliner needs and does not find by itself: defaults, and types of weights."""
    said = onnx.ModelProto()
    said.CopyFrom(model)
    versions = {one.domain: one.version for one in model.opset_import}
    # The inliner asks for the type of absent inputs too, which it finds under the name "".
    said.graph.value_info.append(helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None))
    for graph in _graphs(said.graph):
        _state_types(graph)
        for node in graph.node:
            _state_defaults(node, versions)
    inner = (node for _, node in _nodes(said.graph) for graph in subgraphs(node) for node in graph.node)
    if any((schema := _schema(node, versions)) is not None and _is_function(schema) for node in inner):
        _state_inner_types(said)
    return said


def _state_inner_types(model: onnx.ModelProto) -> None:
    """State the types of the values of subgraphs in the main graph: onnx's inliner looks for them there alone.

    A name that two subgraphs have for values of different types is left out.
    """
    try:
        inferred = shape_inference.infer_shapes(bare(model))
    except Exception:  # noqa: BLE001 -- the inliner then says which type it lacks
        return
    found: dict[str, onnx.TypeProto | None] = {}
    for graph in _graphs(inferred.graph):
        for one in (*graph.input, *graph.value_info):
            known = found.setdefault(one.name, one.type)
            if known is not None and known != one.type:
                found[one.name] = None
    stated = {one.name for one in (*model.graph.input, *model.graph.value_info)}
    for name, kind in found.items():
        if kind is not None and name not in stated:
            model.graph.value_info.add(name=name, type=kind)


def _state_types(graph: onnx.GraphProto) -> None:
    """State the types of a graph's weights, which definitions of operators may depend on."""
    stated = {one.name for one in (*graph.input, *graph.value_info)}
    for one in graph.initializer:
        if one.name not in stated:
            graph.value_info.append(helper.make_tensor_value_info(one.name, one.data_type, list(one.dims)))


def _state_defaults(node: onnx.NodeProto, versions: dict[str, int]) -> None:
    """State every default that a definition may refer to: onnx's inliner drops attributes that a node lacks."""
    schema = _schema(node, versions)
    if schema is None or not _is_function(schema):
        return
    given = {one.name for one in node.attribute}
    node.attribute.extend(
        one.default_value for name, one in schema.attributes.items() if name not in given and one.default_value.type
    )


def _schema(node: onnx.NodeProto, versions: dict[str, int]) -> defs.OpSchema | None:
    try:
        return defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except defs.SchemaError:
        return None


def _is_function(schema: defs.OpSchema) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _graphs(inner)


def _nodes(graph: onnx.GraphProto) -> Iterator[tuple[int, onnx.NodeProto]]:
    return ((index, node) for one in _graphs(graph) for index, node in enumerate(one.node))


def _op_types(graph: onnx.GraphProto) -> set[str]:
    return {node.op_type for _, node in _nodes(graph)}

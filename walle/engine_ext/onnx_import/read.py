"""Reading of ONNX models into graphs of the importer; the only module that handles protobuf messages."""

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, shape_inference

from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.onnx_import.graph import Array, Attribute, Graph, Node, TypeInfo

_MAIN = ("", "ai.onnx")


def load(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return the model of a file with its external weights, which must be in the file's own folder.

    Raises:
        ModelError: the file is not an ONNX model, or its weights are missing.
    """
    try:
        model: onnx.ModelProto = onnx.load(str(path))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # protobuf's and onnx.checker's own families
        raise ModelError(f"{path} is not a valid ONNX model: {error}") from error
    return model


def parse(data: bytes) -> onnx.ModelProto:
    """Return the model that is serialised in `data`; raises ModelError."""
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except Exception as error:  # protobuf's own family
        raise ModelError(f"these bytes are not an ONNX model: {error}") from error
    return model


def read(model: onnx.ModelProto, operators: Collection[str]) -> Graph:
    """Return the main graph with every function inlined: the model's own, and those of ONNX's definitions for
    operators that are not among `operators`, the engine's (docs/adr/0050).

    Raises:
        ModelError: the model is not sound.
        UnsupportedError: its opset is newer than the installed onnx package.
    """
    versions = {("" if one.domain in _MAIN else one.domain): one.version for one in model.opset_import}
    newest = onnx.defs.onnx_opset_version()
    if versions.get("", 0) > newest:
        raise UnsupportedError(
            f"the model imports opset {versions['']}; the newest that onnx {onnx.__version__} knows is {newest}:"
            " upgrade the package onnx"
        )
    model = _inlined(model, operators)
    # Shape inference may fail: the engine checks shapes when it plans.
    with contextlib.suppress(Exception):
        model = shape_inference.infer_shapes(_without_claims(model), data_prop=True)
    return read_graph(model.graph, versions)


def _without_claims(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with the shapes of inputs and weights only: others may be wrong, and inference would trust them."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for one in bare.graph.output:
        if one.type.HasField("tensor_type"):
            one.type.tensor_type.ClearField("shape")
    return bare


def _inlined(model: onnx.ModelProto, operators: Collection[str]) -> onnx.ModelProto:
    if not model.functions and _op_types(model.graph) <= {*operators, "Constant"}:
        return model
    try:
        model = _with_defaults(model)
        kept = [("", name) for name in operators]
        return inliner.inline_selected_functions(model, kept, exclude=True, inline_schema_functions=True)
    except Exception as error:
        if model.functions:
            raise ModelError(f"the functions of the model cannot be inlined: {error}") from error
        return model  # operators that stay unknown are refused by name when the graph is written


def _with_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write out every default that a function body may refer to: onnx's inliner drops attributes that a node lacks."""
    said = onnx.ModelProto()
    said.CopyFrom(model)
    versions = {one.domain: one.version for one in model.opset_import}
    # The inliner asks for the type of absent inputs too, which it finds under the name "".
    said.graph.value_info.append(helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None))
    for node in said.graph.node:
        if not onnx.defs.has(node.op_type, node.domain):
            continue
        schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
        if not (schema.has_function or schema.has_context_dependent_function):  # type: ignore[attr-defined]
            continue
        given = {one.name for one in node.attribute}
        node.attribute.extend(
            one.default_value for name, one in schema.attributes.items() if name not in given and one.default_value.type
        )
    return said


def _op_types(graph: onnx.GraphProto) -> set[str]:
    found = {node.op_type for node in graph.node}
    for node in graph.node:
        for one in node.attribute:
            if one.type == onnx.AttributeProto.GRAPH:
                found |= _op_types(one.g)
    return found


def read_graph(proto: onnx.GraphProto, versions: Mapping[str, int], *, inner: bool = False) -> Graph:
    """Return one graph; `versions` gives the opset of each domain.

    The shapes that an inner graph states are left out: those of a loop's body may be true for its first turn only.
    """
    constants = {one.name: _array(one, one.name) for one in proto.initializer}
    for sparse in proto.sparse_initializer:
        constants[sparse.values.name] = _dense(sparse)
    inputs = {one.name: type_info(one.type) for one in proto.input if one.name not in constants}
    types = {one.name: type_info(one.type) for one in (*proto.value_info, *proto.output)}
    if inner:
        inputs = {name: replace(info, shape=None) for name, info in inputs.items()}
        types = {name: replace(info, shape=None) for name, info in types.items()}
    return Graph(
        name=proto.name,
        nodes=tuple(read_nodes(proto.node, versions)),
        inputs=inputs,
        outputs=tuple(one.name for one in proto.output),
        constants=constants,
        types=types,
    )


def read_nodes(protos: Iterable[onnx.NodeProto], versions: Mapping[str, int]) -> Iterable[Node]:
    """Yield nodes, each with a name for error messages."""
    for index, proto in enumerate(protos):
        domain = "" if proto.domain in _MAIN else proto.domain
        outputs = tuple(proto.output)
        yield Node(
            op=proto.op_type,
            inputs=tuple(proto.input),
            outputs=outputs,
            attributes={one.name: attribute(one, versions) for one in proto.attribute if not one.ref_attr_name},
            name=proto.name or next((name for name in outputs if name), f"node {index}"),
            domain=domain,
            version=versions.get(domain, 0),
        )


def attribute(proto: onnx.AttributeProto, versions: Mapping[str, int]) -> Attribute:
    """Return an attribute as a Python value."""
    kinds = onnx.AttributeProto
    if proto.type == kinds.GRAPH:
        return read_graph(proto.g, versions, inner=True)
    if proto.type == kinds.TENSOR:
        return _array(proto.t, proto.name)
    if proto.type == kinds.SPARSE_TENSOR:
        return _dense(proto.sparse_tensor)
    if proto.type == kinds.STRING:
        return _text(proto.s)
    if proto.type == kinds.STRINGS:
        return [_text(one) for one in proto.strings]
    if proto.type == kinds.INT:
        return int(proto.i)
    if proto.type == kinds.FLOAT:
        return float(proto.f)
    if proto.type == kinds.INTS:
        return list(proto.ints)
    if proto.type == kinds.FLOATS:
        return list(proto.floats)
    if proto.type == kinds.TYPE_PROTO:
        return ""  # of Optional and SequenceEmpty, whose outputs need no type here
    raise UnsupportedError(f"attribute {proto.name!r} has type {kinds.AttributeType.Name(proto.type)}")


def type_info(proto: onnx.TypeProto) -> TypeInfo:
    """Return the type of a TypeProto."""
    which = proto.WhichOneof("value")
    if which == "sequence_type":
        return TypeInfo(kind="sequence", item=type_info(proto.sequence_type.elem_type))
    if which == "optional_type":
        return TypeInfo(kind="optional", item=type_info(proto.optional_type.elem_type))
    if which != "tensor_type":
        return TypeInfo(kind=which or "tensor")
    tensor = proto.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(one.dim_value if one.HasField("dim_value") else None for one in tensor.shape.dim)
    return TypeInfo(dtype=dtype_name(tensor.elem_type), shape=shape)


def dtype_name(elem_type: int) -> str | None:
    """Return NumPy's (or ml_dtypes') name of TensorProto's element type, "string" for text; None for none."""
    if elem_type == onnx.TensorProto.UNDEFINED:
        return None
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    return str(helper.tensor_dtype_to_np_dtype(elem_type))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UnsupportedError(f"an attribute holds text that is not UTF-8: {data[:20]!r}") from error


def _array(proto: onnx.TensorProto, name: str) -> Array:
    try:
        array: Array = numpy_helper.to_array(proto)
    except Exception as error:  # numpy's and protobuf's own families
        raise ModelError(f"tensor {name!r} cannot be read: {error}") from error
    return array


def _dense(proto: onnx.SparseTensorProto) -> Array:
    values, indices = _array(proto.values, proto.values.name), _array(proto.indices, proto.values.name)
    dense = np.zeros(tuple(proto.dims), dtype=values.dtype)
    flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dense.shape)
    dense.reshape(-1)[flat] = values
    return dense

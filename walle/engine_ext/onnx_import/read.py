"""Reading of ONNX models into graphs of the importer."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod

import numpy as np
import onnx

from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.onnx_import.checks import MAIN, node_name, title
from walle.engine_ext.onnx_import.graph import Array, Attribute, Graph, Node, TypeInfo
from walle.engine_ext.onnx_import.weights import Weights, dtype_name
from walle.errors import EngineError

_MAX_DENSE_BYTES = 1 << 30


def read(model: onnx.ModelProto, weights: Weights, versions: Mapping[str, int]) -> Graph:
    """Return the main graph of a model without functions.

    Raises:
        ModelError: the model is not sound.
        UnsupportedError: an attribute or a type is not supported.
    """
    return _Reader(weights, versions).graph(model.graph)


def check_versions(versions: Mapping[str, int]) -> None:
    """Raise UnsupportedError where a version is newer than the installed package onnx."""
    newest = onnx.defs.onnx_opset_version()
    if versions.get("", 0) > newest:
        raise UnsupportedError(
            f"the model imports opset {versions['']}; the newest that onnx {onnx.__version__} knows is {newest}:"
            " upgrade the package onnx"
        )


class _Reader:
    """Reads graphs; `versions` gives the opset of each domain."""

    def __init__(self, weights: Weights, versions: Mapping[str, int]) -> None:
        self._weights = weights
        self._versions = versions

    def graph(self, proto: onnx.GraphProto, *, inner: bool = False) -> Graph:
        """Return one graph.

        The shapes that an inner graph states are left out: those of a loop's body may be true for its first turn only.
        """
        constants = {one.name: self._weights.array(one, one.name) for one in proto.initializer}
        for sparse in proto.sparse_initializer:
            constants[sparse.values.name] = self._dense(sparse)
        inputs = {one.name: type_info(one.type, one.name) for one in proto.input if one.name not in constants}
        types = {one.name: type_info(one.type, one.name) for one in (*proto.value_info, *proto.output)}
        if inner:
            inputs = {name: replace(info, shape=None) for name, info in inputs.items()}
            types = {name: replace(info, shape=None) for name, info in types.items()}
        return Graph(
            name=proto.name,
            nodes=tuple(self._nodes(proto.node)),
            inputs=inputs,
            outputs=tuple(one.name for one in proto.output),
            constants=constants,
            types=types,
        )

    def _nodes(self, protos: Iterable[onnx.NodeProto]) -> Iterator[Node]:
        """Yield nodes, each with a name for error messages."""
        for index, proto in enumerate(protos):
            domain = "" if proto.domain in MAIN else proto.domain
            outputs = tuple(proto.output)
            try:
                attributes = {one.name: self._attribute(one) for one in proto.attribute if not one.ref_attr_name}
            except EngineError as error:
                raise type(error)(f"{title(proto, index)}: {error}") from error
            yield Node(
                op=proto.op_type,
                inputs=tuple(proto.input),
                outputs=outputs,
                attributes=attributes,
                name=node_name(proto, index),
                domain=domain,
                version=self._versions.get(domain, 0),
            )

    def _attribute(self, proto: onnx.AttributeProto) -> Attribute:
        """Return an attribute as a Python value."""
        kinds = onnx.AttributeProto
        if proto.type == kinds.GRAPH:
            return self.graph(proto.g, inner=True)
        if proto.type == kinds.TENSOR:
            return self._weights.array(proto.t, proto.name)
        if proto.type == kinds.SPARSE_TENSOR:
            return self._dense(proto.sparse_tensor)
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
            return ""  # Optional and SequenceEmpty have it; their outputs need no type here
        known = proto.type in kinds.AttributeType.values()
        raise UnsupportedError(
            f"attribute {proto.name!r} has type {kinds.AttributeType.Name(proto.type) if known else proto.type}"
        )

    def _dense(self, proto: onnx.SparseTensorProto) -> Array:
        """Return a sparse tensor as a dense one; its indices are linear, or one row of coordinates for each value."""
        name = proto.values.name
        values, indices = self._weights.array(proto.values, name), self._weights.array(proto.indices, name)
        dims = tuple(proto.dims)
        where = f"sparse tensor {name!r}"
        if any(dim < 0 for dim in dims) or prod(dims) * values.itemsize > _MAX_DENSE_BYTES:
            raise ModelError(f"{where} has the dimensions {list(dims)}; the largest that is converted has 1 GiB")
        expected = ((values.size,), (values.size, len(dims)))
        if values.ndim != 1 or indices.dtype != np.int64 or indices.shape not in expected:
            raise ModelError(
                f"{where} has indices of {indices.dtype} {list(indices.shape)} for values {list(values.shape)};"
                " they must be int64, one or a row of coordinates for each value"
            )
        bounds = np.array(dims, dtype=np.int64) if indices.ndim == 2 else np.int64(prod(dims))
        if ((indices < 0) | (indices >= bounds)).any():
            raise ModelError(f"{where} has an index outside of its dimensions {list(dims)}")
        flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dims)
        dense = np.zeros(dims, dtype=values.dtype)
        dense.reshape(-1)[flat] = values
        return dense


def type_info(proto: onnx.TypeProto, name: str) -> TypeInfo:
    """Return the type of the value `name`."""
    which = proto.WhichOneof("value")
    if which == "sequence_type":
        return TypeInfo(kind="sequence", item=type_info(proto.sequence_type.elem_type, name))
    if which == "optional_type":
        return TypeInfo(kind="optional", item=type_info(proto.optional_type.elem_type, name))
    if which != "tensor_type":
        return TypeInfo(kind=which or "tensor")
    tensor = proto.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(one.dim_value if one.HasField("dim_value") else None for one in tensor.shape.dim)
    return TypeInfo(dtype=dtype_name(tensor.elem_type, f"value {name!r}"), shape=shape)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UnsupportedError(f"an attribute holds text that is not UTF-8: {data[:20]!r}") from error

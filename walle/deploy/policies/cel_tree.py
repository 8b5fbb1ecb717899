"""Syntax tree of a checked CEL expression, read from the library's serialized form.

The form is a `cel.expr.CheckedExpr` of the CEL specification; only the parts that rules may have are described here.
"""

import dataclasses
import functools
from typing import Any

from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

type Literal = bool | int | float | str

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "double": _FIELD.TYPE_DOUBLE,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}
# Message → fields: name, number, type, whether it is repeated. Source: cel/expr/{checked,syntax}.proto.
_MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "Any": (("value", 2, "bytes", False),),
    "CheckedExpr": (("expr", 4, "Expr", False), ("source_info", 5, "SourceInfo", False)),
    "SourceInfo": (("positions", 4, "Position", True),),
    "Position": (("key", 1, "int64", False), ("value", 2, "int32", False)),
    "Expr": (
        ("id", 2, "int64", False),
        ("const_expr", 3, "Constant", False),
        ("ident_expr", 4, "Ident", False),
        ("call_expr", 6, "Call", False),
        ("list_expr", 7, "CreateList", False),
    ),
    "Constant": (
        ("bool_value", 2, "bool", False),
        ("int64_value", 3, "int64", False),
        ("double_value", 5, "double", False),
        ("string_value", 6, "string", False),
    ),
    "Ident": (("name", 1, "string", False),),
    "Call": (("target", 1, "Expr", False), ("function", 2, "string", False), ("args", 3, "Expr", True)),
    "CreateList": (("elements", 1, "Expr", True),),
}


@dataclasses.dataclass(frozen=True)
class Node:
    """Node of the tree. `kind`: literal, name, call, list, or other, for what is not described here.

    `value` is the literal, the name, or the function's; a method's target is the first of `parts`. `offset` is the
    node's place in the text, in characters.
    """

    kind: str
    value: Literal
    parts: tuple["Node", ...]
    offset: int


@functools.cache
def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="walle_cel.proto", package="walle.cel", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        # A constant of 0 or "" must be told from an absent one.
        choice = described.oneof_decl.add(name="kind") if message in ("Constant", "Expr") else None
        for name, number, kind, repeated in fields:
            field = described.field.add(name=name, number=number)
            field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".walle.cel.{kind}"
            if choice is not None and name != "id":
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"walle.cel.{name}"))
        for name in ("Any", "CheckedExpr")
    }


def tree_of(expression: cel.Expression) -> Node:
    """Return the tree of an expression."""
    classes = _classes()
    checked = classes["CheckedExpr"].FromString(classes["Any"].FromString(expression.serialize()).value)
    offsets = {one.key: one.value for one in checked.source_info.positions}
    return _node(checked.expr, offsets)


def _node(expr: Any, offsets: dict[int, int]) -> Node:
    offset = offsets.get(expr.id, 0)
    match expr.WhichOneof("kind"):
        case "const_expr" if (kind := expr.const_expr.WhichOneof("kind")) is not None:
            return Node("literal", getattr(expr.const_expr, kind), (), offset)
        case "ident_expr":
            return Node("name", expr.ident_expr.name, (), offset)
        case "call_expr":
            call = expr.call_expr
            targets = [call.target] if call.HasField("target") else []
            parts = tuple(_node(part, offsets) for part in (*targets, *call.args))
            return Node("call", call.function, parts, offset)
        case "list_expr":
            return Node("list", "", tuple(_node(part, offsets) for part in expr.list_expr.elements), offset)
        case _:
            return Node("other", "", (), offset)

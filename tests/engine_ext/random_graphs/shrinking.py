"""Shrinking of a failing graph: fewer outputs, nodes and elements, as long as it still fails."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from tests.engine_ext.random_graphs.maker import Array


@dataclass(frozen=True, slots=True)
class Sample:
    """A graph and the arrays for its inputs."""

    model: onnx.ModelProto
    feeds: Mapping[str, Array]


def shrink(sample: Sample, fails: Callable[[Sample], bool], *, tries: int = 400) -> Sample:
    """Return the smallest sample found that still fails, after at most `tries` attempts."""
    improved = True
    while improved and tries > 0:
        improved = False
        for smaller in _smaller(sample):
            tries -= 1
            if tries < 0:
                break
            if fails(smaller):
                sample, improved = smaller, True
                break
    return sample


def _smaller(sample: Sample) -> Iterator[Sample]:
    yield from _with_one_output(sample)
    yield from _cut_in_front(sample)
    yield from _bypassed(sample)
    yield from _narrower(sample)


def _with_one_output(sample: Sample) -> Iterator[Sample]:
    """Yield the graph up to each of its values, the shortest one first, where that removes a node or an output."""
    graph = sample.model.graph
    types = _types(sample.model)
    names = [name for node in graph.node for name in node.output if name]
    for name in names:
        if name in types:
            made = _with(sample, graph.node, [types[name]])
            if _size(made) < _size(sample):
                yield made


def _cut_in_front(sample: Sample) -> Iterator[Sample]:
    """Yield the graph with the result of a node as an input, the last ones first."""
    graph, types = sample.model.graph, _types(sample.model)
    inner = [name for node in graph.node for name in node.output if name in types]
    values = _values(sample, inner)
    outputs = {one.name for one in graph.output}
    for node in reversed(graph.node):
        if node.op_type == "Constant" or outputs & set(node.output) or any(one not in values for one in node.output):
            continue
        kept = [one for one in graph.node if one is not node]
        extra = {name: values[name] for name in node.output}
        yield _with(sample, kept, list(graph.output), extra)


def _bypassed(sample: Sample) -> Iterator[Sample]:
    """Yield the graph without a node whose result has the type and shape of its first operand."""
    graph, types = sample.model.graph, _types(sample.model)
    for index, node in enumerate(graph.node):
        if not node.input or node.input[0] not in types or node.output[0] not in types:
            continue
        if types[node.input[0]].type != types[node.output[0]].type:
            continue
        replaced = []
        for at, other in enumerate(graph.node):
            if at != index:
                copy = onnx.NodeProto()
                copy.CopyFrom(other)
                copy.input[:] = [node.input[0] if name == node.output[0] else name for name in other.input]
                replaced.append(copy)
        if node.output[0] not in {one.name for one in graph.output}:
            yield _with(sample, replaced, list(graph.output))


def _narrower(sample: Sample) -> Iterator[Sample]:
    """Yield the graph with one axis of an input halved, or cut to one element; shapes of results are left open."""
    for name, array in sample.feeds.items():
        for axis, size in enumerate(array.shape):
            for less in dict.fromkeys((1, size // 2)):
                if 0 < less < size:
                    feeds = {**sample.feeds, name: np.ascontiguousarray(np.take(array, range(less), axis=axis))}
                    yield _with(Sample(sample.model, feeds), sample.model.graph.node, list(sample.model.graph.output))


def _size(sample: Sample) -> tuple[int, int]:
    return len(sample.model.graph.node), len(sample.model.graph.output)


def _types(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    try:
        graph = shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # onnx has several families of errors; the shapes that the model states remain
        graph = model.graph
    return {one.name: one for one in (*graph.input, *graph.value_info, *graph.output)}


def _values(sample: Sample, names: list[str]) -> dict[str, Array]:
    """Return the values of a graph by the reference; none where it refuses them."""
    from tests.engine_ext.random_graphs.reference import NoReference, Reference

    model = onnx.ModelProto()
    model.CopyFrom(sample.model)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    types = _types(sample.model)
    try:
        found = Reference(model).run(sample.feeds)
    except NoReference:
        return {}
    dtypes = {name: helper.tensor_dtype_to_np_dtype(types[name].type.tensor_type.elem_type) for name in names}
    return {name: np.ascontiguousarray(value.astype(dtypes[name])) for name, value in found.items()}


def _with(
    sample: Sample,
    nodes: Sequence[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    extra: Mapping[str, Array] | None = None,
) -> Sample:
    """Return a sample of the nodes that these outputs need; `extra` are new inputs."""
    needed = {one.name for one in outputs}
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if needed & set(node.output):
            kept.append(node)
            needed.update(_reads(node))
    feeds = {name: array for name, array in {**sample.feeds, **(extra or {})}.items() if name in needed}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    weights = [one for one in sample.model.graph.initializer if one.name in needed and one.name not in feeds]
    results = [onnx.ValueInfoProto(name=one.name) for one in outputs]
    graph = helper.make_graph(kept[::-1], "shrunk", infos, results, weights)
    for result, one in zip(graph.output, outputs, strict=True):
        result.type.tensor_type.elem_type = one.type.tensor_type.elem_type
    model = helper.make_model(graph, ir_version=sample.model.ir_version, opset_imports=sample.model.opset_import)
    return Sample(model, feeds)


def _reads(node: onnx.NodeProto) -> set[str]:
    found = set(node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            for inner in attribute.g.node:
                found |= _reads(inner)
            found |= {one.name for one in attribute.g.output}
    return found


def reproduction(sample: Sample, what: str, file: str) -> str:
    """Return a Python program that shows the failure of a model that is stored in this file beside it."""
    lines = [f'"""{what}"""', "import numpy as np", "import onnx", "from walle.onnx_backend import Backend", ""]
    lines.append("feeds = {")
    for name, array in sample.feeds.items():
        kind = "float32" if array.dtype.name == "bfloat16" else array.dtype.name
        values = array.astype(kind).tolist()
        made = f"np.array({values}, dtype={kind!r}).reshape({array.shape})"
        if kind != array.dtype.name:
            made += ".astype(__import__('ml_dtypes').bfloat16)"
        lines.append(f"    {name!r}: {made},")
    lines += ["}", f"model = onnx.load({file!r})", "print(onnx.printer.to_text(model)[:4000])"]
    lines += ["print(Backend.run_model(model, feeds))", ""]
    return "\n".join(lines)


def as_text(sample: Sample) -> str:
    """Return the nodes of a sample as text, one a line."""
    constants = {one.name: numpy_helper.to_array(one) for one in sample.model.graph.initializer}
    lines = []
    for node in sample.model.graph.node:
        inputs = ", ".join(
            f"{name}{list(constants[name].shape)}" if name in constants
            else f"{name}:{list(sample.feeds[name].shape)}" if name in sample.feeds
            else name or "-"
            for name in node.input
        )  # fmt: skip
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute if one.type not in {4, 5}}
        lines.append(f"{', '.join(node.output)} = {node.op_type}({inputs}) {attributes or ''}".rstrip())
    return "\n".join(lines)

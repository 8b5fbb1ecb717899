"""One conversion from ONNX to `.walle`, in the process that runs it: from an open file to an open file."""

import tempfile
from collections.abc import Callable, Collection, Mapping

import onnx
from onnx import helper

from walle.engine_ext.conversion.job import FUNCTIONS, READING, SHAPES, WRITING, ConvertLimits, Job
from walle.engine_ext.errors import ModelError, UnsupportedError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.onnx_import import checks, inlining, lowering, read, shapes, versions, write
from walle.engine_ext.onnx_import.weights import Weights
from walle.engine_ext.operators import operators


def run(
    job: Job,
    source: int,
    out: int,
    *,
    report: Callable[[str, str, int], object],
    on_external: Callable[[int], object] = lambda _: None,
) -> None:
    """Convert the model in the file `source` and write it to `out`; both are descriptors.

    `report` is called with the name of each stage as it begins, with the last node of the graph and the number
    of its nodes; `on_external` with the size of the files that have the model's external data.

    Raises:
        EngineError: the model is not valid or has what the engine does not have; names the node.
    """
    report(READING, "", 0)
    weights = Weights(source, job.folder)
    model = weights.read_model()
    if job.nodes is not None:
        del model.graph.node[job.nodes :]
    count = len(model.graph.node)
    last = checks.title(model.graph.node[-1], count - 1) if count else ""
    opsets = checks.opsets(model)
    read.check_versions(opsets)
    checks.check_model(model, weights, job.limits)
    on_external(weights.external_bytes())
    known = {one.name for one in operators()}
    report(FUNCTIONS, last, count)
    model = inlining.inline(model, known | lowering.LOWERED)
    report(SHAPES, last, count)
    inferred = shapes.infer(model, job.limits.value_bytes)
    if job.nodes is None:
        report(WRITING, "", count)
        try:
            builder = _built(inferred.model, weights, opsets, known)
        except (ModelError, UnsupportedError) as error:
            if not inferred.problem:
                raise
            raise type(error)(f"{error} (onnx could not infer the model's shapes: {inferred.problem})") from error
        builder.write_to(out, on_written=weights.release)


def _built(model: onnx.ModelProto, weights: Weights, opsets: Mapping[str, int], known: Collection[str]) -> GraphBuilder:
    return write.builder_of(lowering.lower(versions.renew(read.read(model, weights, opsets))), known)


def warm_up() -> None:
    """Convert a small model, so that children need not fill the caches of Python, onnx and the engine again."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out:
        x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
        nodes = [helper.make_node("Clip", ["x", "low"], ["h"]), helper.make_node("LogSoftmax", ["h"], ["y"], axis=0)]
        low = helper.make_tensor("low", onnx.TensorProto.FLOAT, [], [0.0])
        imports = [helper.make_opsetid("", 13)]
        model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [low]), opset_imports=imports)
        source.write(model.SerializeToString())
        source.flush()
        one = Job(folder="", limits=ConvertLimits())
        run(one, source.fileno(), out.fileno(), report=lambda *_: None)

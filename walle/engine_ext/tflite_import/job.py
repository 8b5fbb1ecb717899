"""One conversion from TFLite to `.walle`, in the process that runs it: from an open file to an open file."""

import mmap
import os
from collections.abc import Callable

from walle.engine_ext.conversion.job import READING, WRITING, Job
from walle.engine_ext.errors import ModelError
from walle.engine_ext.model import GraphBuilder
from walle.engine_ext.tflite_import.graph import TfliteGraph
from walle.engine_ext.tflite_import.read import read_tflite


def run(
    job: Job,
    source: int,
    out: int,
    *,
    report: Callable[[str, str, int], object],
    on_external: Callable[[int], object],  # noqa: ARG001 -- a TFLite model is one file
) -> None:
    """Convert the model in the file `source` and write it to `out`; both are descriptors.

    Input and outputs have the names of their tensors. `report` is called with the name of each stage as it begins, ""
    for the node, and the number of operators, 0 before it is known.

    Raises:
        EngineError: the model is not valid or has what is not supported; names the operator.
    """
    report(READING, "", 0)
    if os.fstat(source).st_size == 0:
        raise ModelError("is an empty file")
    # Not closed: constants refer to it until the process ends.
    data = memoryview(mmap.mmap(source, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
    model = read_tflite(data, value_bytes=job.limits.value_bytes, operators=job.limits.nodes)
    names = [name for _, name in sorted(model.names.items())]
    if not all(names) or len(set(names)) != len(names):
        raise ModelError("its input and outputs do not have a name each")
    report(WRITING, "", len(model.operators))
    builder = GraphBuilder("tflite")
    graph = TfliteGraph(builder, model, name=model.names[model.source])
    for number in model.results:
        builder.output(model.names[number], graph.values[number])
    builder.write_to(out)


def warm_up() -> None:
    """Do nothing: what a conversion needs is loaded with this module."""

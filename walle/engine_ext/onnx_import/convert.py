"""Conversion of a model from ONNX to `.walle`."""

from pathlib import Path

import onnx

from walle.durable_file import write_file
from walle.engine_ext.onnx_import import lowering, read, versions, write
from walle.engine_ext.operators import operators


def convert(onnx_path: str | Path, out_path: str | Path) -> None:
    """Write the `.walle` file of an ONNX model; a reader of `out_path` sees the old file or the new one, whole.

    Raises:
        ModelError: the file is not a valid ONNX model.
        UnsupportedError: it has an operator, an attribute, a type or an opset that the engine does not have; the
            message names the node.
    """
    write_file(Path(out_path), convert_bytes(read.load(onnx_path)), mode=0o644)


def convert_bytes(model: onnx.ModelProto | bytes) -> bytes:
    """Return the `.walle` file of an ONNX model in memory, its external weights loaded. Raises as `convert` does.

    Nothing is folded, fused or removed: a plan does that (docs/adr/0202).
    """
    proto = read.parse(model) if isinstance(model, bytes) else model
    known = {one.name for one in operators()}
    graph = read.read(proto, known | lowering.LOWERED)
    return write.write(lowering.lower(versions.renew(graph)), known)

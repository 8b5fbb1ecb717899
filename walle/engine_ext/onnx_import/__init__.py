"""ONNX models as `.walle` models, on the cloud side: `convert(onnx_path, out_path)`.

read → inline functions → newest versions → the engine's operators → passes → write. Needs the package `onnx`.
"""

from walle.engine_ext.onnx_import.convert import convert, convert_bytes
from walle.engine_ext.onnx_import.read import load

__all__ = ["convert", "convert_bytes", "load"]

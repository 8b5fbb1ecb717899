"""ONNX models as `.walle` models, on the cloud side: `convert(onnx_path, out_path)`. Needs the package `onnx`.

In a process apart: map the file → check → inline functions → infer shapes → newest versions → the engine's operators →
write.
"""

from walle.engine_ext.onnx_import.convert import convert, convert_bytes
from walle.engine_ext.onnx_import.limits import ConvertLimits

__all__ = ["ConvertLimits", "convert", "convert_bytes"]

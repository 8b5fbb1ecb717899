"""Conversion of models to `.walle`, on the cloud side: `convert(source_path, out_path)`.

In a process apart: map the file → the format's importer (`onnx_import`, `tflite_import`) → write.
"""

from walle.engine_ext.conversion.convert import convert, convert_bytes
from walle.engine_ext.conversion.job import ConvertLimits

__all__ = ["ConvertLimits", "convert", "convert_bytes"]

"""Networks quantised to int8 by ONNX Runtime, for `--quantised`.

They are in QDQ form, as `quantize_static` writes it: uint8 activations with one scale each, calibrated on seeded
inputs, and int8 weights with a scale for each output channel.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

_CALIBRATIONS = 4


def quantised(model: Path, entry: dict[str, Any]) -> Path:
    """Return the path of the quantised model, written beside the model unless it exists; `entry` is the manifest's."""
    path = model.with_suffix(".int8.onnx")
    if path.exists():
        return path
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Seeded(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.seeds = iter(range(_CALIBRATIONS))

        def get_next(self) -> dict[str, Any] | None:
            seed = next(self.seeds, None)
            if seed is None:
                return None
            random = np.random.default_rng(seed)
            return {
                name: random.integers(0, 2, shape)
                if dtype == "int64"
                else random.standard_normal(shape).astype(np.float32)
                for name, (shape, dtype) in entry["inputs"].items()
            }

    with TemporaryDirectory(dir=model.parent) as folder:
        prepared, made = Path(folder, "prepared.onnx"), Path(folder, "made.onnx")
        quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared), str(made), Seeded(), per_channel=True,
            activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
        )  # fmt: skip
        made.replace(path)
    return path

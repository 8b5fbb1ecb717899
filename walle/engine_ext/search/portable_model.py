"""Portable form of a performance model: bytes that sessions of any process read (src/search/performance_model.cpp).

All numbers are little-endian. After the first line: uint32 numbers of features, of layers, and of outputs of each
layer; the least and the greatest k, c, im, s and f of the samples (float64); each primitive's name after its length in
a byte; mean and factor of the features (float64); coefficients [feature][primitive] and intercepts of the linear part
(float32); of each layer the steps of its columns (float32), its int8 weights [row][column] as multiples of them, and
its biases (float32).
"""

import struct

from walle.engine_ext import np
from walle.engine_ext.np.likes import ArrayLike
from walle.engine_ext.search.model_file import quantised
from walle.engine_ext.search.performance_model import PerformanceModel
from walle.engine_ext.search.samples import checked_layers
from walle.errors import ConfigError

_MAGIC = b"walle performance model 1\n"


def portable(model: PerformanceModel, layers: ArrayLike) -> bytes:
    """Return the model, for layers within the range of these samples, (n, 5).

    Raises:
        ConfigError: the model has no names of primitives, a primitive without samples, or raw features.
    """
    one, names = model.predictor, [name.encode() for name in model.primitives]
    if one.kind != "physical" or not names or bool(np.any(np.isnan(one.intercepts))):
        raise ConfigError("only a model of physical features with samples of each named primitive is portable")
    samples = checked_layers(layers)
    sizes = [one.mlp.sizes[0], len(one.mlp.weights), *one.mlp.sizes[1:]]
    parts = [_MAGIC, struct.pack(f"<{len(sizes)}I", *sizes)]
    parts += [_float64(samples.min(axis=0)), _float64(samples.max(axis=0))]
    parts += [bytes([len(name)]) + name for name in names]
    parts += [_float64(one.mean), _float64(one.factor), _float32(one.coefficients), _float32(one.intercepts)]
    for weight, bias in zip(one.mlp.weights, one.mlp.biases, strict=True):
        parts += [quantised(weight), _float32(bias)]
    return b"".join(parts)


def _float32(array: np.ndarray) -> bytes:
    return bytes(array.astype("float32").tobytes())


def _float64(array: np.ndarray) -> bytes:
    return bytes(array.astype("float64").tobytes())

"""Features of a convolution layer, inputs of the performance model: physical ones, or the paper's five numbers.

Physical features are logarithms of the five numbers, of FLOPs and of bytes, the parts of vector tiles and Winograd
units that a layer fills, and flags of the kernel sizes and strides for which primitives exist. The output is
ceil(im / s) pixels high and wide: padding is "same". The engine computes them (src/search/layer_features.h), because
sessions plan with them.
"""

from walle.engine_ext import _core, np

KINDS = ("physical", "raw")

NAMES = {"raw": ("k", "c", "im", "s", "f"), "physical": tuple(_core.layer_feature_names())}

FLOPS = NAMES["physical"].index("log flops")


def features_of(layers: np.ndarray, kind: str) -> np.ndarray:
    """Return the features (`NAMES[kind]`) of checked layers: float64 of shape (n, features)."""
    return layers if kind == "raw" else _core.layer_features(layers)

"""Features of a convolution layer, inputs of the performance model: physical ones, or the paper's five numbers.

Physical features are logarithms of the five numbers, of FLOPs and of bytes, the parts of vector tiles and Winograd
units that a layer fills, and flags of the kernel sizes and strides for which primitives exist. The output is
ceil(im / s) pixels high and wide: padding is "same".
"""

from walle.engine_ext import np

KINDS = ("physical", "raw")

_BASE = ("k", "c", "im", "s", "f", "out")
# Powers of k, c, im, s, f and out whose product each is.
_PRODUCTS = {
    "flops": (1, 1, 0, 0, 2, 2),
    "input elements": (0, 1, 2, 0, 0, 0),
    "weight elements": (1, 1, 0, 0, 2, 0),
    "output elements": (1, 0, 0, 0, 0, 2),
    "im2col elements": (0, 1, 0, 0, 2, 2),
    "output pixels": (0, 0, 0, 0, 0, 2),
    "reduction": (0, 1, 0, 0, 2, 0),
}
# Column of the base, and a tile: the part of whole tiles that the column's number fills.
_TILES = [(0, 4), (0, 8), (0, 16), (0, 32), (1, 4), (1, 8), (1, 16), (5, 2), (5, 4), (5, 6), (5, 8), (5, 16), (2, 8)]
# Column of the base, and a value: 1 where they are equal.
_FLAGS = [(4, 1.0), (4, 3.0), (4, 5.0), (3, 1.0), (3, 2.0)]

NAMES = {
    "raw": _BASE[:5],
    "physical": (
        *(f"log {name}" for name in (*_BASE, *_PRODUCTS, "bytes")),
        *(f"log part of {tile}s filled by {_BASE[column]}" for column, tile in _TILES),
        *(f"{_BASE[column]} is {value:g}" for column, value in _FLAGS),
    ),
}

FLOPS = NAMES["physical"].index("log flops")

_POWERS = np.asarray([list(powers) for powers in _PRODUCTS.values()], "float64").T
_TILED = np.asarray([column for column, _ in _TILES], "int64")
_TILE_SIZES = np.asarray([tile for _, tile in _TILES], "float64")
_FLAGGED = np.asarray([column for column, _ in _FLAGS], "int64")
_FLAG_VALUES = np.asarray([value for _, value in _FLAGS], "float64")


def features_of(layers: np.ndarray, kind: str) -> np.ndarray:
    """Return the features (`NAMES[kind]`) of checked layers: float64 of shape (n, features)."""
    if kind == "raw":
        return layers
    out = np.ceil(layers[:, 2:3] / layers[:, 3:4])
    base = np.concatenate((layers, out), axis=1)
    logs = np.log(base)
    products = logs @ _POWERS
    moved = np.log(np.sum(np.exp(products[:, 1:4]), axis=1, keepdims=True))
    tiled = np.take(base, _TILED, axis=1)
    filled = np.log(tiled / (np.ceil(tiled / _TILE_SIZES) * _TILE_SIZES))
    flags = np.equal(np.take(base, _FLAGGED, axis=1), _FLAG_VALUES).astype("float64")
    return np.concatenate((logs, products, moved, filled, flags), axis=1)

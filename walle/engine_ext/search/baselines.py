"""Baselines of the performance model: a line in logarithms (the paper's "Lin", §5.2), and boosted trees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from walle.engine_ext import np
from walle.engine_ext.np.likes import ArrayLike
from walle.engine_ext.search.features import features_of
from walle.engine_ext.search.ridge import ridge
from walle.engine_ext.search.samples import checked_layers, checked_samples
from walle.errors import ConfigError

_BINS = 64
_STRENGTH = 1e-6  # ridge regression that is nearly least squares, and has a solution for constant columns


@dataclass(frozen=True, slots=True)
class LinearModel:
    """Least squares of each primitive's log times on the logarithms of k, c, im, s and f."""

    coefficients: np.ndarray
    intercepts: np.ndarray

    @classmethod
    def fit(cls, layers: ArrayLike, times: ArrayLike, *, seed: int = 0) -> Self:
        """Return the line of these samples; arguments and errors are those of `PerformanceModel.fit`."""
        del seed  # least squares has no random part
        samples = checked_samples(layers, times)
        return cls(*ridge(np.log(samples.layers), samples.log_times, samples.defined, (_STRENGTH,)))

    def predict(self, layers: ArrayLike) -> np.ndarray:
        """Return microseconds as `PerformanceModel.predict` does, in float64."""
        return np.exp(np.log(checked_layers(layers)) @ self.coefficients + self.intercepts)


@dataclass(frozen=True, slots=True)
class _Tree:
    """Tree that asks the same question at all nodes of a level: is the binned feature above the bin?"""

    features: list[int]
    bins: list[int]
    values: np.ndarray

    def leaves(self, binned: np.ndarray) -> np.ndarray:
        """Return the index of the leaf of each row of (n, features)."""
        leaf = np.zeros((binned.shape[0],), "int64")
        for feature, limit in zip(self.features, self.bins, strict=True):
            leaf = leaf * 2 + (binned[:, feature] > limit)
        return leaf


@dataclass(frozen=True, slots=True)
class TreeModel:
    """Gradient boosting (Friedman 2001) of trees on the physical features, for the log times of each primitive.

    A tree is symmetric, as CatBoost's: `depth` questions, 2 ** depth leaves.
    """

    edges: list[np.ndarray]
    constants: list[float]
    trees: list[list[_Tree]]

    @classmethod
    def fit(
        cls,
        layers: ArrayLike,
        times: ArrayLike,
        *,
        seed: int,
        rounds: int = 200,
        depth: int = 6,
        learning_rate: float = 0.15,
    ) -> Self:
        """Return the trees of these samples; arguments and errors are those of `PerformanceModel.fit`.

        Each tree chooses from a third of the features, drawn by `seed`.
        """
        if rounds < 1 or not 1 <= depth <= 12:
            raise ConfigError(f"rounds={rounds!r}, depth={depth!r}; give at least 1 round and a depth from 1 to 12")
        samples = checked_samples(layers, times)
        features = features_of(samples.layers, "physical")
        edges = [_edges(features[:, column]) for column in range(features.shape[1])]
        binned = _binned(features, edges)
        rng = np.random.default_rng(seed)
        constants, trees = [], []
        for primitive in range(samples.primitives):
            rows = np.flatnonzero(samples.defined[:, primitive])
            target = samples.log_times[rows, primitive].astype("float64")
            constants.append(float(target.mean()) if rows.size else float("nan"))
            grown, error, places = list[_Tree](), target - constants[-1], binned[rows]
            for _ in range(rounds if rows.size else 0):
                drawn = rng.permutation(features.shape[1])[: -(-features.shape[1] // 3)].tolist()
                tree = _grown(places, error, drawn, depth, learning_rate)
                error = error - tree.values[tree.leaves(places)]
                grown.append(tree)
            trees.append(grown)
        return cls(edges, constants, trees)

    def predict(self, layers: ArrayLike) -> np.ndarray:
        """Return microseconds as `PerformanceModel.predict` does, in float64."""
        binned = _binned(features_of(checked_layers(layers), "physical"), self.edges)
        columns = []
        for constant, trees in zip(self.constants, self.trees, strict=True):
            column = np.full((binned.shape[0],), constant, "float64")
            for tree in trees:
                column += tree.values[tree.leaves(binned)]
            columns.append(column)
        return np.exp(np.stack(columns, axis=1))


def _edges(column: np.ndarray) -> np.ndarray:
    """Return the limits between bins that hold about as many samples each."""
    values = np.unique(column)
    if values.size > _BINS:
        values = np.unique(np.quantile(column, np.linspace(0, 1, _BINS, dtype="float64")))
    limits: np.ndarray = (values[1:] + values[:-1]) / 2
    return limits


def _binned(features: np.ndarray, edges: Sequence[np.ndarray]) -> np.ndarray:
    columns = [np.searchsorted(limits, features[:, column]) for column, limits in enumerate(edges)]
    return np.stack(columns, axis=1).astype("int64")


def _grown(binned: np.ndarray, error: np.ndarray, drawn: Sequence[int], depth: int, learning_rate: float) -> _Tree:
    """Return a tree that reduces the squared error most, level by level."""
    rows, width = binned.shape[0], len(drawn)
    places = binned[:, drawn] + np.arange(width) * _BINS  # bins within a leaf, one feature after another
    repeated = np.broadcast_to(error[:, None], (rows, width)).reshape(-1)
    leaf = np.zeros((rows,), "int64")
    features, bins = [], []
    for level in range(depth):
        at = (leaf[:, None] * (width * _BINS) + places).reshape(-1)
        size = (1 << level) * width * _BINS
        shape = (1 << level, width, _BINS)
        sums = np.cumsum(np.bincount(at, repeated, size).reshape(shape), axis=2)
        counts = np.cumsum(np.bincount(at, minlength=size).astype("float64").reshape(shape), axis=2)
        above_sums, above_counts = sums[:, :, -1:] - sums, counts[:, :, -1:] - counts
        gain = sums * sums / (counts + 1) + above_sums * above_sums / (above_counts + 1)
        feature, limit = divmod(int(np.argmax(gain.sum(axis=0))), _BINS)
        features.append(drawn[feature])
        bins.append(limit)
        leaf = leaf * 2 + (binned[:, drawn[feature]] > limit)
    sums, counts = np.bincount(leaf, error, 1 << depth), np.bincount(leaf, minlength=1 << depth)
    return _Tree(features, bins, sums / (counts.astype("float64") + 1) * learning_rate)

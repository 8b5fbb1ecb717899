"""Active choice of the layers to profile on another machine, of which a model learns most (Mulder et al., §6)."""

from walle.engine_ext import np
from walle.engine_ext.np.likes import ArrayLike
from walle.engine_ext.search.performance_model import PerformanceModel
from walle.engine_ext.search.samples import SampleError, checked_layers

_POOL = 4000  # layers considered; of more, this many are drawn
_NOISE = 0.01  # variance of what a sample does not tell, relative to what is unknown before the first sample


def choose_samples(model: PerformanceModel, layers: ArrayLike, count: int, *, seed: int) -> np.ndarray:
    """Return the indices of `count` different rows of `layers` to profile, the most useful first.

    The machines' ratio is taken to be linear in the features and in the outputs of the last hidden layer, with
    independent normal coefficients. Each choice reduces the mean variance of all predictions most (Cohn et al. 1996),
    which does not depend on times: all choices can be made before the first measurement.

    Raises:
        ShapeError, SampleError: layers are wrong; `count` is not from 1 to their number.
    """
    rows = checked_layers(layers)
    if not 1 <= count <= rows.shape[0]:
        raise SampleError(f"count={count!r}; give a number from 1 to {rows.shape[0]}, that of the layers")
    pool = np.random.default_rng(seed).permutation(rows.shape[0])[: max(count, _POOL)]
    given = _directions(model, rows[pool])
    moments = given.T @ given / given.shape[0]
    spread = given.copy()  # features times the covariance of the coefficients
    chosen, free = list[int](), np.ones((given.shape[0],), "float64")
    for _ in range(count):
        variance = (spread * given).sum(axis=1) + _NOISE
        gain = ((spread @ moments) * spread).sum(axis=1) / variance
        place = int(np.argmax(np.where(free > 0, gain, -1.0)))
        direction, size = spread[place].copy(), float(variance[place])
        spread -= (given @ direction)[:, None] * direction / size
        free[place] = 0
        chosen.append(place)
    return pool[chosen]


def _directions(model: PerformanceModel, layers: np.ndarray) -> np.ndarray:
    """Return features and outputs of the last hidden layer, of equal deviations, in rows of mean square 1."""
    inputs = model.predictor.inputs(layers)
    found = np.concatenate((inputs, model.predictor.mlp.hidden(inputs)), axis=1).astype("float64")
    deviation = found.std(axis=0)
    varies = deviation > 1e-6
    centred = np.where(varies, (found - found.mean(axis=0)) / np.where(varies, deviation, 1.0), 0.0)
    count = max(1.0, float(varies.astype("float64").sum()))
    return np.concatenate((np.ones((layers.shape[0], 1), "float64"), centred / count**0.5), axis=1)

"""Ridge regression of every primitive's log times on features, with a mask of the times that are defined."""

from collections.abc import Sequence

from walle.engine_ext import np

STRENGTHS = (1e12, 1e4, 1e3, 100.0, 10.0, 1.0, 0.1, 0.01)  # the first leaves only a constant


def ridge(
    x: np.ndarray, y: np.ndarray, defined: np.ndarray, strengths: Sequence[float] = STRENGTHS
) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients (features, primitives) and intercepts (primitives,), float64, of least squares.

    `x` has shape (n, features), `y` and `defined` (n, primitives). A strength, greater than 0, times the sum of the
    squared coefficients is added to the squared errors. Of `strengths`, in falling order, each primitive gets the one
    whose mean absolute error of samples left out, one at a time, is least. The coefficients of a primitive without a
    defined value are 0, its intercept NaN.
    """
    x, y = x.astype("float64"), y.astype("float64")
    coefficients = np.zeros((x.shape[1], y.shape[1]), "float64")
    intercepts = np.full((y.shape[1],), np.nan, "float64")
    groups: dict[bytes, list[int]] = {}
    for primitive in range(y.shape[1]):
        groups.setdefault(defined[:, primitive].copy().tobytes(), []).append(primitive)
    for group in groups.values():  # primitives that are defined for the same samples share their matrices
        rows = np.flatnonzero(defined[:, group[0]])
        if rows.size > 0:
            found, constant = _fit(x[rows], y[rows][:, group], strengths)
            coefficients[:, group] = found
            intercepts[group] = constant
    return coefficients, intercepts


def _fit(x: np.ndarray, y: np.ndarray, strengths: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    mean_x, mean_y = x.mean(axis=0), y.mean(axis=0)
    centred, target = x - mean_x, y - mean_y
    gram, moment = centred.T @ centred, centred.T @ target
    one = np.eye(x.shape[1], dtype="float64")
    best, least = np.zeros_like(moment), np.full((y.shape[1],), np.inf, "float64")
    for strength in strengths:
        inverse = np.linalg.inv(gram + strength * one)
        found = inverse @ moment
        # The error of a sample that is left out, from the fit with it: divided by 1 - leverage.
        leverage = ((centred @ inverse) * centred).sum(axis=1) + 1 / x.shape[0]
        error = (np.abs(target - centred @ found) / np.maximum(1 - leverage, 1e-6)[:, None]).mean(axis=0)
        better = error < least
        best, least = np.where(better, found, best), np.where(better, error, least)
    return best, mean_y - mean_x @ best

"""A Gaussian process: a smooth function from few noisy samples (Rasmussen and Williams 2006, algorithm 2.1)."""

from __future__ import annotations

from typing import Any

from walle import np

_LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0)  # distances over which values are alike
_NOISES = (1e-3, 1e-2, 1e-1)  # variance of the noise, as part of that of the values


class GaussianProcess:
    """The mean of a process with a squared exponential kernel, its length and noise by the marginal likelihood.

    `points` is float64 (samples, dimensions), `values` float64 (samples).
    """

    def __init__(self, points: Any, values: Any) -> None:
        self._points = points
        self._mean = float(np.mean(values))
        self._scale = max(float(np.std(values)), 1e-6)
        wanted = (values - self._mean) / self._scale
        best = max(
            (self._fit(wanted, length, noise) for length in _LENGTHS for noise in _NOISES), key=lambda one: one[0]
        )
        _, self.length, self._factors = best

    def __call__(self, points: Any) -> Any:
        """Return the expected values at points (any, dimensions)."""
        return np.matmul(_kernel(points, self._points, self.length), self._factors) * self._scale + self._mean

    def _fit(self, wanted: Any, length: float, noise: float) -> tuple[float, float, Any]:
        """Return the logarithm of the likelihood, without its constant, the length, and factors of the samples."""
        count = len(self._points)
        lower = np.linalg.cholesky(_kernel(self._points, self._points, length) + noise * np.eye(count))
        factors = np.linalg.solve(lower.T, np.linalg.solve(lower, wanted))
        likelihood = -0.5 * np.sum(wanted * factors) - np.sum(np.log(np.diag(lower)))
        return float(likelihood), length, factors


def _kernel(one: Any, other: Any, length: float) -> Any:
    apart = np.square(one[:, None] - other[None])
    return np.exp(np.sum(apart, axis=2) / (-2.0 * length * length))

"""Simulated machines: times of convolution primitives from an analytic cost with caches, tiles and noise."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

type Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A CPU core: peak in FLOPs a microsecond, caches in bytes, rates of caches and memory in bytes a microsecond."""

    peak: float = 80e3
    lanes: int = 8
    caches: tuple[float, float, float] = (32e3, 512e3, 8e6)
    rates: tuple[float, float, float, float] = (200e3, 80e3, 40e3, 12e3)
    call_us: float = 2.0
    noise: float = 0.01

    def rate(self, working_set: Array) -> Array:
        """Return bytes per microsecond, which fall where a working set outgrows a cache."""
        result = np.full_like(working_set, np.log(self.rates[0]))
        for size, faster, slower in zip(self.caches, self.rates[:-1], self.rates[1:], strict=True):
            outgrown = 1 / (1 + (size / working_set) ** 3)
            result += outgrown * np.log(slower / faster)
        return np.exp(result)

    def moved(self, working_set: Array) -> Array:
        return working_set / self.rate(working_set)

    def gemm(self, m: Array, n: Array, k: Array, rows: int, columns: int) -> Array:
        """Return microseconds of a product by register tiles of `rows` x `columns`, which round m and n up."""
        tiles = rounded(m, rows) * rounded(n, columns) * k
        efficiency = 0.9 * k / (k + 12) * rows * columns / (rows * columns + 8 * self.lanes / 4)
        passes = 1 + 0.3 * (k * columns * 4 > self.caches[0])
        return 2 * tiles / (self.peak * efficiency) + self.moved(4 * (m * k + k * n + m * n)) * passes

    def times(self, layers: Array, rng: np.random.Generator) -> tuple[list[str], Array]:
        """Return names of primitives and microseconds of each layer, NaN where undefined."""
        k, c, im, s, f = layers.T
        out = np.ceil(im / s)
        pixels, depth = out * out, c * f * f
        columns: dict[str, Array] = {}
        for rows, cols in ((4, 8), (6, 16), (8, 32), (14, 32)):
            product = self.gemm(k, pixels, depth, rows, cols)
            columns[f"im2col {rows}x{cols}"] = product + self.moved(4 * depth * pixels) * 2
            columns[f"im2row {rows}x{cols}"] = self.gemm(pixels, k, depth, rows, cols) + self.moved(4 * depth * pixels)
            columns[f"1x1 {rows}x{cols}"] = where(f == 1, self.gemm(k, pixels, c, rows, cols))
            columns[f"kn2row {rows}x{cols}"] = where(
                s == 1, f * f * (self.gemm(k, pixels, c, rows, cols) / 1.2 + self.moved(4 * k * pixels))
            )
        for tile in (1, 8, 16):
            work = 2 * rounded(k, tile) * depth * pixels * (1 + 2 * f / (out + f))
            efficiency = {1: 0.08, 8: 0.55, 16: 0.7}[tile] * c / (c + 2)
            columns[f"direct {tile}"] = work / (self.peak * efficiency) + self.moved(4 * c * im * im) * np.ceil(k / 64)
        for unit in (2, 4, 6):
            tiles, size = np.ceil(out / unit) ** 2, unit + 2
            transforms = self.moved(4 * size * size * tiles * (c + k)) * (1 + unit / 3)
            product = size * size * self.gemm(k, tiles, c, 6, 16)
            columns[f"winograd {unit}"] = where((f == 3) & (s == 1), product + transforms)
        names = list(columns)
        exact = np.stack([columns[name] for name in names], axis=1) + self.call_us
        return names, exact * np.exp(self.noise * rng.standard_normal(exact.shape))


def rounded(numbers: Array, tile: int) -> Array:
    result: Array = np.ceil(numbers / tile) * tile
    return result


def where(defined: NDArray[np.bool_], times: Array) -> Array:
    return np.where(defined, times, np.nan)


def layers_of_networks(count: int, rng: np.random.Generator) -> Array:
    """Return random layers over the ranges of the paper's Table 3, of at most 20 GFLOPs, most of common sizes."""
    drawn = _drawn(4 * count, rng)
    k, c, im, s, f = drawn.T
    kept: Array = drawn[2 * k * c * f * f * np.ceil(im / s) ** 2 < 20e9][:count]
    assert len(kept) == count
    return kept


def _drawn(count: int, rng: np.random.Generator) -> Array:
    common = np.array([1, 3, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 2048])

    def channels() -> Array:
        any_count = np.exp(rng.uniform(0, np.log(2048), count)).round()
        return np.where(rng.random(count) < 0.5, any_count, rng.choice(common, count))

    k, c = channels(), channels()
    im = np.where(rng.random(count) < 0.5, rng.integers(7, 300, count), rng.choice([7, 14, 28, 56, 112, 224], count))
    s = rng.choice([1, 2, 4], count, p=[0.7, 0.25, 0.05])
    f = rng.choice([1, 3, 5, 7, 9, 11], count, p=[0.3, 0.4, 0.12, 0.1, 0.04, 0.04])
    return np.stack((k, c, im, s, f), axis=1).astype(np.float64)


INTEL = Machine()
AMD = replace(INTEL, peak=45e3, caches=(48e3, 1e6, 16e6), rates=(140e3, 70e3, 22e3, 9e3), call_us=3.5)
SMALL = replace(INTEL, peak=9e3, lanes=4, caches=(32e3, 256e3, 1e6), rates=(30e3, 12e3, 6e3, 3e3), call_us=8.0)

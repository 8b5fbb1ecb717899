"""`walle.np.random`: random numbers of a counter (Philox): a seed gives the same ones on every machine and backend.

NumPy's numbers for the same seed differ: its legacy functions and its default generator are of other kinds.
"""

from __future__ import annotations

import os
from operator import index

from walle.engine_ext import _core
from walle.engine_ext._core import ndarray
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.np.base import as_shape, asarray, index_along, normalize_axis, operator, product
from walle.engine_ext.np.constants import iinfo
from walle.engine_ext.np.sorting import argsort, searchsorted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from walle.engine_ext.np.likes import ArrayLike, DType, Shape

    type Seed = int | Iterable[int]

__all__ = [
    "Generator", "binomial", "choice", "default_rng", "exponential", "normal", "permutation", "poisson", "rand",
    "randint", "randn", "random", "random_sample", "seed", "shuffle", "standard_normal", "uniform",
]  # fmt: skip

_TWO_PI = 6.283185307179586
_MEAN_OF_A_GROUP = 256  # mean of counts that are drawn at once: exp(-256) is far from underflow
_GREATEST_MEAN = 65536


def _signed(word: int) -> int:
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


def _hash64(word: int) -> int:
    """Return a 64-bit hash of a number (splitmix64's finalizer), so that similar seeds give unrelated keys."""
    word = (word + 0x9E3779B97F4A7C15) % (1 << 64)
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return word ^ (word >> 31)


class Generator:
    """Generator of random numbers from a seed; without one, from the system's entropy."""

    def __init__(self, seed: Seed | None = None) -> None:
        words = [int.from_bytes(os.urandom(16))] if seed is None else as_shape(seed)
        if any(word < 0 for word in words):
            raise ShapeError(f"seed {seed!r}; a seed must not be negative")
        self._key = 0
        for at, number in enumerate(words):
            key = _hash64(number % (1 << 64)) ^ _hash64(number >> 64)
            self._key = key if at == 0 else _hash64(self._key ^ _hash64(key + at))
        self._stream = 0
        self._counter = 0
        self._children = 0

    def _numbers(self, shape: tuple[int, ...], dtype: str) -> ndarray:
        state = asarray([_signed(self._key), _signed(self._stream), _signed(self._counter)], "int64")
        result = operator("RandomBits", [state], shape=shape, to=dtype)
        self._counter = (self._counter + -(-result.nbytes // 16)) % (1 << 64)
        return result

    def spawn(self, count: int) -> list[Generator]:
        """Return n generators whose numbers are independent of this generator's and of each other's."""
        made = []
        for _ in range(count):
            self._children += 1
            child = Generator(0)
            child._key = self._key
            child._stream = _hash64(self._stream ^ _hash64(self._children))
            made.append(child)
        return made

    def random(self, size: Shape | None = None, dtype: DType = "float32") -> ndarray:
        """Return uniformly distributed numbers in [0, 1)."""
        return self._numbers(_shape(size), _floating(dtype))

    def uniform(self, low: ArrayLike = 0.0, high: ArrayLike = 1.0, size: Shape | None = None,
                dtype: DType = "float32") -> ndarray:  # fmt: skip
        bottom, top = asarray(low), asarray(high)
        shape = (bottom + top).shape if size is None else as_shape(size)
        return (bottom + (top - bottom) * self._numbers(shape, _floating(dtype))).astype(dtype)

    def standard_normal(self, size: Shape | None = None, dtype: DType = "float32") -> ndarray:
        """Return normally distributed numbers of mean 0 and standard deviation 1 (Box and Muller 1958)."""
        shape, name = _shape(size), _floating(dtype)
        count = product(shape)
        half = (count + 1) // 2
        even = self._numbers((2, half), name)
        radius = _core.unary("Sqrt", _core.unary("Log", 1 - even[0]) * -2.0)
        turn = even[1] * _TWO_PI
        result = _core.full((2, half), 0, name)
        result[0] = radius * _core.unary("Cos", turn)
        result[1] = radius * _core.unary("Sin", turn)
        return result.reshape(-1)[:count].reshape(shape)

    def normal(self, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, size: Shape | None = None,
               dtype: DType = "float32") -> ndarray:  # fmt: skip
        middle, spread = asarray(loc), asarray(scale)
        shape = (middle + spread).shape if size is None else as_shape(size)
        return (middle + spread * self.standard_normal(shape, dtype)).astype(dtype)

    def exponential(self, scale: ArrayLike = 1.0, size: Shape | None = None, dtype: DType = "float32") -> ndarray:
        spread = asarray(scale)
        shape = spread.shape if size is None else as_shape(size)
        return (-_core.unary("Log", 1 - self._numbers(shape, _floating(dtype))) * spread).astype(dtype)

    def integers(self, low: int, high: int | None = None, size: Shape | None = None, dtype: DType = "int64",
                 endpoint: bool = False) -> ndarray:  # fmt: skip
        """Return integers in [low, high), or in [0, low) without `high`.

        Raises:
            ShapeError: the range is empty, or the dtype does not hold it.
        """
        low, high = (0, index(low)) if high is None else (index(low), index(high))
        kind = iinfo(dtype) if _core.dtype(dtype) != "bool" else None
        least, most = (kind.min, kind.max) if kind else (0, 1)
        span = high - low + endpoint
        if span <= 0 or low < least or low + span - 1 > most:
            raise ShapeError(
                f"integers from {low} up to {high}; the range must hold an integer, and {dtype} each of it"
            )
        shape = _shape(size)
        if span > 1 << 62:
            chosen = self._wide_integers(shape, span)
        elif span <= 1 << 16:  # 48 bits times the span stay within 64: no probability is off by more than 2^-32
            bits = self._numbers(shape, "uint64").view("int64") >> 16 & ((1 << 47) - 1)
            chosen = bits * span >> 47
        else:
            chosen = (self._numbers(shape, "uint64").view("int64") & ((1 << 63) - 1)) % span
        result = chosen + _signed(low)  # modulo 2^64
        return result.view("uint64") if most > 1 << 63 else result.astype(dtype)

    def _wide_integers(self, shape: tuple[int, ...], span: int) -> ndarray:
        """Return integers below `span`, above 2^62, as int64 modulo 2^64; what is too large is drawn again."""
        drawn = self._numbers(shape, "uint64")
        bits = (span - 1).bit_length()
        while True:
            drawn &= (1 << bits) - 1
            large = drawn > span - 1
            count = int(large.sum())
            if not count:
                return drawn.view("int64")
            drawn[large] = self._numbers((count,), "uint64")

    def binomial(self, n: ArrayLike, p: ArrayLike, size: Shape | None = None) -> ndarray:
        """Return the number of successes among n trials that succeed with probability p, as int64.

        The time grows with the greatest n * min(p, 1 - p).
        """
        trials, chance = asarray(n, "float64"), asarray(p, "float64")
        if bool((trials < 0).any()) or not bool(((chance >= 0) & (chance <= 1)).all()):
            raise ShapeError("binomial needs n >= 0 and 0 <= p <= 1")
        shape = (trials + chance).shape if size is None else as_shape(size)
        trials, chance = _core.broadcast_to(trials, shape), _core.broadcast_to(chance, shape)
        rare = _core.binary("Minimum", chance, 1 - chance)
        counts = self._counts_of_trials(trials, rare)
        return _core.where(chance > 0.5, trials - counts, counts).astype("int64")

    def _counts_of_trials(self, trials: ndarray, p: ndarray) -> ndarray:
        """Return binomial counts by inversion of their distribution; n is split where (1 - p)**n would underflow."""
        mean = float((trials * p).max()) if trials.size else 0.0
        if mean > _GREATEST_MEAN:
            raise ShapeError(f"binomial with n * min(p, 1 - p) of {mean:.0f}; it must be at most {_GREATEST_MEAN}")
        groups = max(1, int(mean / _MEAN_OF_A_GROUP) + 1)
        total, left = trials * 0, trials
        for group in range(groups):
            part = _core.unary("Floor", left / (groups - group))
            left = left - part
            probability = _core.binary("Power", 1 - p, part)
            total = total + self._inverted(probability, _binomial_ratio(part, p / (1 - p)))
        return total

    def poisson(self, lam: ArrayLike = 1.0, size: Shape | None = None) -> ndarray:
        """Return the number of events where `lam` are expected, as int64; the time grows with the greatest `lam`."""
        mean = asarray(lam, "float64")
        if not bool((mean >= 0).all()):
            raise ShapeError("poisson needs lam >= 0")
        greatest = float(mean.max()) if mean.size else 0.0
        if greatest > _GREATEST_MEAN:
            raise ShapeError(f"poisson with lam {greatest}; it must be at most {_GREATEST_MEAN}")
        mean = _core.broadcast_to(mean, mean.shape if size is None else as_shape(size))
        groups = max(1, int(greatest / _MEAN_OF_A_GROUP) + 1)
        part = mean / groups  # the sum of independent counts is one of the sum of their means
        total = part * 0
        for _ in range(groups):
            total = total + self._inverted(_core.unary("Exp", -part), lambda k: part / k)
        return total.astype("int64")

    def _inverted(self, probability: ndarray, ratio: Callable[[float], ndarray]) -> ndarray:
        """Return counts by inversion: `probability` is that of 0, and ratio(k) that of k over that of k - 1."""
        uniform = self._numbers(probability.shape, "float64")
        below, counts, k = probability, probability * 0, 0
        while bool((more := uniform >= below).any()) and k < 4 * _MEAN_OF_A_GROUP + 64:
            k += 1
            counts = counts + more.astype("float64")
            probability = probability * ratio(float(k))
            below = below + probability
        return counts

    def permutation(self, x: int | ArrayLike, axis: int = 0) -> ndarray:
        """Return the numbers 0 to x - 1, or the slices of an array along an axis, in random order."""
        given = _core.arange(0, 1, x, "int64") if isinstance(x, int) else asarray(x)
        at = normalize_axis(axis, given.ndim)
        return given[index_along(at, argsort(self._numbers((given.shape[at],), "float64")))]

    def shuffle(self, x: ndarray, axis: int = 0) -> None:
        """Shuffle the slices of an array along an axis, in place."""
        x[...] = self.permutation(x, axis)

    def choice(self, x: int | ArrayLike, size: Shape | None = None, replace: bool = True, p: ArrayLike | None = None,
               axis: int = 0) -> ndarray:  # fmt: skip
        """Return random slices of an array, or numbers below x; `p` are their probabilities, uniform by default."""
        given = _core.arange(0, 1, x, "int64") if isinstance(x, int) else asarray(x)
        at = normalize_axis(axis, given.ndim)
        population, shape = given.shape[at], _shape(size)
        count = product(shape)
        if population == 0 and count:
            raise ShapeError("choice among no elements; give one element or more")
        weights = None if p is None else asarray(p, "float64")
        if weights is not None and (
            weights.shape != (population,) or (weights < 0).any() or abs(float(weights.sum()) - 1) > 1e-6
        ):
            raise ShapeError(f"choice needs {population} probabilities that add up to 1")
        if replace:
            if weights is None:
                places = self.integers(0, population, shape)
            else:
                line = operator("CumSum", [weights, asarray(0, "int64")])
                places = searchsorted(line / line[-1], self._numbers(shape, "float64"), "right")
        else:
            if count > (population if weights is None else int((weights > 0).sum())):
                raise ShapeError(
                    f"choice of {count} among {population} without replacement; ask for at most {population}"
                )
            waits = self._numbers((population,), "float64")
            if weights is not None:  # exponential waiting times at these rates: the earliest ones are the choice
                waits = _core.where(weights > 0, -_core.unary("Log", 1 - waits) / weights, float("inf"))
            places = argsort(waits)[:count].reshape(shape)
        return given[index_along(at, places)] if shape else given[index_along(at, int(places))].copy()


def _binomial_ratio(trials: ndarray, odds: ndarray) -> Callable[[float], ndarray]:
    """Return the function of k that gives the probability of k successes over that of k - 1."""
    return lambda k: (trials - (k - 1)) / k * odds


def _shape(size: Shape | None) -> tuple[int, ...]:
    return () if size is None else as_shape(size)


def _floating(dtype: DType) -> str:
    name = _core.full((), 0, dtype).dtype
    if name not in ("float32", "float64"):
        raise ShapeError(f"random numbers of {name}; known are float32 and float64")
    return name


def default_rng(seed: Seed | Generator | None = None) -> Generator:
    return seed if isinstance(seed, Generator) else Generator(seed)


# The module's functions share one generator, that of this interpreter.

_shared: list[Generator] = []


def _generator() -> Generator:
    if not _shared:
        _shared.append(Generator())
    return _shared[0]


def seed(seed: Seed | None = None) -> None:
    """Replace the shared generator by one with a new seed."""
    _shared[:] = [Generator(seed)]


def rand(*shape: int) -> ndarray:
    return _generator().random(shape)


def randn(*shape: int) -> ndarray:
    return _generator().standard_normal(shape)


def random(size: Shape | None = None) -> ndarray:
    return _generator().random(size)


random_sample = random


def randint(low: int, high: int | None = None, size: Shape | None = None, dtype: DType = "int64") -> ndarray:
    return _generator().integers(low, high, size, dtype)


def uniform(low: ArrayLike = 0.0, high: ArrayLike = 1.0, size: Shape | None = None) -> ndarray:
    return _generator().uniform(low, high, size)


def normal(loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, size: Shape | None = None) -> ndarray:
    return _generator().normal(loc, scale, size)


def standard_normal(size: Shape | None = None) -> ndarray:
    return _generator().standard_normal(size)


def binomial(n: ArrayLike, p: ArrayLike, size: Shape | None = None) -> ndarray:
    return _generator().binomial(n, p, size)


def poisson(lam: ArrayLike = 1.0, size: Shape | None = None) -> ndarray:
    return _generator().poisson(lam, size)


def exponential(scale: ArrayLike = 1.0, size: Shape | None = None) -> ndarray:
    return _generator().exponential(scale, size)


def permutation(x: int | ArrayLike) -> ndarray:
    return _generator().permutation(x)


def shuffle(x: ndarray) -> None:
    _generator().shuffle(x)


def choice(x: Any, size: Shape | None = None, replace: bool = True, p: ArrayLike | None = None) -> ndarray:
    return _generator().choice(x, size, replace, p)

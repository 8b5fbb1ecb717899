"""Profiled samples of the performance model: layers, and times of their primitives (Mulder et al., §4.4)."""

from collections.abc import Sequence
from dataclasses import dataclass

from walle.engine_ext import np
from walle.engine_ext.errors import ShapeError
from walle.engine_ext.np.likes import ArrayLike
from walle.errors import EngineError

COLUMNS = ("kernels k", "channels c", "image size im", "stride s", "kernel size f")
_GREATEST = 1 << 24  # float32 holds every whole number up to this one


class SampleError(EngineError, ValueError):
    """Layers or times that the performance model refuses; the message names the row and the column."""


def checked_layers(layers: ArrayLike) -> np.ndarray:
    """Return layers as a float64 array of shape (n, 5): k, c, im, s, f of each.

    Raises:
        ShapeError: the shape is another.
        SampleError: a value is not a whole number from 1 to 16,777,216.
    """
    array = np.asarray(layers, "float64")
    if array.ndim != 2 or array.shape[1] != len(COLUMNS):
        raise ShapeError(f"layers have shape {array.shape}; give (n, 5): {', '.join(COLUMNS)} of each layer")
    fits = (array >= 1) & (array <= _GREATEST) & (array == np.floor(array))
    if not bool(np.all(fits)):
        row, column = _first(~fits)
        raise SampleError(
            f"row {row} of layers: {COLUMNS[column]} is {float(array[row, column]):g}; "
            f"give a whole number from 1 to {_GREATEST:,}"
        )
    return array


@dataclass(frozen=True, slots=True)
class Samples:
    """Layers with the logarithms of their primitives' times.

    `layers` is float64 of shape (n, 5); `log_times` float32 of shape (n, primitives), natural logarithms of
    microseconds, 0 where undefined; `defined` float32 of the same shape, 1 where a time is defined, else 0.
    """

    layers: np.ndarray
    log_times: np.ndarray
    defined: np.ndarray

    def __len__(self) -> int:
        return self.layers.shape[0]

    @property
    def primitives(self) -> int:
        return self.log_times.shape[1]

    def take(self, rows: np.ndarray) -> "Samples":
        """Return the samples of these rows."""
        return Samples(self.layers[rows], self.log_times[rows], self.defined[rows])


def checked_samples(layers: ArrayLike, times: ArrayLike, primitives: Sequence[str] | int | None = None) -> Samples:
    """Return layers and their times, without the rows that have no time.

    `primitives` are the names of the columns of `times`, or their number, where these are known.

    Raises:
        ShapeError: shapes do not fit each other or the primitives.
        SampleError: a layer is wrong (see `checked_layers`), a time is not positive or is infinite, or no time is
            defined.
    """
    rows, given = checked_layers(layers), np.asarray(times, "float64")
    if given.ndim != 2 or given.shape[0] != rows.shape[0] or given.shape[1] == 0:
        raise ShapeError(f"times have shape {given.shape}; give ({rows.shape[0]}, primitives): a row for each layer")
    count = primitives if isinstance(primitives, int) else given.shape[1] if primitives is None else len(primitives)
    if given.shape[1] != count:
        raise ShapeError(f"times have {given.shape[1]} columns; give one for each of the {count} primitives")
    undefined = np.isnan(given)
    fits = undefined | ((given > 0) & np.isfinite(given))
    if not bool(np.all(fits)):
        row, column = _first(~fits)
        name = f" ({primitives[column]})" if isinstance(primitives, Sequence) else ""
        raise SampleError(
            f"row {row}, column {column}{name} of times is {float(given[row, column]):g} µs; "
            "give positive microseconds, or NaN where the primitive is undefined"
        )
    kept = np.flatnonzero(~np.all(undefined, axis=1))
    if kept.size == 0:
        raise SampleError("no time is defined; give at least one layer with a time that is not NaN")
    undefined, given = undefined[kept], given[kept]
    log_times = np.where(undefined, 0.0, np.log(np.where(undefined, 1.0, given)))
    return Samples(rows[kept], log_times.astype("float32"), (~undefined).astype("float32"))


def relative_errors(predicted: ArrayLike, times: ArrayLike) -> np.ndarray:
    """Return |predicted - time| / time of all defined times, as a vector; its median is the paper's MdRAE (§4.2)."""
    expected, found = np.asarray(times, "float64").reshape(-1), np.asarray(predicted, "float64").reshape(-1)
    kept = np.flatnonzero(np.isfinite(expected) & np.isfinite(found))
    return np.abs(found[kept] - expected[kept]) / expected[kept]


def _first(wrong: np.ndarray) -> tuple[int, int]:
    """Return row and column of the first true element."""
    return divmod(int(np.flatnonzero(wrong.reshape(-1))[0]), wrong.shape[1])

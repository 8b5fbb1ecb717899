"""Named float32 arrays in one vector: the global model, and differences from it."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from walle import np
from walle.federated.errors import WeightsError
from walle.federated.framing import frame, parse_frame
from walle.protocol.fields import shorten

MAX_ARRAYS = 1 << 16
MAX_VALUES = 1 << 30  # 4 GiB
MAX_NAME_CHARS = 256
_MAX_DIMENSIONS = 8
_MAGIC = b"WFM1"


@dataclass(frozen=True)
class Layout:
    """Names and shapes of arrays, in the order in which a vector has them.

    Raises:
        WeightsError: a name or a shape is not possible, or there are too many.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.names) <= MAX_ARRAYS or len(self.names) != len(self.shapes):
            raise WeightsError(
                f"{len(self.names)} names and {len(self.shapes)} shapes; 1 to {MAX_ARRAYS} of each are possible"
            )
        for name, shape in zip(self.names, self.shapes, strict=True):
            if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
                raise WeightsError(f"the name of an array is {shorten(name)}; it has 1 to {MAX_NAME_CHARS} characters")
            if len(shape) > _MAX_DIMENSIONS or any(type(one) is not int or one < 1 for one in shape):
                raise WeightsError(
                    f"array {name!r} has shape {shorten(shape)}; it has up to {_MAX_DIMENSIONS} lengths above 0"
                )
        if len(set(self.names)) < len(self.names):
            raise WeightsError("two arrays have the same name")
        if self.size > MAX_VALUES:
            raise WeightsError(f"{self.size} values; {MAX_VALUES} are possible")

    @functools.cached_property
    def ends(self) -> tuple[int, ...]:
        """Place after each array in the vector."""
        ends, at = [], 0
        for shape in self.shapes:
            at += math.prod(shape)
            ends.append(at)
        return tuple(ends)

    @functools.cached_property
    def starts(self) -> tuple[int, ...]:
        """Place of each array in the vector."""
        return (0, *self.ends[:-1])

    @property
    def size(self) -> int:
        """Number of values."""
        return self.ends[-1]

    def array_at(self, place: int) -> str:
        """Return the name of the array that has this place of the vector."""
        return next(name for name, end in zip(self.names, self.ends, strict=True) if place < end)


@dataclass(frozen=True, eq=False)
class Weights:
    """Arrays by name. `vector` has all values, float32 (size), and is not written to.

    Raises:
        WeightsError: the vector has another length or type.
    """

    layout: Layout
    vector: Any

    def __post_init__(self) -> None:
        if self.vector.shape != (self.layout.size,) or str(self.vector.dtype) != "float32":
            raise WeightsError(
                f"a vector of {self.vector.dtype} {self.vector.shape}; the arrays take float32 ({self.layout.size},)"
            )
        self.vector.setflags(write=False)

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Return a copy of arrays by name.

        Raises:
            WeightsError: one is not float32 or not finite.
        """
        given = {name: np.asarray(one) for name, one in arrays.items()}
        for name, one in given.items():
            if str(one.dtype) != "float32":
                raise WeightsError(f"array {name!r} is {one.dtype}; weights are float32: convert it or leave it out")
        layout = Layout(tuple(given), tuple(tuple(one.shape) for one in given.values()))
        made = cls(layout, np.concatenate([one.reshape(-1) for one in given.values()]))
        made.check_finite()
        return made

    @classmethod
    def of_module(cls, module: Any) -> Self:
        """Return the float32 state of a `walle.nn` module; integer buffers, such as counts of batches, are left out."""
        state = module.state_dict()
        return cls.of_arrays({name: one for name, one in state.items() if str(one.dtype) == "float32"})

    def load_into(self, module: Any) -> None:
        """Write the arrays to the state of a `walle.nn` module; its other buffers stay.

        Raises:
            ModelError: it has other names or shapes.
        """
        module.load_state_dict(module.state_dict() | {name: one.copy() for name, one in self.arrays().items()})

    def arrays(self) -> dict[str, Any]:
        """Return the arrays by name, read-only views of the vector."""
        layout = self.layout
        return {
            name: self.vector[start:end].reshape(shape)
            for name, shape, start, end in zip(layout.names, layout.shapes, layout.starts, layout.ends, strict=True)
        }

    def check_finite(self) -> None:
        """Refuse NaN and infinity.

        Raises:
            WeightsError: an array, which the message names, has one.
        """
        finite = np.isfinite(self.vector)
        if not bool(finite.all()):
            name = self.layout.array_at(int(np.argmin(finite)))
            raise WeightsError(f"array {name!r} has a value that is not finite")

    # Differences.

    def difference(self, base: Weights) -> Weights:
        """Return these weights less those of `base`.

        Raises:
            WeightsError: `base` has other arrays.
        """
        self._check_same(base)
        return Weights(self.layout, self.vector - base.vector)

    def apply(self, difference: Weights, rate: float = 1.0) -> Weights:
        """Return the weights plus `rate` times a difference.

        Raises:
            WeightsError: the difference has other arrays.
        """
        self._check_same(difference)
        step = difference.vector if rate == 1.0 else difference.vector * rate
        return Weights(self.layout, self.vector + step)

    def _check_same(self, other: Weights) -> None:
        if other.layout != self.layout:
            raise WeightsError(f"other arrays: {_unlike(self.layout, other.layout)}")

    # Bytes.

    def to_bytes(self) -> bytes:
        """Return the file of the weights; equal weights have equal files."""
        arrays = [[name, list(shape)] for name, shape in zip(self.layout.names, self.layout.shapes, strict=True)]
        return frame(_MAGIC, {"arrays": arrays}, [self.vector.tobytes()])

    @classmethod
    def of_bytes(cls, body: bytes) -> Self:
        """Return the weights of a file.

        Raises:
            WeightsError: it is damaged, or a value is not finite.
        """
        header, first = parse_frame(_MAGIC, body, WeightsError)
        rows = header.get("arrays")
        if not isinstance(rows, list) or not all(
            isinstance(row, list) and len(row) == 2 and isinstance(row[1], list) for row in rows
        ):
            raise WeightsError("the header has no list of names and shapes")
        layout = Layout(tuple(row[0] for row in rows), tuple(tuple(row[1]) for row in rows))
        if len(body) != first + 4 * layout.size:
            raise WeightsError(f"the file has {len(body)} bytes; its arrays take {first + 4 * layout.size}")
        made = cls(layout, np.frombuffer(body, "float32", layout.size, first))
        made.check_finite()
        return made

    @functools.cached_property
    def identity(self) -> str:
        """SHA-256 of the file, in hexadecimal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def _unlike(ours: Layout, theirs: Layout) -> str:
    """Return the first thing that differs between two layouts."""
    for name, shape, other, other_shape in zip(ours.names, ours.shapes, theirs.names, theirs.shapes, strict=False):
        if (name, shape) != (other, other_shape):
            return f"{other!r} {other_shape} stands where the model has {name!r} {shape}"
    return f"{len(theirs.names)} arrays; the model has {len(ours.names)}"

"""Samples of the figure: a file of profiled layers for each backend, measured where there is none, as arrays."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from walle.engine_ext.search.profiling import CONVERSIONS
from walle.engine_ext.search.samples_file import SampleSet

type Floats = NDArray[np.float64]

_TEST_SHARE = 0.1


class Data(NamedTuple):
    """Layers (n x 5) and microseconds (n x primitives, NaN where undefined)."""

    layers: Floats
    times: Floats
    primitives: tuple[str, ...]

    @classmethod
    def of(cls, samples: SampleSet) -> Self:
        return cls(np.array(samples.layers, float), np.array(samples.times, float), tuple(samples.primitives))

    def __len__(self) -> int:
        return len(self.layers)

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> "Data":
        return Data(self.layers[rows], self.times[rows], self.primitives)

    def first(self, count: int) -> "Data":
        return Data(self.layers[:count], self.times[:count], self.primitives)

    def only(self, primitives: Sequence[str]) -> "Data":
        """Return the data with these primitives as columns, NaN for those that it does not have."""
        places = {name: place for place, name in enumerate(self.primitives)}
        empty = np.full(len(self), np.nan)
        columns = [self.times[:, places[name]] if name in places else empty for name in primitives]
        return Data(self.layers, np.stack(columns, axis=1), tuple(primitives))

    def split(self, seed: int) -> tuple["Data", "Data"]:
        """Return the data to train and to validate on, and a tenth to test on, drawn by the seed."""
        order = np.random.default_rng(seed).permutation(len(self))
        count = max(1, round(_TEST_SHARE * len(self)))
        return self.take(order[count:]), self.take(order[:count])


def class_of(primitive: str) -> str:
    """Return the algorithm of a primitive: its name without the parameter."""
    return primitive.partition("(")[0]


def is_conversion(primitive: str) -> bool:
    return primitive in CONVERSIONS


def samples(folder: Path, backend: str, minutes: float) -> SampleSet:
    """Return the samples of a backend in a folder; `walle model profile-primitives` measures them if there are none."""
    path = folder / f"{backend}.jsonl"
    if not path.exists():
        program = [sys.executable, "-c", "from walle.cli import main; main()", "model", "profile-primitives", "--json"]
        given = ["--output", str(path), "--backend", backend, "--minutes", str(minutes), "--count", "1000000"]
        subprocess.run([*program, *given], check=True, stdout=subprocess.DEVNULL)
    return SampleSet.read(path)

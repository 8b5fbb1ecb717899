"""Calibration of this machine: its rates (P of eq. 3, §4.1), measured in short slices that an interruption leaves.

Slices of the backends take turns, so that other work on the machine disturbs all of them alike, and a rate is the
median of its slices.
"""

import json
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from walle.base.durable_file import write_file
from walle.engine_ext import _core
from walle.engine_ext.rates import Rates, identity

_LOG = logging.getLogger(__name__)
_FORMAT = 1
_SLICE_S = 0.05  # seconds of measuring each rate of a backend
_KEEP_S = 10.0  # seconds between two writes of the slices
_MEMORY = ("streamed", "moved")  # rates of the machine's memory, the same for all backends

type Slices = dict[str, list[dict[str, float]]]  # backend → the rates of each slice


class Calibration:
    """Slices of the rates of some backends; begins with those that an interrupted calibration has left in `path`."""

    def __init__(self, path: Path, backends: Sequence[str]) -> None:
        self._path = path
        self._slices: Slices = {name: [] for name in backends}
        self.measured_s = 0.0
        self.profiled_s = dict[str, float]()  # seconds of profiling primitives by backend, for a performance model
        self._load()

    def measure(self, total_s: float, on_progress: Callable[[float], None] = lambda _measured_s: None) -> None:
        """Measure until all slices together took `total_s` seconds, earlier runs' included, and each backend has one.

        `on_progress` is called with the seconds so far after each slice. What was measured is in the file afterwards,
        also where an exception, such as that of Ctrl-C, ends this.

        Raises:
            OSError: the file cannot be written.
        """
        kept_s = -_KEEP_S  # the first slice is written, so that a folder that cannot be written is an error at once
        try:
            while self.measured_s < total_s or not all(self._slices.values()):
                backend = min(self._slices, key=lambda name: len(self._slices[name]))
                begin = time.perf_counter()
                self._slices[backend].append(_core.measure_rates(backend, _SLICE_S))
                self.measured_s += time.perf_counter() - begin
                on_progress(self.measured_s)
                if self.measured_s - kept_s >= _KEEP_S:
                    self._keep()
                    kept_s = self.measured_s
        finally:
            self._keep()

    def keep_profiled(self, backend: str, seconds: float) -> None:
        """Write the seconds of profiling to the file, so that an interrupted calibration goes on with the time left.

        Raises:
            OSError: the file cannot be written.
        """
        self.profiled_s[backend] = seconds
        self._keep()

    def rates(self) -> Rates:
        """Return the median of each rate to three significant digits, of all backends' slices for those of memory."""
        every = [slice_ for slices in self._slices.values() for slice_ in slices]
        return {
            name: {rate: _median([one[rate] for one in (every if rate in _MEMORY else slices)]) for rate in slices[0]}
            for name, slices in self._slices.items()
        }

    def remove(self) -> None:
        """Remove the file, so that the next calibration begins with nothing."""
        self._path.unlink(missing_ok=True)

    def _keep(self) -> None:
        if self.measured_s == 0:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        seconds = {"measured_s": self.measured_s, "profiled_s": self.profiled_s}
        content = {"format": _FORMAT, **identity(), **seconds, "slices": self._slices}
        write_file(self._path, json.dumps(content))

    def _load(self) -> None:
        try:
            content = json.loads(self._path.read_bytes())
            _check(content)
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:
            _LOG.warning("%s is ignored, and measuring begins again: %s", self._path, error)
            return
        if any(content.get(key) != value for key, value in identity().items()):
            return  # another machine's, in a home folder that several share, or another version's
        self._slices = {name: content["slices"].get(name, []) for name in self._slices}
        self.measured_s, self.profiled_s = float(content["measured_s"]), dict(content.get("profiled_s", {}))


def _median(values: list[float]) -> float:
    return float(f"{statistics.median(values):.3g}")


def _check(content: Any) -> None:
    fits = isinstance(content, dict) and content.get("format") == _FORMAT and _is_positive(content.get("measured_s"))
    profiled = content.get("profiled_s", {}) if fits else None
    fits = fits and isinstance(profiled, dict) and all(map(_is_positive, profiled.values()))
    slices = content.get("slices") if fits else None
    if not isinstance(slices, dict) or not all(
        isinstance(some, list) and all(map(_is_slice, some)) for some in slices.values()
    ):
        raise ValueError(f"it is not a calibration's slices in format {_FORMAT}")


def _is_slice(rates: Any) -> bool:
    names = _core.rates("scalar").keys()
    return isinstance(rates, dict) and rates.keys() == names and all(map(_is_positive, rates.values()))


def _is_positive(value: Any) -> bool:
    return type(value) in {int, float} and 0 < value < 1e18

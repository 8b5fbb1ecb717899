"""Fleet of devices that come and go: when each is online, asks the cloud, runs its task, and which runs fail. NumPy.

The paper gives three points of its fleet (§7.3, Fig. 13): 6 million devices are online at a time, all of them are
covered 7 minutes after the release began, and almost 22 million 19 minutes after. A device that is online for 4.5
minutes and away for 12 fits all three: 6 of 22 million are online, and the last one returns 12 minutes after the 7.
How often an app asks its cloud and how often the task runs are not in the paper; they are this module's assumptions.

A device's times and failures depend on the seed and its number alone, so that real devices of the same fleet do the
same (`benchmarks.fig13.real_devices`).
"""

import dataclasses
import hashlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from numpy.typing import NDArray

from walle.protocol import Audience

type Floats = NDArray[np.float64] | NDArray[np.float32]
type Indices = NDArray[np.int64]

_PLACE_SHIFT = 64 - (Audience.PLACES.bit_length() - 1)
_CHUNK = 1 << 20  # devices at a time: temporary arrays stay small
_ALONE = 500_000  # most places that one process computes
_STRIDE, _SEED_STRIDE = 1_000_003, 0x9E37_79B9
_MIX = (0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB)
_MASK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pattern:
    """Habits of a fleet, in seconds. A device's own differ from these by up to `spread`, the last three by half."""

    session_s: float = 270.0  # online at a time
    gap_s: float = 720.0  # time between two sessions
    spread: float = 0.25
    run_s: float = 6.0  # time between two runs of the task, while online; the same for each device
    request_s: float = 20.0  # time between two requests of the app, each followed by a report
    pull_s: float = 2.0  # time from the answer to the installed version

    @property
    def online(self) -> float:
        """The share of devices that are online at any time."""
        return self.session_s / (self.session_s + self.gap_s)


def device_id(number: int) -> str:
    return f"d{number:08d}"


class Fleet:
    """Devices 0 to `count` - 1. Times are seconds of the simulation, which begins at 0."""

    def __init__(self, count: int, seed: int, pattern: Pattern | None = None) -> None:
        self.count = count
        self.seed = seed
        self.pattern = habits = pattern or Pattern()
        rng = np.random.default_rng(seed)

        def own(middle: float, spread: float) -> NDArray[np.float32]:
            return (middle * (1 + spread * (2 * rng.random(count, dtype=np.float32) - 1))).astype(np.float32)

        self.session_s = own(habits.session_s, habits.spread)
        self.period_s = self.session_s / np.float32(habits.online)
        self.phase_s = rng.random(count, dtype=np.float32) * self.period_s  # time since a session began, at time 0
        self.request_s = own(habits.request_s, 0.5)
        self.pull_s = own(habits.pull_s, 0.5)

    # --- when ---

    def is_online(self, devices: Indices | slice, at_s: float) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (at_s + self.phase_s[devices]) % self.period_s[devices] < self.session_s[devices]
        return found

    def next_request(self, devices: Indices, after_s: Floats | float) -> NDArray[np.float64]:
        """Return the time of the first request of each device after `after_s`: one time for all, or one for each.

        A session begins with a request.
        """
        found = np.empty(len(devices))
        for start in range(0, len(devices), _CHUNK):
            part = slice(start, start + _CHUNK)
            after = after_s[part] if isinstance(after_s, np.ndarray) else after_s
            found[part] = self._next_request(devices[part], after)
        return found

    def _next_request(self, devices: Indices, after_s: Floats | float) -> NDArray[np.float64]:
        period, each = self.period_s[devices].astype(np.float64), self.request_s[devices].astype(np.float64)
        since = (np.asarray(after_s, np.float64) + self.phase_s[devices]) % period
        asked = (np.floor(since / each + 1e-9) + 1) * each
        ahead: NDArray[np.float64] = after_s + np.where(asked < self.session_s[devices], asked, period) - since
        return ahead

    def runs_until(self, devices: Indices, at_s: Floats | float) -> NDArray[np.int64]:
        """Return how many runs of its task each device has begun since the start of its session at time 0 or before."""
        period, session = self.period_s[devices].astype(np.float64), self.session_s[devices].astype(np.float64)
        since = np.asarray(at_s, np.float64) + self.phase_s[devices]
        each = np.floor(session / self.pattern.run_s)
        whole, rest = np.divmod(since, period)
        found: NDArray[np.int64] = (whole * each + np.minimum(np.floor(rest / self.pattern.run_s), each)).astype(
            np.int64
        )
        return found

    # --- what ---

    def failures(
        self, devices: Indices, first: NDArray[np.int64], last: NDArray[np.int64], rate: float
    ) -> NDArray[np.int64]:
        """Return how many of the runs `first` ≤ n < `last` of each device fail, where each does at `rate`."""
        found = np.zeros(len(devices), np.int64)
        if rate > 0:
            for ahead in range(int((last - first).max(initial=0))):
                found += (first + ahead < last) & (self._draw(devices, first + ahead) < rate)
        return found

    def fails(self, device: int, run: int, rate: float) -> bool:
        """Return whether one run of a device fails, as `failures` counts it."""
        mixed = (device * _STRIDE + run + self.seed * _SEED_STRIDE) * _MIX[0] & _MASK
        mixed = (mixed ^ (mixed >> 30)) * _MIX[1] & _MASK
        mixed = (mixed ^ (mixed >> 27)) * _MIX[2] & _MASK
        return (mixed ^ (mixed >> 31)) * 2.0**-64 < rate

    def _draw(self, devices: Indices, run: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return a number in [0, 1) for a run of a device, the same each time (splitmix64 of both)."""
        mixed = (devices * _STRIDE + run).astype(np.uint64) + np.uint64(self.seed * _SEED_STRIDE)
        with np.errstate(over="ignore"):
            mixed = mixed * np.uint64(_MIX[0])
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX[1])
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_MIX[2])
        found: NDArray[np.float64] = (mixed ^ (mixed >> np.uint64(31))) * 2.0**-64
        return found

    def places(self, release_id: str) -> NDArray[np.float64]:
        """Return each device's place in a release, as `walle.trust.audience.share`; all cores take part."""
        if self.count <= _ALONE:
            return _places(release_id, 0, self.count)
        cuts = range(0, self.count, _ALONE)
        found = np.empty(self.count)
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            parts = pool.map(_places, [release_id] * len(cuts), cuts, [min(cut + _ALONE, self.count) for cut in cuts])
            for cut, part in zip(cuts, parts, strict=True):
                found[cut : cut + len(part)] = part
        return found


def _places(release_id: str, first: int, end: int) -> NDArray[np.float64]:
    """Return the places of devices `first` to `end` - 1.

    hashlib's BLAKE2b takes 0.5 µs a device. One of NumPy operations would be some 2,000 passes.
    """
    hashed, prefix = hashlib.blake2b, f"{release_id}\0d".encode()
    digests = b"".join([hashed(prefix + b"%08d" % number, digest_size=8).digest() for number in range(first, end)])
    places: NDArray[np.float64] = (np.frombuffer(digests, ">u8") >> np.uint64(_PLACE_SHIFT)) / Audience.PLACES
    return places

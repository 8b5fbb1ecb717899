"""Bandwidth traces, one moment a second: seeded ones of three kinds of link, or recorded ones of a folder.

A seeded trace is an autoregressive process of the logarithm of bandwidth, with outages. Its parameters are choices of
ours. Recorded files have lines of seconds and Mbit/s, the form of the traces that Pensieve (SIGCOMM 2017) was
evaluated with; their round trips are drawn as those of 4G.
"""

import dataclasses
import math
import random
from pathlib import Path

from benchmarks.links.shape import LinkShape


@dataclasses.dataclass(frozen=True)
class Kind:
    """Median bandwidth, deviation of its logarithm, correlation from one second to the next, round trip, outages."""

    mbit_per_s: float
    deviation: float
    correlation: float
    delay_ms: float  # one way
    jitter_ms: float
    outages_an_hour: float


KINDS = {
    "wifi": Kind(60.0, 0.4, 0.95, 8.0, 4.0, 2.0),
    "4g": Kind(18.0, 0.6, 0.95, 25.0, 10.0, 10.0),
    "3g": Kind(2.0, 0.6, 0.95, 60.0, 25.0, 20.0),
}
_OUTAGE_BITS_PER_S = 8e3
_OUTAGE_S = (2, 8)


def seeded(kind: Kind, seconds: int, seed: str) -> list[LinkShape]:
    """Return the link of each second."""
    rng = random.Random(seed)
    found: list[LinkShape] = []
    level = rng.gauss(0.0, 1.0)
    outage_s = 0
    for _ in range(seconds):
        level = kind.correlation * level + math.sqrt(1 - kind.correlation**2) * rng.gauss(0.0, 1.0)
        bits_per_s = kind.mbit_per_s * 1e6 * math.exp(kind.deviation * level)
        if not outage_s and rng.random() < kind.outages_an_hour / 3600:
            outage_s = rng.randint(*_OUTAGE_S)
        if outage_s:
            outage_s -= 1
            bits_per_s = _OUTAGE_BITS_PER_S
        found.append(LinkShape(delay_ms=_delay_ms(kind, rng), jitter_ms=0.0, loss=0.0, bits_per_s=bits_per_s))
    return found


def _delay_ms(kind: Kind, rng: random.Random) -> float:
    return kind.delay_ms + rng.uniform(-kind.jitter_ms, kind.jitter_ms)


def recorded(folder: Path) -> dict[str, list[LinkShape]]:
    """Return the links of each file by its name."""
    found = {}
    for path in sorted(one for one in folder.iterdir() if one.is_file()):
        rng = random.Random(path.name)
        rates = [float(line.split()[1]) for line in path.read_text().splitlines() if line.strip()]
        found[path.name] = [
            LinkShape(
                delay_ms=_delay_ms(KINDS["4g"], rng),
                jitter_ms=0.0,
                loss=0.0,
                bits_per_s=max(1e6 * rate, _OUTAGE_BITS_PER_S),
            )
            for rate in rates
        ]
    return found

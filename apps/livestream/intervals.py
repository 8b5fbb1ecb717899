"""Confidence intervals of shares: Wilson's for independent trials, a block bootstrap for windows of a sound."""

import math
import random
from collections.abc import Sequence

_Z = 1.959964  # quantile of the normal distribution for 95 %


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's score; (0, 1) without trials.

    Frames of one clip are alike, so that the true interval of a share over frames is wider.
    """
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    below = 1 + _Z * _Z / trials
    centre = (share + _Z * _Z / (2 * trials)) / below
    half = _Z * math.sqrt(share * (1 - share) / trials + _Z * _Z / (4 * trials * trials)) / below
    return max(0.0, centre - half), min(1.0, centre + half)


def block_bootstrap(
    values: Sequence[bool], *, block: int = 16, draws: int = 2000, seed: int = 1
) -> tuple[float, float]:
    """Return the 95 % interval of the share of true values, from resampled blocks of neighbours.

    It is (0, 1) of no values.
    """
    if not values:
        return 0.0, 1.0
    blocks = [values[start : start + block] for start in range(0, len(values), block)]
    rng = random.Random(seed)
    shares = []
    for _ in range(draws):
        drawn = rng.choices(blocks, k=len(blocks))
        shares.append(sum(map(sum, drawn)) / sum(map(len, drawn)))
    shares.sort()
    return shares[int(0.025 * draws)], shares[int(0.975 * draws)]

"""Draw of a round's cohort: pseudo-random, the same for the same seed, round and devices."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable


def draw_number(seed: str, round_number: int, device: str, purpose: str = "cohort") -> int:
    """Return a number from 0 to below 2^64 that depends on nothing else, uniform over devices."""
    text = f"{purpose}\0{seed}\0{round_number}\0{device}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def draw_cohort(eligible: Iterable[str], count: int, seed: str, round_number: int) -> list[str]:
    """Return `count` of the eligible devices, or all where there are fewer, in the order of the draw.

    The order of `eligible` does not matter, and a device that it has twice is drawn once.
    """
    return heapq.nsmallest(count, set(eligible), key=lambda one: (draw_number(seed, round_number, one), one))

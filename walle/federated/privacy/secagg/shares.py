"""Shares of a 128-bit secret: any t of them give it back, and fewer say nothing about it.

Source: Shamir, How to Share a Secret (Communications of the ACM, 1979), over the field of 2**128 + 51.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

PRIME = (1 << 128) + 51  # the least prime above every secret
SECRET_BYTES = 16
SHARE_BYTES = 17
_WIDE_BYTES = 32  # drawn for a coefficient; taken modulo PRIME, it is uniform up to 2**-127


def split(secret: bytes, count: int, threshold: int, random_bytes: Callable[[int], bytes]) -> list[bytes]:
    """Return `count` shares, 17 bytes each: values of a random polynomial at 1, 2, ... whose value at 0 is the secret.

    Raises:
        ValueError: the secret has another length than 16 bytes, or the threshold is not from 1 to `count`.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count:
        raise ValueError(f"secret of {len(secret)} bytes, {threshold} of {count} shares")
    drawn = random_bytes(_WIDE_BYTES * (threshold - 1))
    coefficients = [
        int.from_bytes(drawn[start : start + _WIDE_BYTES]) % PRIME for start in range(0, len(drawn), _WIDE_BYTES)
    ]
    coefficients.append(int.from_bytes(secret))
    shares = []
    for point in range(1, count + 1):
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES))
    return shares


def combine(points: Sequence[int], shares: Sequence[bytes]) -> bytes | None:
    """Return the secret of a threshold's number of shares at distinct points, or None if it would have over 16 bytes.

    Wrong shares give a wrong secret: check it against something public.
    """
    weights = _weights_at_zero(tuple(points))
    value = sum(weight * int.from_bytes(share) for weight, share in zip(weights, shares, strict=True)) % PRIME
    return value.to_bytes(SECRET_BYTES) if value >> (8 * SECRET_BYTES) == 0 else None


@functools.lru_cache(maxsize=256)
def _weights_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's weights of the values at these points for the value at 0."""
    whole = math.prod(points)
    # The differences are small numbers: their product is made before the one division by PRIME.
    below = [math.prod([other - point for other in points if other != point]) % PRIME for point in points]
    inverses = _inverses(below)
    return tuple(whole // point * inverse % PRIME for point, inverse in zip(points, inverses, strict=True))


def _inverses(values: list[int]) -> list[int]:
    """Return the inverses of the values with one inversion (Montgomery 1987, section 10.3.1)."""
    products = [1]
    for value in values:
        products.append(products[-1] * value % PRIME)
    inverse = pow(products[-1], -1, PRIME)
    found = []
    for value, before in zip(reversed(values), reversed(products[:-1]), strict=True):
        found.append(inverse * before % PRIME)
        inverse = inverse * value % PRIME
    return found[::-1]

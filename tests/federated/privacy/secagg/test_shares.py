"""Shares: any threshold's number of them give the secret, one fewer fit every secret."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.federated.privacy.secagg.shares import PRIME, SHARE_BYTES, combine, split


def is_probable_prime(number: int) -> bool:
    """Return whether an odd number passes the Miller-Rabin test with 20 bases."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (random.Random(1).randrange(2, 1 << 64) for _ in range(20)):
        powers = [pow(base, odd << step, number) for step in range(twos)]
        if powers[0] != 1 and number - 1 not in powers:
            return False
    return True


def test_the_field_is_of_the_least_prime_above_all_secrets() -> None:
    assert [extra for extra in range(1, 52, 2) if is_probable_prime((1 << 128) + extra)] == [PRIME - (1 << 128)]


@given(st.binary(min_size=16, max_size=16), st.integers(1, 30), st.integers(), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, count: int, seed: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, count))
    shares = split(secret, count, threshold, random.Random(seed).randbytes)
    assert {len(share) for share in shares} == {SHARE_BYTES}
    chosen = data.draw(st.permutations(range(count)))[:threshold]
    assert combine([at + 1 for at in chosen], [shares[at] for at in chosen]) == secret


@given(st.binary(min_size=16, max_size=16), st.integers(2, 12), st.integers())
def test_one_share_fewer_fits_every_secret(other: bytes, threshold: int, seed: int) -> None:
    """For any other secret there is a polynomial through the shares that are known and through it."""
    shares = split(bytes(16), threshold, threshold, random.Random(seed).randbytes)
    known = list(range(1, threshold))
    # The value at the last point by which all of them give the other secret.
    last = _value_at(threshold, [0, *known], [other, *shares[:-1]])
    assert combine([*known, threshold], [*shares[:-1], last.to_bytes(SHARE_BYTES)]) == other


def _value_at(point: int, points: list[int], values: list[bytes]) -> int:
    total = 0
    for at, value in zip(points, values, strict=True):
        weight = 1
        for other in points:
            if other != at:
                weight = weight * (point - other) * pow(at - other, -1, PRIME) % PRIME
        total += weight * int.from_bytes(value)
    return total % PRIME


def test_a_wrong_share_gives_another_secret() -> None:
    shares = split(bytes(16), 5, 3, random.Random(2).randbytes)
    assert combine([1, 2, 3], [*shares[:2], bytes(SHARE_BYTES)]) != bytes(16)


@pytest.mark.parametrize(("secret", "count", "threshold"), [(bytes(15), 3, 2), (bytes(16), 3, 4), (bytes(16), 3, 0)])
def test_arguments_out_of_bounds_are_refused(secret: bytes, count: int, threshold: int) -> None:
    with pytest.raises(ValueError, match="secret of"):
        split(secret, count, threshold, random.Random(1).randbytes)

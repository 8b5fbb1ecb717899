"""Hashes of hints: near vectors share buckets, and the index answers as a scan does where buckets are full."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.adapt.tuning.hints import Hints, class_shares
from walle.adapt.tuning.locality import Bucket, LocalityIndex
from walle.errors import ConfigError

NUMBERS = st.integers(-10_000, 10_000).map(lambda one: one / 100)  # squares of other numbers may be too small
VECTORS = st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=20)


@given(VECTORS, st.integers(0, 5))
def test_a_vector_shares_all_its_buckets_with_an_equal_one(vectors: list[list[float]], seed: int) -> None:
    index: LocalityIndex[int] = LocalityIndex(3, seed=seed)
    for key, vector in enumerate(vectors):
        index.put(key, vector)
        assert key in index.near(vector)
        assert index.nearest(vector, 1)[0] in [other for other, one in enumerate(vectors) if one == vector]


@given(VECTORS, st.lists(NUMBERS, min_size=3, max_size=3))
def test_without_enough_shared_buckets_the_answer_is_that_of_a_scan(
    vectors: list[list[float]], at: list[float]
) -> None:
    index: LocalityIndex[int] = LocalityIndex(3, seed=1)
    for key, vector in enumerate(vectors):
        index.put(key, vector)
    distances = [math.sqrt(sum((a - b) * (a - b) for a, b in zip(one, at, strict=True))) for one in vectors]
    scan = sorted(range(len(vectors)), key=lambda key: (distances[key], key))
    assert index.nearest(at, len(vectors)) == scan
    assert index.nearest(at, len(vectors), but=scan[0]) == scan[1:]


@given(VECTORS)
def test_removed_and_replaced_vectors_are_in_no_bucket(vectors: list[list[float]]) -> None:
    index: LocalityIndex[int] = LocalityIndex(3, seed=2)
    for vector in vectors:
        index.put(7, vector)
    assert len(index) == 1
    index.remove(7)
    index.remove(7)
    assert len(index) == 0
    assert all(index.near(vector) == set() for vector in vectors)
    assert not any(table for tables in index._tables for table in tables)


class CountingIndex(LocalityIndex[int]):
    """An index that counts the vectors it hashes."""

    hashed = 0

    def buckets(self, vector: Sequence[float]) -> list[list[Bucket]]:
        self.hashed += 1
        return super().buckets(vector)


def test_removed_and_replaced_vectors_are_not_hashed_again() -> None:
    index = CountingIndex(3, seed=2)
    index.put(0, [1.0, 2.0, 3.0])
    index.put(0, [4.0, 5.0, 6.0])
    index.remove(0)
    assert (index.hashed, len(index)) == (2, 0)


def test_near_vectors_share_buckets_more_often_than_far_ones() -> None:
    index: LocalityIndex[int] = LocalityIndex(8, seed=3)
    draw = random.Random(4)
    shares = {}
    for distance in (0.5, 2.0, 8.0, 32.0):
        found = 0
        for _ in range(300):
            vector = [draw.gauss(0, 20) for _ in range(8)]
            way = [draw.gauss(0, 1) for _ in range(8)]
            length = math.sqrt(sum(one * one for one in way))
            index.put(0, vector)
            found += 0 in index.near([a + distance * b / length for a, b in zip(vector, way, strict=True)])
        shares[distance] = found / 300
    assert shares[0.5] > 0.95
    assert shares[0.5] > shares[2.0] > shares[8.0] > shares[32.0]
    assert shares[32.0] < 0.05


def test_a_lookup_compares_few_of_many_vectors() -> None:
    index: LocalityIndex[int] = LocalityIndex(4, seed=5)
    draw = random.Random(6)
    vectors = [[draw.uniform(-300, 300) for _ in range(4)] for _ in range(3000)]
    for key, vector in enumerate(vectors):
        index.put(key, vector)
    assert sum(len(index.near(one)) for one in vectors[:100]) / 100 < 30


@given(VECTORS, st.lists(NUMBERS, min_size=3, max_size=3))
def test_each_level_finds_what_finer_ones_find(vectors: list[list[float]], at: list[float]) -> None:
    index: LocalityIndex[int] = LocalityIndex(3, seed=1)
    for key, vector in enumerate(vectors):
        index.put(key, vector)
    assert index.near(at, 0) <= index.near(at, 1) <= index.near(at, 2)


def test_coarse_buckets_find_neighbours_where_fine_ones_are_empty() -> None:
    index: LocalityIndex[int] = LocalityIndex(4, seed=7)
    draw = random.Random(8)
    vectors = [[draw.uniform(-300, 300) for _ in range(4)] for _ in range(500)]
    for key, vector in enumerate(vectors):
        index.put(key, vector)
    right = 0
    for vector in vectors[:50]:
        scan = sorted(range(500), key=lambda key: math.dist(vectors[key], vector))
        right += index.nearest(vector, 3) == scan[:3]
    assert sum(len(index.near(one, 1)) for one in vectors[:50]) / 50 < 250  # fewer than half are compared
    assert right >= 40


def test_equal_seeds_give_equal_buckets() -> None:
    first, second = (LocalityIndex[int](3, seed=9).buckets([1.0, 2.0, 3.0]) for _ in range(2))
    assert first == second
    assert first != LocalityIndex[int](3, seed=10).buckets([1.0, 2.0, 3.0])


@pytest.mark.parametrize("vector", [[1.0, 2.0], [1.0, 2.0, math.nan], [1.0, 2.0, math.inf]])
def test_a_vector_of_another_length_or_without_numbers_is_refused(vector: list[float]) -> None:
    index: LocalityIndex[int] = LocalityIndex(3, seed=0)
    with pytest.raises(ValueError, match="give 3 finite ones"):
        index.put(0, vector)
    assert len(index) == 0


def distance(one: Hints, other: Hints) -> float:
    return math.dist(one.vector(), other.vector())


def test_hints_are_as_far_apart_as_places_times_and_summaries() -> None:
    home = Hints(59.33, 18.07, 1e9, (0.5, 0.5))
    assert distance(home, Hints(59.42, 18.07, 1e9, (0.5, 0.5))) == pytest.approx(1.0, abs=0.01)  # 10 km
    assert distance(home, Hints(59.33, 18.07, 1e9 + 6 * 3600, (0.5, 0.5))) == pytest.approx(1.0)
    assert distance(home, Hints(59.33, 18.07, 1e9, (0.75, 0.5))) == pytest.approx(1.0)
    assert distance(Hints(0, 179.99), Hints(0, -179.99)) < 0.3  # over the date line


@pytest.mark.parametrize(
    "wrong",
    [{"latitude": 91.0}, {"longitude": math.nan}, {"time_s": 1e12}, {"summary": (2.0,)}, {"summary": (0.0,) * 257}],
)
def test_hints_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"give a number|a summary has"):
        Hints(**wrong)  # type: ignore[arg-type]


def test_class_shares_sum_to_one() -> None:
    assert class_shares([0, 2, 2, 2], 4) == (0.25, 0.0, 0.75, 0.0)
    with pytest.raises(ConfigError, match="each from 0 to 1"):
        class_shares([0, 2], 2)

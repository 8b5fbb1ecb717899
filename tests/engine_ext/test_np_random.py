"""walle.np.random: Philox's published numbers, reproducibility, and distributions."""

from typing import Any

import numpy
import pytest

import walle.np as np
from walle.engine_ext import _core
from walle.engine_ext.errors import ShapeError

COUNT = 40_000


def bits(key: int, high: int, low: int, count: int, dtype: str = "uint32") -> list[Any]:
    state = numpy.array([key, high, low], "uint64").view("int64")
    result = _core.evaluate("RandomBits", [state], {"shape": (count,), "to": dtype})[0]
    return list(numpy.asarray(result).tolist())


def test_the_published_numbers_of_philox() -> None:
    """Compare with Random123's known-answer tests for philox4x32-10."""
    assert bits(0, 0, 0, 4) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 2**64 - 1
    assert bits(ones, ones, ones, 4) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = bits(0x299F31D0_A4093822, 0x03707344_13198A2E, 0x85A308D3_243F6A88, 4)
    assert pi == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_numbers_depend_on_their_index_alone() -> None:
    many = bits(7, 0, 100, 1000)
    assert bits(7, 0, 103, 400) == many[12:412]
    wide = bits(7, 0, 100, 500, "uint64")
    assert wide == [low + (high << 32) for low, high in zip(many[::2], many[1::2], strict=True)]
    assert bits(7, 0, 100, 1000, "float32") == [(word >> 8) * 2.0**-24 for word in many]
    assert bits(7, 0, 100, 500, "float64") == [(word >> 11) * 2.0**-53 for word in wide]


def test_a_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    first, again, other = (np.random.default_rng(seed) for seed in (5, 5, 6))
    for name, args in {"random": (9,), "standard_normal": (9,), "integers": (0, 99, 9), "permutation": (9,)}.items():
        here = getattr(first, name)(*args).tolist()
        assert here == getattr(again, name)(*args).tolist()
        assert here != getattr(other, name)(*args).tolist()
    np.random.seed(3)
    one = np.random.rand(4).tolist()
    np.random.seed(3)
    assert np.random.rand(4).tolist() == one
    assert np.random.rand(4).tolist() != one
    assert np.random.Generator().random(4).tolist() != np.random.Generator().random(4).tolist()


def test_spawned_generators_differ() -> None:
    parent = np.random.default_rng(1)
    rows = [child.random(4).tolist() for child in parent.spawn(3)] + [
        child.random(4).tolist() for child in parent.spawn(2)
    ]
    assert len({tuple(row) for row in rows}) == 5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_draws_have_the_expected_distributions(dtype: str) -> None:
    rng = np.random.default_rng(0)
    flat = numpy.asarray(rng.random(COUNT, dtype))
    assert flat.dtype == dtype
    assert flat.min() >= 0
    assert flat.max() < 1
    assert abs(numpy.histogram(flat, 20, (0, 1))[0] - COUNT / 20).max() < 5 * (COUNT / 20) ** 0.5
    bell = numpy.asarray(rng.standard_normal(COUNT + 1, dtype))
    assert bell.dtype == dtype
    assert abs(bell.mean()) < 5 / COUNT**0.5
    assert abs(bell.std() - 1) < 5 / COUNT**0.5
    assert abs((bell < 1).mean() - 0.8413) < 0.01
    assert abs((abs(bell) < 2).mean() - 0.9545) < 0.01
    waits = numpy.asarray(rng.exponential(2.0, COUNT, dtype))
    assert abs(waits.mean() - 2) < 0.06
    assert abs((waits > 2).mean() - numpy.exp(-1)) < 0.015
    wide = numpy.asarray(rng.normal(3.0, [[1.0], [10.0]], (2, COUNT)))
    assert abs(wide.mean(1) - 3).max() < 0.3
    assert abs(wide.std(1) - [1, 10]).max() < 0.3
    span = numpy.asarray(rng.uniform(-2, 3, (COUNT,)))
    assert (span.min() < -1.9, span.max() > 2.9, span.min() >= -2, span.max() <= 3) == (True,) * 4


def test_drawn_integers_are_uniform_within_their_bounds() -> None:
    rng = np.random.default_rng(0)
    dice = numpy.asarray(rng.integers(1, 7, COUNT))
    assert dice.dtype == "int64"
    assert abs(numpy.bincount(dice)[1:] - COUNT / 6).max() < 5 * (COUNT / 6) ** 0.5
    assert set(numpy.asarray(rng.integers(3, size=200)).tolist()) == {0, 1, 2}
    assert set(numpy.asarray(rng.integers(0, 3, 200, endpoint=True)).tolist()) == {0, 1, 2, 3}
    large = numpy.asarray(rng.integers(-(2**60), 2**60, 1000))
    assert large.min() < -(2**59)
    assert large.max() > 2**59
    assert np.random.randint(5, 6, (2, 2), "int32").tolist() == [[5, 5], [5, 5]]


def test_permutations_and_choices_keep_the_elements() -> None:
    rng = np.random.default_rng(0)
    assert sorted(rng.permutation(50).tolist()) == list(range(50))
    table = np.arange(12).reshape(3, 4)
    assert sorted(rng.permutation(table, 1).T.tolist()) == table.T.tolist()
    rng.shuffle(table)
    assert sorted(table.tolist()) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert len(set(rng.choice(20, 20, replace=False).tolist())) == 20
    picked = numpy.asarray(rng.choice(3, COUNT, p=[0.5, 0.0, 0.5]))
    assert abs((picked == 0).mean() - 0.5) < 0.02
    assert not (picked == 1).any()
    firsts = [int(rng.choice(3, 2, replace=False, p=[0.1, 0.1, 0.8])[0]) for _ in range(500)]
    assert abs(firsts.count(2) / 500 - 0.8) < 0.1
    assert rng.choice([[1, 2], [3, 4]], 4).shape == (4, 2)
    assert rng.choice([5]).item() == 5


@pytest.mark.parametrize(
    "call",
    [
        lambda: np.random.default_rng(-1),
        lambda: np.random.default_rng(0).integers(3, 3),
        lambda: np.random.default_rng(0).choice(3, 4, replace=False),
        lambda: np.random.default_rng(0).choice(2, 1, p=[0.5, 0.4]),
        lambda: np.random.default_rng(0).random(3, "int64"),
    ],
)
def test_bad_arguments_are_refused(call: Any) -> None:
    with pytest.raises(ShapeError):
        call()


def test_the_module_functions_share_one_generator() -> None:
    np.random.seed(5)
    first = np.random.randn(3, 2)
    np.random.seed(5)
    assert first.shape == (3, 2)
    numpy.testing.assert_array_equal(numpy.asarray(first), numpy.asarray(np.random.randn(3, 2)))
    np.random.seed(5)
    drawn = numpy.asarray(np.random.random_sample(4))
    np.random.seed(5)
    numpy.testing.assert_array_equal(drawn, numpy.asarray(np.random.rand(4)))

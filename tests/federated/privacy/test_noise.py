"""Noise: its distribution by quantiles and moments, each client's part of it, and what is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from walle import np
from walle.errors import ConfigError
from walle.federated.privacy.keystream import Keystream
from walle.federated.privacy.noise import DiscreteGaussianNoise, GaussianNoise

COUNT = 40_000


def fixed(size: int) -> bytes:
    return bytes(range(size))


def below(deviation: float, value: float) -> float:
    return 0.5 * (1 + math.erf(value / deviation / math.sqrt(2)))


def test_gaussian_noise_has_the_distribution_of_its_deviation() -> None:
    noise = GaussianNoise(1.5, 2.0, random_bytes=fixed)
    assert noise.deviation == 3.0
    drawn = sorted(noise.draw(COUNT).tolist())
    # Kolmogorov's bound of the distance at a probability of 1e-6.
    distance = max(abs((at + 0.5) / COUNT - below(3.0, value)) for at, value in enumerate(drawn))
    assert distance < 2.7 / math.sqrt(COUNT)
    assert max(abs(drawn[0]), drawn[-1]) > 3.5 * 3.0


def test_neighbouring_draws_are_independent() -> None:
    drawn = GaussianNoise(1.0, 1.0, random_bytes=fixed).draw(COUNT)
    half = COUNT // 2  # the two numbers of one pair of Box and Muller are this far apart
    for first, second in ((drawn[1:], drawn[:-1]), (drawn[half:], drawn[:half])):
        assert abs(float(np.mean(first * second))) < 5 / math.sqrt(half)
        assert abs(float(np.mean(first * first * second * second)) - 1) < 0.1


def test_the_parts_of_the_clients_add_up_to_the_whole_noise() -> None:
    parts = [GaussianNoise(2.0, 1.0, clients=25) for _ in range(25)]
    assert parts[0].deviation == pytest.approx(0.4)
    total = parts[0].draw(8000)
    for part in parts[1:]:
        total = total + part.draw(8000)
    assert math.sqrt(float(np.mean(total * total))) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("count", [0, 1, (1 << 18) + 3])
def test_noise_has_as_many_numbers_as_asked_over_chunks_too(count: int) -> None:
    for noise in (GaussianNoise(1.0, 5.0, random_bytes=fixed), DiscreteGaussianNoise(1.0, 5.0, random_bytes=fixed)):
        drawn = noise.draw(count)
        assert drawn.shape == (count,)
        if count > 1:
            assert float(np.mean(drawn[-3:] * drawn[-3:])) != float(np.mean(drawn[:3] * drawn[:3]))
            assert math.sqrt(float(np.mean(drawn.astype("float64") ** 2))) == pytest.approx(5.0, rel=0.01)


def test_noise_keeps_shapes_and_differs_from_one_generator_to_the_next() -> None:
    update = {"w": np.zeros((2, 3), "float32"), "b": np.zeros((), "float32")}
    first, second = (GaussianNoise(1.0, 1.0).add(update) for _ in range(2))
    assert first["w"].shape == (2, 3)
    assert str(first["w"].dtype) == "float32"
    assert not bool(np.any(first["w"] == second["w"]))
    assert first["b"].tolist() != 0.0


def discrete_probabilities(deviation: float, most: int) -> dict[int, float]:
    weights = {at: math.exp(-at * at / (2 * deviation * deviation)) for at in range(-most, most + 1)}
    total = math.fsum(weights.values())
    return {at: weight / total for at, weight in weights.items()}


@pytest.mark.parametrize("deviation", [0.3, 1.0, 2.7, 9.0])
def test_discrete_noise_has_the_probabilities_of_the_discrete_gaussian(deviation: float) -> None:
    drawn = DiscreteGaussianNoise(deviation, 1.0, random_bytes=fixed).draw(COUNT).tolist()
    assert len(drawn) == COUNT
    statistic, cells = 0.0, 0
    for value, probability in discrete_probabilities(deviation, 80).items():
        if (expected := probability * COUNT) >= 10:
            statistic += (drawn.count(value) - expected) ** 2 / expected
            cells += 1
    assert statistic < cells + 5 * math.sqrt(2 * cells)  # chi-square


def test_discrete_noise_of_a_great_deviation_has_its_moments() -> None:
    drawn = DiscreteGaussianNoise(1.0, 5e6, clients=4, random_bytes=fixed).draw(COUNT)
    wide = drawn.astype("float64") / 2.5e6
    assert abs(float(np.mean(wide))) < 0.03
    assert float(np.mean(wide**2)) == pytest.approx(1.0, rel=0.05)
    assert float(np.mean(wide**4)) == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("kind", [GaussianNoise, DiscreteGaussianNoise])
@pytest.mark.parametrize(("multiplier", "norm", "clients"), [(0, 1, 1), (math.nan, 1, 1), (1, -1, 1), (1, 1, 0)])
def test_noise_that_hides_nothing_is_refused(kind: Any, multiplier: float, norm: float, clients: int) -> None:
    with pytest.raises(ConfigError, match="noise multiplier"):
        kind(multiplier, norm, clients=clients)


def test_more_noise_than_the_ring_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="encode with fewer bits"):
        DiscreteGaussianNoise(1.0, 1e9)


def test_a_keystream_is_that_of_rfc_8439() -> None:
    # Appendix A.1, vector 1: key, nonce and counter are zero.
    assert Keystream(bytes(32)).words(4).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_a_keystream_continues_over_calls_of_any_size() -> None:
    stream, whole = Keystream(bytes(range(32))), Keystream(bytes(range(32)))
    sizes = [3, 1, 0, 40, 7]
    pieces = list(itertools.chain.from_iterable(stream.words(size).tolist() for size in sizes))
    assert pieces == whole.words(sum(sizes)).tolist()

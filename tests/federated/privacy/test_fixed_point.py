"""Fixed point: sums are those of the rounded values, never overflow, and updates of other models are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle import np
from walle.errors import ConfigError
from walle.federated.privacy.clipping import UpdateValueError, clip_update
from walle.federated.privacy.fixed_point import FixedPoint

SHAPES = {"w": (2, 3), "b": (1,)}


class ConstantNoise:
    """The same number for each value, to see where noise goes."""

    def __init__(self, value: int) -> None:
        self.value = value

    def draw(self, count: int) -> Any:
        return np.zeros((count,), "int64") + self.value


def arrays_of(values: list[float]) -> dict[str, Any]:
    return {"w": np.asarray(values[:6], "float32").reshape((2, 3)), "b": np.asarray(values[6:], "float32")}


@given(st.lists(st.lists(st.floats(-2.0, 2.0, width=32), min_size=7, max_size=7), min_size=1, max_size=20), st.data())
def test_the_sum_of_vectors_decodes_to_the_sum_of_updates(updates: list[list[float]], data: st.DataObject) -> None:
    bits = data.draw(st.integers(8, 27))
    coding = FixedPoint(SHAPES, 2.0, bits, len(updates))
    total = np.zeros((7,), "uint32")
    for values in updates:
        total += coding.encode(arrays_of(values)).vector
    decoded = coding.decode(total)
    found = decoded["w"].reshape(-1).tolist() + decoded["b"].tolist()
    expected = [math.fsum(column) for column in zip(*updates, strict=True)]
    assert found == pytest.approx(expected, abs=len(updates) * (coding.step * 0.51 + 1e-5))
    assert decoded["w"].shape == (2, 3)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_greatest_values_of_all_clients_do_not_overflow(sign: float) -> None:
    coding = FixedPoint({"a": (1,)}, 1.0, 25, 128)  # 128 * (2**24 - 1) is just below 2**31
    total = np.zeros((1,), "uint32")
    noise = ConstantNoise((1 << 40) * int(sign))  # beyond the end of the range
    for _ in range(128):
        total += coding.encode({"a": np.asarray([0.0], "float32")}, noise).vector
    assert coding.decode(total)["a"].tolist() == pytest.approx([sign * 128])


def test_a_sum_that_could_overflow_is_refused_with_the_bits_that_fit() -> None:
    with pytest.raises(ConfigError, match="25 bits do"):
        FixedPoint(SHAPES, 1.0, 26, 128)
    FixedPoint(SHAPES, 1.0, 25, 128)


@given(st.lists(st.floats(-1.0, 1.0, width=32), min_size=7, max_size=7), st.integers(2, 20))
def test_the_norm_of_an_encoded_update_is_within_its_bound(values: list[float], bits: int) -> None:
    coding = FixedPoint(SHAPES, 1.0, bits, 10)
    clipped = clip_update(arrays_of(values), 1.0)
    steps = coding.encode(clipped.arrays).vector.view("int32").tolist()
    assert math.sqrt(sum(one * one for one in steps)) <= coding.norm_bound(1.0)


def test_noise_is_added_in_steps_and_what_leaves_the_range_is_counted() -> None:
    coding = FixedPoint({"a": (3,)}, 1.0, 8, 10)
    encoded = coding.encode({"a": np.asarray([0.0, 1.0, -1.0], "float32")}, ConstantNoise(5))
    assert encoded.vector.view("int32").tolist() == [5, 127, -122]
    assert encoded.limited_values == 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"w": None}, "'w' of the update is missing"),
        ({"x": np.zeros((1,), "float32")}, "'x' of the update is not one of the model's"),
        ({"w": np.zeros((6,), "float32")}, r"'w' of the update has shape \(6,\), not \(2, 3\)"),
        ({"b": np.asarray([math.nan], "float32")}, "'b' of the update has NaN"),
        ({"b": np.asarray([1.5], "float32")}, "'b' of the update has values beyond 1"),
    ],
)
def test_updates_that_do_not_fit_the_model_are_refused_by_array(changed: dict[str, Any], reason: str) -> None:
    update = {**arrays_of([0.0] * 7), **changed}
    with pytest.raises(UpdateValueError, match=reason):
        FixedPoint(SHAPES, 1.0, 16, 3).encode({name: array for name, array in update.items() if array is not None})


@pytest.mark.parametrize(("limit", "bits", "clients"), [(0.0, 8, 3), (math.inf, 8, 3), (1.0, 1, 3), (1.0, 8, 0)])
def test_arguments_out_of_bounds_are_refused(limit: float, bits: int, clients: int) -> None:
    with pytest.raises(ConfigError):
        FixedPoint(SHAPES, limit, bits, clients)

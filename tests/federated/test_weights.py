"""Named arrays in one vector: files, identity, differences."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.federated.small_models import LAYOUT, numbers, weights
from walle import nn, np
from walle.engine_ext.errors import DTypeError
from walle.federated import Layout, Weights, WeightsError
from walle.federated.framing import MAX_HEADER_BYTES, frame


def test_arrays_come_back_by_name_and_cannot_be_written_to() -> None:
    one = Weights.of_arrays({"w": np.asarray([[1.0, 2.0]], "float32"), "b": np.asarray(3.0, "float32")})
    assert one.layout == Layout(("w", "b"), ((1, 2), ()))
    assert one.arrays()["w"].tolist() == [[1.0, 2.0]]
    assert one.arrays()["b"].tolist() == 3.0
    with pytest.raises(DTypeError, match="read-only"):
        one.vector[0] = 5.0


def test_the_identity_depends_on_values_names_and_shapes() -> None:
    same = weights(1, 2, 3, 4, 5)
    assert same.identity == weights(1, 2, 3, 4, 5).identity
    others = [
        weights(1, 2, 3, 4, 6),
        weights(1, 2, 3, 4, 5, layout=Layout(("a", "c"), ((2, 2), (1,)))),
        weights(1, 2, 3, 4, 5, layout=Layout(("a", "b"), ((4,), (1,)))),
    ]
    assert len({same.identity, *(one.identity for one in others)}) == 4


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=5, max_size=5))
def test_a_file_gives_the_same_weights(values: list[float]) -> None:
    one = weights(*values)
    again = Weights.of_bytes(one.to_bytes())
    assert again.layout == LAYOUT
    assert again.vector.tobytes() == one.vector.tobytes()
    assert again.identity == one.identity


def test_a_difference_leads_back() -> None:
    base, trained = weights(1, 2, 3, 4, 5), weights(2, 2, 1, 4, 9)
    difference = trained.difference(base)
    assert numbers(difference) == [1, 0, -2, 0, 4]
    assert numbers(base.apply(difference)) == numbers(trained)
    assert numbers(base.apply(difference, 0.5)) == [1.5, 2, 2, 4, 7]


def test_weights_of_other_models_do_not_mix() -> None:
    other = weights(1, 2, 3, 4, 5, layout=Layout(("a", "b"), ((4,), (1,))))
    with pytest.raises(WeightsError, match=r"'a' \(4,\) stands where the model has 'a' \(2, 2\)"):
        weights(1).difference(other)
    with pytest.raises(WeightsError, match="3 arrays; the model has 2"):
        weights(1).apply(weights(1, layout=Layout(("a", "b", "c"), ((2, 2), (1,), (1,)))))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(2, "float64")}, "'a' is float64; weights are float32"),
        ({"a": np.asarray([1.0, float("nan")], "float32")}, "'a' has a value that is not finite"),
        ({}, "0 names"),
        ({"a": np.zeros((2, 0), "float32")}, "lengths above 0"),
        ({"": np.zeros(2, "float32")}, "1 to 256 characters"),
    ],
)
def test_impossible_weights_are_refused(arrays: dict[str, object], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        Weights.of_arrays(arrays)


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [],
        [["a"]],
        [["a", 4]],
        [["a", [4.0]]],
        [["a", [True]]],
        [["a", [1 << 40]]],
        [[["a"], [4]]],
        [["a", [2]], ["a", [2]]],
        [["a", [5]]],
        [["a", [-4]]],
    ],
)
def test_a_damaged_file_is_refused(rows: object) -> None:
    with pytest.raises(WeightsError):
        Weights.of_bytes(frame(b"WFM1", {"arrays": rows}, [bytes(16)]))


def test_a_file_with_infinity_or_of_something_else_is_refused() -> None:
    endless = weights(1, 2, 3, float("inf"), 5)
    with pytest.raises(WeightsError, match="'a' has a value that is not finite"):
        Weights.of_bytes(endless.to_bytes())
    with pytest.raises(WeightsError, match="magic number"):
        Weights.of_bytes(b"WFU1" + weights(1).to_bytes()[4:])
    with pytest.raises(WeightsError, match="expected a map"):
        Weights.of_bytes(b"WFM1" + (1).to_bytes(4, "little") + msgpack.packb(1) + bytes(55))


def test_a_file_has_one_form() -> None:
    file = weights(1).to_bytes()
    end = 8 + int.from_bytes(file[4:8], "little")
    with pytest.raises(WeightsError, match="padding after the header is not zero"):
        Weights.of_bytes(file[:end] + b"x" + file[end + 1 :])
    length = MAX_HEADER_BYTES + 1
    with pytest.raises(WeightsError, match=f"the header has {length} bytes"):
        Weights.of_bytes(b"WFM1" + length.to_bytes(4, "little") + bytes(2 * length))


def test_a_module_keeps_what_is_not_float32() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    one = Weights.of_module(module)
    assert "1.running_mean" in one.layout.names
    assert "1.num_batches_tracked" not in one.layout.names
    Weights(one.layout, one.vector + np.asarray(1.0, "float32")).load_into(module)
    assert numbers(Weights.of_module(module)) == pytest.approx([value + 1 for value in numbers(one)])

"""Plain data as JSON: what JSON lacks, and a bound of depth."""

import array
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.base import plain
from walle.base.plain_json import MAX_DEPTH, MAX_ELEMENTS, dumps, to_json

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"a": [1, 2.5, None, True, "é"]}, {"a": [1, 2.5, None, True, "é"]}),
        (b"\x00\xff", {"$bytes": "AP8="}),
        (math.nan, {"$float": "nan"}),
        ([math.inf, -math.inf], [{"$float": "inf"}, {"$float": "-inf"}]),
        (array.array("f", [1.0, math.nan]), [1.0, {"$float": "nan"}]),
        ("a\ud800b", "a�b"),
    ],
)
def test_values_that_json_does_not_have_are_encoded(value: Any, found: Any) -> None:
    crossed = value if isinstance(value, str) else plain.decode(plain.encode(value))
    assert to_json(crossed) == found


def test_an_array_of_two_axes_is_a_list_of_lists() -> None:
    assert to_json(memoryview(bytes(range(6))).cast("B", (2, 3))) == [[0, 1, 2], [3, 4, 5]]


@given(PLAIN)
def test_every_plain_value_is_one_line_of_json_that_any_reader_takes(value: Any) -> None:
    text = dumps(to_json(plain.decode(plain.encode(value))))
    assert len(text.splitlines()) == 1

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(text.encode(), parse_constant=refuse) == to_json(value)


def test_values_that_are_nested_too_deeply_are_refused() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert dumps(to_json(value)).count("[") == MAX_DEPTH
    with pytest.raises(TypeError, match=f"deeper than {MAX_DEPTH}"):
        to_json([value])


def test_large_arrays_are_refused() -> None:
    assert len(to_json(memoryview(bytes(MAX_ELEMENTS)))) == MAX_ELEMENTS
    with pytest.raises(TypeError, match=f"more than {MAX_ELEMENTS} elements"):
        to_json({"a": memoryview(bytes(2 * (MAX_ELEMENTS + 1))).cast("h")})

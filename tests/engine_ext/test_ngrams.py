"""TfIdfVectorizer against counting in Python."""

from collections import Counter
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.engine_ext import _core
from walle.errors import EngineError

# 1-grams, then 2-grams, then 3-grams of a pool over 0 to 3.
GRAMS = [(0,), (3,), (0, 1), (1, 1), (2, 0), (0, 1, 2), (3, 3, 3)]
BEGINS = [0, 2, 8]
PLACES = [4, 0, 2, 6, 1, 3, 5]


def attributes(**more: Any) -> dict[str, Any]:
    pool = [item for gram in GRAMS for item in gram]
    return {"pool_int64s": pool, "ngram_counts": BEGINS, "ngram_indexes": PLACES, "mode": "TF"} | more


def counts(row: list[int], least: int, most: int, skips: int) -> list[float]:
    """Return the counts of n-grams whose items are 1 to skips + 1 indices apart; 1-grams count once."""
    found: Counter[tuple[int, ...]] = Counter()
    for length in range(least, most + 1):
        for apart in range(1, 2 if length == 1 else skips + 2):
            for start in range(len(row) - (length - 1) * apart):
                found[tuple(row[start + i * apart] for i in range(length))] += 1
    result = [0.0] * len(GRAMS)
    for gram, place in zip(GRAMS, PLACES, strict=True):
        if least <= len(gram) <= most:
            result[place] = found[gram]
    return result


def run(x: Any, options: dict[str, Any]) -> Any:
    return numpy.asarray(_core.evaluate("TfIdfVectorizer", [_core.asarray(x, None)], options)[0])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_counts_are_those_of_plain_counting(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 8))
    least = data.draw(st.integers(1, 3))
    most, skips = data.draw(st.integers(least, 3)), data.draw(st.integers(0, 3))
    x = [[data.draw(st.integers(0, 3)) for _ in range(columns)] for _ in range(rows)]
    given_x = numpy.array(x, data.draw(st.sampled_from(["int32", "int64"]))).reshape(rows, columns)
    options = attributes(min_gram_length=least, max_gram_length=most, max_skip_count=skips)
    wanted = numpy.array([counts(row, least, most, skips) for row in x], "float32").reshape(rows, len(GRAMS))
    numpy.testing.assert_array_equal(run(given_x, options), wanted)
    weights = [float(i) for i in range(len(GRAMS))]
    options |= {"ngram_indexes": list(range(len(GRAMS))), "weights": weights}
    wanted = wanted[:, PLACES]
    numpy.testing.assert_array_equal(run(given_x, options | {"mode": "TFIDF"}), wanted * weights)
    numpy.testing.assert_array_equal(run(given_x, options | {"mode": "IDF"}), numpy.minimum(wanted, 1) * weights)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "BM25"},
        {"min_gram_length": 0},
        {"max_skip_count": -1},
        {"ngram_counts": [0, 3, 8]},
        {"ngram_indexes": PLACES[:-1]},
        {"ngram_indexes": [-1, *PLACES[1:]]},
        {"weights": [1.0]},
        {"weights": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]},  # per n-gram or per index: undefined
        {"pool_strings": ["a"]},
    ],
)
def test_broken_and_undefined_attributes_are_refused(wrong: dict[str, Any]) -> None:
    options = attributes(min_gram_length=1, max_gram_length=3, max_skip_count=1)
    run(numpy.array([0, 1], "int64"), options)
    with pytest.raises(EngineError, match=r"TfIdfVectorizer|max_skip_count"):
        run(numpy.array([0, 1], "int64"), options | wrong)

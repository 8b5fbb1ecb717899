"""Headlines of figures: their line, what is read from it, and the best peer."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.cli.figures.headline import Headline

_TEXTS = st.text(st.characters(categories=["L", "N", "P", "Sm"], exclude_characters="|:"), min_size=1, max_size=9)
_NAMES = st.lists(_TEXTS, min_size=1, max_size=3).map(" ".join)
_NUMBERS = st.floats(-1e300, 1e300)
_PEERS = st.dictionaries(_NAMES, _NUMBERS | st.lists(_TEXTS, min_size=1, max_size=3).map(": ".join), max_size=3)


@given(what=_NAMES, unit=_NAMES, is_lower=st.booleans(), ours=_NUMBERS, peers=_PEERS)
def test_a_line_is_read_as_it_was_written(
    what: str, unit: str, is_lower: bool, ours: float, peers: dict[str, float | str]
) -> None:
    headline = Headline(what=what, unit=unit, better="lower" if is_lower else "higher", ours=ours, peers=peers)
    found = Headline.parse(headline.to_line())
    assert found is not None
    assert (found.what, found.unit, found.better) == (what, unit, headline.better)
    assert found.ours == pytest.approx(ours, rel=0.01)
    assert found.peers.keys() == peers.keys()
    for name, value in peers.items():
        read = found.peers[name]
        assert read == value if isinstance(value, str) else read == pytest.approx(value, rel=0.01)


def test_the_line_is_readable_and_names_the_best_peer() -> None:
    peers: dict[str, float | str] = {"onnxruntime": 14.1, "ncnn": 19.0, "MNN": "not installed", "x": "failed: no y"}
    headline = Headline(what="MobileNetV2, one thread", unit="ms", better="lower", ours=12.34, peers=peers)
    assert headline.to_line() == (
        "In short | MobileNetV2, one thread; lower is better | ours 12.3 ms | onnxruntime 14.1 ms | ncnn 19 ms"
        " | MNN: not installed | x: failed: no y"
    )
    assert headline.best_peer() == ("onnxruntime", 14.1)
    assert headline.absent() == "MNN not installed, x failed: no y"
    faster = Headline(what="w", unit="events a second", better="higher", ours=1_234_567.8, peers={"a": 1, "b": 2})
    assert faster.best_peer() == ("b", 2)
    assert "ours 1,234,568 events a second" in faster.to_line()
    assert Headline(what="w", unit="s", better="lower", ours=1).best_peer() is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="the number of ours is"):
        Headline(what="w", unit="s", better="lower", ours=value)
    with pytest.raises(ValueError, match="the number of peer is"):
        Headline(what="w", unit="s", better="lower", ours=1, peers={"peer": value})


@pytest.mark.parametrize("text", ["", " a", "a | b", "a\nb"])
def test_a_text_that_a_line_cannot_have_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is empty, or has a bar"):
        Headline(what="w", unit=text, better="lower", ours=1)
    with pytest.raises(ValueError, match="is empty, or has a bar"):
        Headline(what="w", unit="s", better="lower", ours=1, peers={"peer": text})


@pytest.mark.parametrize(
    "line",
    [
        "In short | w; lower is better",
        "In short | w; lower is better | ours nan s",
        "In short | w; lower is better | ours 1 s | peer 2 ms",
        "In short | w; better | ours 1 s",
        "In short | w; lower is better | mine 1 s",
    ],
)
def test_a_line_that_only_begins_as_a_headline_is_refused_and_left_out(line: str) -> None:
    with pytest.raises(ValueError, match="is not a headline"):
        Headline.parse(line)
    good = Headline(what="w", unit="s", better="lower", ours=1)
    assert Headline.find(f"a table\n{line}\n{good.to_line()}\nIn short, fine\n") == [good]

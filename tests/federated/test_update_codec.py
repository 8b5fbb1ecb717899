"""Bodies of updates: what comes back, and what is refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.federated.small_models import LAYOUT, numbers, update, weights
from walle import np
from walle.federated import Encoding, Layout, Update, UpdateError, UpdateLimits, decode_update, encode_update
from walle.federated.framing import MAX_HEADER_BYTES, frame, parse_frame


def body(**changes: Any) -> bytes:
    """Return a good body with other fields of its header."""
    header = {
        "round": 3,
        "samples": 7,
        "metrics": {"loss": 0.5},
        "arrays": [["a", [2, 2], "float32"], ["b", [1], "float32"]],
    }
    values = changes.pop("values", np.zeros(5, "float32").tobytes())
    return frame(b"WFU1", header | changes, [values])


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=5, max_size=5),
    st.integers(0, 1 << 53),
    st.integers(1, 1_000_000),
)
def test_float32_comes_back_to_the_bit(values: list[float], round_number: int, samples: int) -> None:
    sent = Update(round_number, samples, weights(*values), {"loss": 0.25})
    found = decode_update(encode_update(sent), LAYOUT)
    assert (found.round_number, found.samples, found.metrics) == (round_number, samples, {"loss": 0.25})
    assert found.difference.vector.tobytes() == sent.difference.vector.tobytes()


@given(st.lists(st.floats(-100, 100, width=32), min_size=5, max_size=5))
def test_narrow_types_come_back_within_half_a_step(values: list[float]) -> None:
    sent = update(*values)
    halves = decode_update(encode_update(sent, Encoding.FLOAT16), LAYOUT)
    assert numbers(halves.difference) == pytest.approx(numbers(sent.difference), rel=2**-11, abs=2**-25)
    integers = decode_update(encode_update(sent, Encoding.INT8), LAYOUT)
    step = max(abs(value) for value in values[:4]) / 127
    assert numbers(integers.difference)[:4] == pytest.approx(numbers(sent.difference)[:4], abs=step * 0.501 + 1e-30)


def test_narrow_types_are_shorter() -> None:
    layout = Layout(("a",), ((10_000,),))
    sent = update(0.5, layout=layout)
    sizes = [len(encode_update(sent, one)) for one in (Encoding.FLOAT32, Encoding.FLOAT16, Encoding.INT8)]
    assert [round(size / 10_000, 1) for size in sizes] == [4.0, 2.0, 1.0]


def test_a_value_beyond_float16_is_not_sent_as_such() -> None:
    with pytest.raises(UpdateError, match="'a' has a value beyond float16"):
        encode_update(update(70_000.0), Encoding.FLOAT16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": -1}, "round is -1"),
        ({"round": True}, "round is True"),
        ({"samples": 0}, "samples is 0"),
        ({"samples": 1_000_001}, "from 1 to 1000000"),
        ({"samples": 2.0}, "samples is 2.0"),
        ({"metrics": {"loss": float("nan")}}, "'loss' is nan"),
        ({"metrics": {"loss": 1}}, "'loss' is 1"),
        ({"metrics": {"x" * 65: 1.0}}, "1 to 64 characters"),
        ({"metrics": {str(one): 1.0 for one in range(33)}}, "32 names at most"),
        ({"metrics": []}, "metrics are"),
        ({"arrays": [["a", [2, 2], "float32"]]}, "has 1 arrays; the model has 2"),
        ({"arrays": {}}, "the model has 2"),
        ({"arrays": [["b", [1], "float32"], ["a", [2, 2], "float32"]]}, "'b' stands where the model has 'a'"),
        ({"arrays": [["a", [4], "float32"], ["b", [1], "float32"]]}, r"shape \[4\]"),
        ({"arrays": [["a", [2, 2], "float32"], ["b", [True], "float32"]]}, r"shape \[True\]"),
        ({"arrays": [["a", [2, 2], "float64"], ["b", [1], "float32"]]}, "'float64'; known are float32"),
        ({"arrays": [["a", [2, 2], []], ["b", [1], "float32"]]}, "known are float32"),
        ({"arrays": [["a", [2, 2], "float32", 1.0], ["b", [1], "float32"]]}, "int8 has a scale"),
        ({"arrays": [["a", [2, 2], "int8"], ["b", [1], "float32"]]}, "int8 has a scale"),
        ({"arrays": [["a", [2, 2], "int8", float("inf")], ["b", [1], "float32"]]}, "scale inf"),
        ({"arrays": [["a", [2, 2], "int8", -1.0], ["b", [1], "float32"]]}, "scale -1.0"),
        ({"arrays": ["a", "b"]}, "is described by"),
        ({"values": bytes(16)}, "its arrays take"),
        ({"values": bytes(24)}, "its arrays take"),
        ({"values": np.asarray([0, 0, float("nan"), 0, 0], "float32").tobytes()}, "'a' has a value that is not finite"),
        ({"values": np.asarray([0, 0, 0, 0, float("inf")], "float32").tobytes()}, "'b' has a value that is not finite"),
        ({"values": np.asarray([0, 0, 0, 0, -2e6], "float32").tobytes()}, r"'b' has a value beyond 1e\+06"),
        ({"more": 1}, "the header has the fields"),
    ],
)
def test_a_body_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UpdateError, match=message):
        decode_update(body(**changes), LAYOUT)


def test_the_good_body_of_these_tests_is_accepted() -> None:
    assert decode_update(body(), LAYOUT).samples == 7


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"WFU1",
        b"WFM1" + body()[4:],
        b"WFU1" + (1 << 31).to_bytes(4, "little") + bytes(200),
        b"WFU1" + (3).to_bytes(4, "little") + b"\xc1\xc1\xc1" + bytes(53),
        b"WFU1" + (300).to_bytes(4, "little") + b"\x91" * 300 + bytes(100),
        body()[:-1],
        body() + b"\0",
    ],
)
def test_a_damaged_frame_is_refused(sent: bytes) -> None:
    with pytest.raises(UpdateError):
        decode_update(sent, LAYOUT)


@given(st.data())
def test_flipped_and_cut_bytes_never_raise_anything_else(data: st.DataObject) -> None:
    sent = bytearray(body())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(sent) - 1))
        sent[place] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(sent), len(sent) - 1, data.draw(st.integers(0, len(sent)))]))
    try:
        found = decode_update(bytes(sent[:end]), LAYOUT)
    except UpdateError:
        return
    assert found.difference.layout == LAYOUT
    assert bool(np.isfinite(found.difference.vector).all())


@pytest.mark.parametrize(
    "header",
    [
        b"\xdf\xff\xff\xff\xff",  # a map of 4 billion
        b"\xdd\xff\xff\xff\xff",  # a list of 4 billion
        b"\xc6\xff\xff\xff\xff",  # 4 GB of bytes
        b"\x91" * 1_000_000,  # nested lists
    ],
)
def test_a_hostile_header_takes_little_memory(header: bytes) -> None:
    start = b"WFU1" + len(header).to_bytes(4, "little") + header
    sent = start + bytes(-len(start) % 64 + 20)
    tracemalloc.start()
    try:
        with pytest.raises(UpdateError):
            decode_update(sent, LAYOUT)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(sent) + (1 << 20)
    finally:
        tracemalloc.stop()


def test_a_body_longer_than_the_model_allows_is_not_read() -> None:
    limits = UpdateLimits()
    with pytest.raises(UpdateError, match="bytes; the model's take"):
        decode_update(memoryview(bytes(limits.max_body_bytes(LAYOUT) + 1)), LAYOUT)
    assert limits.max_body_bytes(LAYOUT) < MAX_HEADER_BYTES + 200


def test_a_body_at_an_odd_address_is_read() -> None:
    sent = b"x" + encode_update(update(1, 2, 3, 4, 5))
    assert numbers(decode_update(memoryview(sent)[1:], LAYOUT).difference) == [1, 2, 3, 4, 5]


def test_the_header_is_readable_without_walle() -> None:
    sent = encode_update(update(1.0, samples=9), Encoding.INT8)
    length = int.from_bytes(sent[4:8], "little")
    header = msgpack.unpackb(sent[8 : 8 + length])
    assert header["samples"] == 9
    assert header["arrays"][0][:3] == ["a", [2, 2], "int8"]
    assert parse_frame(b"WFU1", sent, UpdateError)[0] == header

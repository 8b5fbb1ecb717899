"""Frames of models and updates."""

import struct

import msgpack
import pytest

from walle.federated.errors import UpdateError
from walle.federated.framing import frame, parse_frame

_MAGIC = b"TEST"


def test_a_header_of_very_many_values_is_refused_before_it_is_read() -> None:
    header = msgpack.packb({"rows": [{}] * 1_000_000})  # a byte each, in Python 64
    body = struct.pack("<4sI", _MAGIC, len(header)) + header
    with pytest.raises(UpdateError, match=r"the header has 1000003 values, more than 524288"):
        parse_frame(_MAGIC, body + bytes(-len(body) % 64), UpdateError)


def test_a_frame_has_its_header_and_the_place_of_its_arrays() -> None:
    body = frame(_MAGIC, {"a": 1}, [b"12345678"])
    header, first = parse_frame(_MAGIC, body, UpdateError)
    assert header == {"a": 1}
    assert body[first:] == b"12345678"

"""Frames: every message round trips in any chunks; bytes that are not a frame raise FrameError only."""

import contextlib
import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from walle.pipeline.tunnel.frames import COMPRESS_FROM_BYTES, MAX_BODY_BYTES, Decoder, Encoder, FrameError
from walle.protocol import Ack, Frame, Hello, Ping, Pong, Refusal, Request, Response, Upload, Welcome

_INTS = st.integers(-(2**63), 2**63 - 1)
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=300)
_BYTES = st.binary(max_size=600) | st.builds(
    lambda part, times: part * times, st.binary(max_size=9), _INTS.map(abs).map(lambda n: n % 300)
)
_FRAMES: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, _TEXTS, _TEXTS, _TEXTS, _INTS, _INTS, _INTS, _TEXTS),
    st.builds(Welcome, _INTS, _INTS, _INTS),
    st.builds(Upload, _INTS, _TEXTS, _BYTES, _INTS),
    st.builds(Ack, _INTS),
    st.builds(Request, _INTS, _TEXTS, _BYTES),
    st.builds(Response, _INTS, _BYTES, _TEXTS),
    st.builds(Refusal, _TEXTS, _TEXTS, st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(Ping, _INTS),
    st.builds(Pong, _INTS),
)


def _raw(body: bytes, *, kind: int = 4, flags: int = 0, dictionary: int = 0, length: int | None = None) -> bytes:
    return struct.pack(">IBBH", len(body) if length is None else length, kind, flags, dictionary) + body


@given(st.lists(_FRAMES, max_size=8), st.data())
def test_any_chunking_gives_the_same_frames(frames: list[Frame], data: st.DataObject) -> None:
    encoder, decoder = Encoder(), Decoder()
    stream = b"".join(encoder.encode(frame) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
    assert received == frames


def test_byte_by_byte_gives_the_same_frame() -> None:
    frame = Upload(7, "ipv", b"feature " * 200, 1)
    decoder = Decoder()
    received = [got for byte in Encoder().encode(frame) for got in decoder.feed(bytes([byte]))]
    assert received == [frame]


@given(st.lists(st.binary(max_size=400), max_size=5))
def test_arbitrary_bytes_raise_nothing_but_frame_error(chunks: list[bytes]) -> None:
    decoder = Decoder()
    with contextlib.suppress(FrameError):
        for chunk in chunks:
            decoder.feed(chunk)


@given(_FRAMES, st.data())
def test_one_changed_byte_raises_nothing_but_frame_error(frame: Frame, data: st.DataObject) -> None:
    stream = bytearray(Encoder().encode(frame))
    stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(FrameError):
        Decoder().feed(bytes(stream))


@given(st.binary(max_size=400), st.integers(1, 12), st.booleans())
def test_any_body_raises_nothing_but_frame_error(body: bytes, kind: int, compressed: bool) -> None:
    packed = zstandard.ZstdCompressor().compress(body) if compressed else body
    with contextlib.suppress(FrameError):
        Decoder().feed(_raw(packed, kind=kind, flags=int(compressed)))


def test_a_long_body_travels_compressed_and_a_short_one_as_it_is() -> None:
    encoder = Encoder()
    assert len(encoder.encode(Upload(1, "t", b"a" * 30_000, 0))) < 300
    short = b"a" * (COMPRESS_FROM_BYTES // 2)
    assert short in encoder.encode(Upload(1, "t", short, 0))


def test_a_body_that_does_not_compress_is_sent_as_it_is() -> None:
    noise = bytes((index * index * 31 + index) % 251 for index in range(300))
    noise = zstandard.ZstdCompressor(level=19).compress(noise * 3) + noise
    frame = Upload(1, "t", noise, 0)
    encoded = Encoder().encode(frame)
    assert len(encoded) <= 8 + 24 + 1 + len(noise)
    assert Decoder().feed(encoded) == [frame]


@pytest.mark.parametrize(
    ("stream", "part"),
    [
        (_raw(b"", kind=0), "kind"),
        (_raw(b"", kind=1), "kind"),  # a Hello of protocol 1
        (_raw(b"", kind=20), "kind"),
        (_raw(b"\0" * 8, flags=2), "Ack flags"),
        (_raw(b"\0" * 8, dictionary=3), "Ack dictionary"),
        (_raw(b"", length=MAX_BODY_BYTES + 1), "Ack length"),
        (_raw(b"\0" * 7), "Ack"),
        (_raw(b"\0" * 9), "Ack"),
        (_raw(b"not zstd at all", flags=1), "Ack body"),
        (_raw(zstandard.ZstdCompressor().compress(b"\0" * 8)[:-2], flags=1), "Ack body"),
        (_raw(zstandard.ZstdCompressor().compress(b"\0" * 8) + b"more", flags=1), "Ack body"),
        (_raw(zstandard.ZstdCompressor(write_content_size=False).compress(b"\0" * 8), flags=1), "Ack body"),
        (_raw(struct.pack(">qIIq", 1, 1, 0, 0) + b"\xff", kind=3), "Upload.topic"),
        (_raw(struct.pack(">qIIq", 1, 2**32 - 1, 2**32 - 1, 0), kind=3), "Upload"),
        (_raw(struct.pack(">IId", 0, 0, float("nan")), kind=7), "Refusal.retry_s"),
    ],
)
def test_the_wrong_part_of_a_frame_is_named(stream: bytes, part: str) -> None:
    with pytest.raises(FrameError) as raised:
        Decoder().feed(stream)
    assert raised.value.part == part


def test_a_decompression_bomb_is_refused_before_it_unpacks() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(b"\0" * (MAX_BODY_BYTES + 1))
    assert len(bomb) < 5_000
    with pytest.raises(FrameError, match="unpacks to 8388609 bytes, at most 8388608"):
        Decoder().feed(_raw(bomb, kind=3, flags=1))


def test_a_zstd_frame_with_a_false_size_is_refused() -> None:
    packed = bytearray(zstandard.ZstdCompressor().compress(b"\0" * 8_000))
    assert zstandard.frame_content_size(bytes(packed)) == 8_000
    packed[5:7] = struct.pack("<H", 8 - 0)  # the two-byte size field holds size - 256
    assert zstandard.frame_content_size(bytes(packed)) == 264
    with pytest.raises(FrameError, match="is not one zstd frame"):
        Decoder().feed(_raw(bytes(packed), flags=1))


def test_a_stricter_limit_holds_before_and_after_decompression() -> None:
    stream = Encoder().encode(Upload(1, "t", b"a" * 5_000, 0))
    with pytest.raises(FrameError, match="at most 4096"):
        Decoder(max_body_bytes=4096).feed(stream)
    with pytest.raises(FrameError, match="at most 16"):
        Decoder(max_body_bytes=16).feed(Encoder().encode(Hello("device", "epoch", "token")))


def test_a_decoder_that_lost_its_place_stays_shut() -> None:
    decoder = Decoder()
    with pytest.raises(FrameError):
        decoder.feed(_raw(b"", kind=0))
    with pytest.raises(FrameError, match="kind"):
        decoder.feed(Encoder().encode(Ack(1)))


@pytest.mark.parametrize(
    ("frame", "part"),
    [
        (Ack(2**63), "Ack"),
        (Upload(1, "\ud800", b"", 0), "Upload.topic"),
        (Upload(1, "t", bytearray(b"x"), 0), "Upload.payload"),  # type: ignore[arg-type]
        (Upload(1, "t", b"x" * MAX_BODY_BYTES, 0), "Upload"),
        (Refusal("code", "message", float("inf")), "Refusal.retry_s"),
        (Refusal("code", "message", "soon"), "Refusal.retry_s"),  # type: ignore[arg-type]
        (Ack("1"), "Ack"),  # type: ignore[arg-type]
    ],
)
def test_a_frame_that_cannot_be_sent_is_refused_with_its_part(frame: Frame, part: str) -> None:
    with pytest.raises(FrameError) as raised:
        Encoder().encode(frame)
    assert raised.value.part == part

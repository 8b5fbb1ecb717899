"""The native reading of uploads against the decoder in Python, which is its meaning."""

import random
import struct
import tracemalloc
from typing import Any, cast

import pytest
import zstandard

from tests.sim.traced_memory import traced_memory
from walle.base import plain
from walle.engine_ext import _core
from walle.pipeline.features.checksums import CHAIN_MODULUS, next_link, row_checksum
from walle.pipeline.tunnel.dictionaries import Dictionary, train_dictionary
from walle.pipeline.tunnel.frames import Decoder, Encoder, FrameError, UploadFields
from walle.pipeline.tunnel.layouts import split_version
from walle.pipeline.tunnel.received import Received
from walle.protocol import Frame, Ping, Upload, UploadBatch

_VALUES = ("device", "epoch", 1_700_000_000_000)
_ALL = (1, 2**62)


def _payload(rng: random.Random) -> bytes:
    return plain.encode(
        {"page": f"item-{rng.randrange(50)}", "dwell_ms": rng.randrange(10**6), "bytes": rng.randbytes(9)}
    )


@pytest.fixture(scope="module")
def dictionary() -> Dictionary:
    rng = random.Random(1)
    return Dictionary(train_dictionary([_payload(rng) * 3 for _ in range(300)], 1024))


def _stream(rng: random.Random, dictionary: Dictionary) -> bytes:
    """Return the bytes of uploads and batches, mostly in turn, with other frames among them, and a fault at times."""
    encoder = Encoder()
    stream, seq = bytearray(), 1
    for _ in range(rng.randrange(1, 12)):
        batch = []
        for _ in range(rng.choice([1, 1, 1, 4])):
            payload = _payload(rng) * rng.choice([0, 1, 3, 30])
            topic, version = rng.choice(["ipv", "ipv", "töpic", ""]), rng.choice(["", "v1", "v1", "v" + "9" * 63])
            if rng.random() < 0.1:
                topic, version = topic + rng.choice(["\0", "\0a b", "\0ü", "\0v1\0", "\0" + "v" * 65, "\0\x7f"]), ""
            batch.append(Upload(seq, topic, payload, rng.randrange(-(2**63), 2**63), version))
            seq += rng.choice([1] * 12 + [2, 0, -3])
        frame: Frame = batch[0] if len(batch) == 1 else UploadBatch(tuple(batch))
        if rng.random() < 0.05:
            frame = Ping(seq)
        if rng.random() < 0.4:
            stream += encoder.encode(frame, number=1, dictionary=dictionary)
        else:
            stream += encoder.encode(frame)
    if rng.random() < 0.4:
        stream[rng.randrange(len(stream))] ^= 1 << rng.randrange(8)
    return bytes(stream)


def _decoder(data: bytes, dictionary: Dictionary) -> Decoder:
    decoder = Decoder()
    decoder.dictionaries = {1: dictionary}
    decoder.add(data)
    return decoder


def _python_uploads(decoder: Decoder) -> tuple[list[UploadFields], str]:
    found: list[UploadFields] = []
    try:
        while uploads := decoder.uploads(1000, 1 << 30):
            found += uploads
    except FrameError as error:
        return found, str(error)
    return found, ""


def test_native_and_python_decoder_agree_on_random_streams(dictionary: Dictionary) -> None:
    rng = random.Random(5)
    records = faults = 0
    for _ in range(3_000):
        stream = _stream(rng, dictionary)
        expected = _python_uploads(_decoder(stream, dictionary))
        decoder = _decoder(stream, dictionary)
        decoder.has_versions = rng.random() < 0.7
        found, size_bytes = decoder.records(Received, _VALUES, _ALL, 1000, 1 << 30)
        assert [record.seq for record in found] == list(range(1, len(found) + 1))
        as_sent = expected[0][: len(found)]
        assert size_bytes == sum(len(topic.encode()) + len(payload) for _, topic, payload, _ in as_sent)
        assert all(type(record) is Received for record in found)
        assert all((record.device_id, record.epoch, record.received_ms) == _VALUES for record in found)
        rest, fault = _python_uploads(decoder)
        named = [split_version(topic) if decoder.has_versions else (topic, "") for _, topic, _, _ in as_sent]
        assert [(record.topic, record.version) for record in found] == named
        assert [(record.seq, record.payload, record.sent_ms) for record in found] == [
            (seq, payload, sent_ms) for seq, _, payload, sent_ms in as_sent
        ]
        assert (as_sent + rest, fault) == expected
        records += len(found)
        faults += bool(fault)
    assert records > 5_000
    assert faults > 300


def test_a_stream_in_order_is_read_completely(dictionary: Dictionary) -> None:
    encoder = Encoder()
    stream = b"".join(
        encoder.encode(Upload(seq, "ipv", b"feature " * 50, 7), number=1, dictionary=dictionary)
        for seq in range(1, 101)
    )
    decoder = _decoder(stream, dictionary)
    found, _ = decoder.records(Received, _VALUES, _ALL, 1000, 1 << 30)
    assert len(found) == 100
    assert decoder.buffered_bytes == 0
    assert len({id(record.topic) for record in found}) == 1


def test_the_body_of_a_large_upload_is_kept_for_a_store_that_reads_it_instead_of_the_payload(
    dictionary: Dictionary,
) -> None:
    encoder, rng = Encoder(), random.Random(3)
    text = rng.randbytes(10_000).hex().encode()
    upload = Upload(1, "t", text, 7)
    for frame, kept in (
        (encoder.encode(upload), True),
        (encoder.encode(Upload(1, "t", text[:8192], 7)), True),
        (encoder.encode(Upload(1, "t", text[:8191], 7)), False),  # small
        (encoder.encode(Upload(1, "t", rng.randbytes(20_000), 7)), False),  # random bytes are not compressed
        (encoder.encode(Upload(1, "t", rng.randbytes(9_000) + bytes(2_000), 7)), False),  # hardly smaller
        (encoder.encode(Upload(1, "t", bytes(1 << 20), 7)), False),  # a reader would decompress a thousand times of it
        (encoder.encode(upload, number=1, dictionary=dictionary), False),
        (encoder.encode(UploadBatch((upload, Upload(2, "t", text, 7)))), False),
    ):
        decoder = _decoder(frame, dictionary)
        found, size_bytes = decoder.records(Received, _VALUES, _ALL, 1000, 1 << 30)
        assert found[0].packed == (frame[8:] if kept else b"")
        assert size_bytes == sum(len(record.payload) + len(record.packed) + 1 for record in found)


def test_the_bounds_stop_it_between_frames(dictionary: Dictionary) -> None:
    stream = b"".join(Encoder().encode(Upload(seq, "t", bytes(100), 0)) for seq in range(1, 11))
    for limit, limit_bytes, seqs, count in (
        (3, 1 << 20, _ALL, 3),
        (100, 250, _ALL, 3),  # the third crosses it
        (100, 1 << 20, (1, 4), 4),
        (100, 1 << 20, (2, 9), 0),
        (0, 1 << 20, _ALL, 0),
    ):
        decoder = _decoder(stream, dictionary)
        found, _ = decoder.records(Received, _VALUES, seqs, limit, limit_bytes)
        assert [record.seq for record in found] == list(range(1, count + 1))
        assert len(decoder.uploads(100, 1 << 20)) == 10 - count


def test_a_body_beyond_the_bound_is_not_decompressed() -> None:
    called = []

    def decompress(*arguments: object) -> bytes:
        called.append(arguments)
        return b""

    packed = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(5000))
    stream = struct.pack(">IBBH", len(packed), 3, 1, 0) + packed
    limits = (4999, 10, 1 << 20)
    assert _core.scan_uploads(stream, 0, {0: decompress}, limits, Received, _VALUES, _ALL) == ([], 0, 0, None)
    assert called == []
    assert _core.scan_uploads(stream, 0, {0: decompress}, (5000, 10, 1 << 20), Received, _VALUES, _ALL) == (
        [],
        0,
        0,
        None,
    )
    assert len(called) == 1  # what it returned is not the size that the frame states


class CountingDecompressor:
    """A zstd decompressor that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._decompress = zstandard.ZstdDecompressor().decompress

    def decompress(self, *arguments: Any, **options: Any) -> bytes:
        self.calls += 1
        return self._decompress(*arguments, **options)


@pytest.mark.parametrize("is_batch", [True, False])
def test_uploads_out_of_turn_are_decompressed_once(is_batch: bool) -> None:
    uploads = [Upload(seq, "t", b"feature " * 100, 0) for seq in (1, 2, 3)]  # 2 is due, so the others are not
    frames: list[Frame] = [UploadBatch(tuple(uploads))] if is_batch else list(uploads)
    stream = b"".join(map(Encoder().encode, frames))
    counting = CountingDecompressor()
    decoder = Decoder(decompressor=cast("zstandard.ZstdDecompressor", counting))
    decoder.add(stream)
    assert decoder.records(Received, _VALUES, (2, 2), 10, 1 << 20) == ([], 0)
    assert counting.calls == 1
    assert decoder.records(Received, _VALUES, (2, 2), 10, 1 << 20) == ([], 0)
    assert [fields[0] for fields in decoder.uploads(10, 1 << 20)] == [1, 2, 3]
    assert counting.calls == len(frames)
    assert decoder.unpacked_bytes > 3 * 800


def test_a_waiting_decoder_releases_its_decompressed_bytes() -> None:
    """A connection may be paused before an upload that is not due: only its received bytes are in the budget."""
    frame = Encoder().encode(Upload(1, "t", bytes(4 << 20), 0))
    decoder = Decoder()
    decoder.add(frame)
    with traced_memory():
        assert decoder.records(Received, _VALUES, (2, 2), 10, 1 << 20) == ([], 0)
        assert tracemalloc.get_traced_memory()[1] > 4 << 20
        assert decoder.trim() == len(frame)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    assert [fields[0] for fields in decoder.uploads(10, 1 << 20)] == [1]


def test_a_link_of_the_chain_is_that_of_the_checksums() -> None:
    rng = random.Random(11)
    for _ in range(2_000):
        chain, sent_ms = rng.randrange(CHAIN_MODULUS), rng.randrange(-(2**63), 2**63)
        topic = "".join(rng.choices("ab/ö\U0001f600\0", k=rng.randrange(20)))
        payload = rng.randbytes(rng.choice([0, 1, 15, 64, 300, 5000]))
        expected = next_link(chain, row_checksum(topic, payload, sent_ms))
        assert _core.next_upload_link(chain, topic, payload, sent_ms) == expected
    for arguments in ((0, "t", b""), (0, b"t", b"", 0), (0, "t", "", 0), (-1, "t", b"", 0), (0, "t", b"", 2**63)):
        with pytest.raises((TypeError, OverflowError)):
            _core.next_upload_link(*arguments)


@pytest.mark.parametrize("kind", [3, 19])
@pytest.mark.parametrize("flags", [0, 1])
def test_a_body_of_no_bytes_is_left_to_the_decoder_in_python(kind: int, flags: int) -> None:
    body = zstandard.ZstdCompressor(write_content_size=True).compress(b"") if flags else b""
    decoder = Decoder()
    decoder.add(struct.pack(">IBBH", len(body), kind, flags, 0) + body)
    assert decoder.records(Received, _VALUES, _ALL, 10, 1 << 20) == ([], 0)
    with pytest.raises(FrameError, match="body of 0 bytes"):
        decoder.next()


def test_every_truncation_is_an_incomplete_frame(dictionary: Dictionary) -> None:
    stream = Encoder().encode(Upload(1, "ipv", b"feature " * 100, 7), number=1, dictionary=dictionary)
    for end in range(len(stream)):
        decoder = _decoder(stream[:end], dictionary)
        assert decoder.records(Received, _VALUES, _ALL, 10, 1 << 20) == ([], 0)
        assert decoder.buffered_bytes == end
        decoder.add(stream[end:])
        assert len(decoder.records(Received, _VALUES, _ALL, 10, 1 << 20)[0]) == 1


def test_a_readers_buffer_may_be_used_again_after_trim() -> None:
    shared = bytearray(4096)
    frames = [Encoder().encode(Upload(seq, "t", random.Random(seq).randbytes(300), 0)) for seq in (1, 2)]
    stream, decoder = b"".join(frames), Decoder()
    found: list[Received] = []
    for start in range(0, len(stream), 100):
        part = stream[start : start + 100]
        shared[: len(part)] = part
        decoder.add(memoryview(shared)[: len(part)])
        found += decoder.records(Received, _VALUES, (len(found) + 1, 10), 10, 1 << 20)[0]
        decoder.trim()
        shared[:] = bytes(len(shared))
    assert [record.payload for record in found] == [random.Random(seq).randbytes(300) for seq in (1, 2)]


def test_an_interrupt_in_the_decompressor_is_raised(dictionary: Dictionary) -> None:
    def decompress(*_: object) -> bytes:
        raise KeyboardInterrupt

    stream = Encoder().encode(Upload(1, "t", b"feature " * 100, 0))
    with pytest.raises(KeyboardInterrupt):
        _core.scan_uploads(stream, 0, {0: decompress}, (1 << 20, 10, 1 << 20), Received, _VALUES, _ALL)


@pytest.mark.parametrize(
    "arguments",
    [
        (b"", 0, {}, (1, 1, 1), Received, _VALUES),
        (b"", 1, {}, (1, 1, 1), Received, _VALUES, _ALL),
        (b"", -1, {}, (1, 1, 1), Received, _VALUES, _ALL),
        (b"", 0, [], (1, 1, 1), Received, _VALUES, _ALL),
        (b"", 0, {}, (1, 1), Received, _VALUES, _ALL),
        (b"", 0, {}, (1, 1, 1), list, _VALUES, _ALL),
        (b"", 0, {}, (1, 1, 1), Received, ("device", b"epoch", 1), _ALL),
        (b"", 0, {}, (1, 1, 1), Received, _VALUES, [1, 2]),
        ("text", 0, {}, (1, 1, 1), Received, _VALUES, _ALL),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, ValueError)):
        _core.scan_uploads(*arguments)  # type: ignore[arg-type]

"""The C++ rows of a transaction and the C++ encoder of values, against their meaning in Python."""

import enum
import random
import resource
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.base import plain
from walle.engine_ext._core import RowBatch, packed_value
from walle.pipeline.features import checksums
from walle.pipeline.features.put import Put
from walle.pipeline.features.store_schema import ROW_OVERHEAD_BYTES, is_sound_feature

MANY = 1 << 40
_TEXT = st.text(st.characters(codec="utf-8"))
_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | _TEXT | st.binary()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner) | st.tuples(inner, inner), max_leaves=20
)


def new_batch(
    *, used: int = 0, upload_bytes: int = MANY, rows: int = MANY, size_bytes: int = MANY, due_rows: int = MANY
) -> RowBatch:
    return RowBatch(rows, size_bytes, used, upload_bytes, due_rows)


@given(_VALUES)
def test_a_value_is_encoded_as_walle_plain_encodes_it(value: object) -> None:
    assert packed_value(value) == plain.encode(value)


@pytest.mark.parametrize("length", [0, 15, 16, 31, 32, 255, 256, 65535, 65536])
def test_lengths_at_which_the_encoding_changes(length: int) -> None:
    for value in ("x" * length, "é" * length, "𝄞" * length, b"x" * length, [None] * length):
        assert packed_value(value) == plain.encode(value)
    mapping = {str(key): key for key in range(length)}
    assert packed_value(mapping) == plain.encode(mapping)


@pytest.mark.parametrize("power", range(65))
def test_numbers_at_which_the_encoding_changes(power: int) -> None:
    for number in (2**power - 1, 2**power, -(2**power), -(2**power) - 1):
        found = packed_value(number)
        assert found is None if not -(2**63) <= number < 2**64 else found == plain.encode(number)


class Kind(enum.StrEnum):
    A = "a"


@pytest.mark.parametrize(
    "value",
    [2**64, {1: 2}, {b"x": 2}, {(1, 2): 3}, "\ud800", {"\ud800": 1}, memoryview(b"x"), Kind.A, object(), [[{"a": 1j}]]],
)
def test_python_decides_on_other_values(value: object) -> None:
    assert packed_value(value) is None


def test_rows_have_the_checksums_and_the_chain_of_checksums_py() -> None:
    rng = random.Random(3)
    topics = ["t", "scenario/ipv", "é𝄞" * 40, str(Kind.A)]
    batch = new_batch()
    expected: list[tuple[Put, int, int]] = []
    for index in range(400):
        ts_ms, position = rng.choice([0, 5, 2**40, -7]), rng.choice([-1, 0, 2**50])
        puts = [
            Put(
                rng.choice(topics),
                rng.randbytes(rng.choice([0, 1, 63, 64, 65, 1300, 9000])),
                rng.random() < 0.5,
                rng.choice(["", "v3", "v44"]),
            )
            for _ in range(index % 4)
        ]
        if puts:
            expected += [(put, ts_ms, position) for put in puts]
            if len(puts) == 1:  # one payload is in the batch's own memory, more refer to their bytes
                put, value = puts[0], rng.choice([None, "é", {"x": [1, b"y" * 5000]}, b"z" * 9000])
                expected[-1] = (Put(put.topic, plain.encode(value), put.upload), ts_ms, position)
                assert batch.append_value(put.topic, value, put.upload, ts_ms / 1000, position, MANY) is False
            else:
                assert batch.append_all(puts, ts_ms / 1000, position) is False
            assert len(batch) == len(expected)
    one_topic, found = batch.feature_parameters(0, len(batch))
    assert not one_topic
    one_topic, uploads, seq, chain = batch.upload_parameters(0, batch.uploads, 10, 2**61 - 2)
    assert not one_topic
    links, expected_seq = 2**61 - 2, 10
    for put, ts_ms, position in expected:
        sum_ = checksums.row_checksum(put.topic, put.payload, ts_ms)
        assert found[:5] == [put.topic, ts_ms, position, put.payload, checksums.feature_checksum(sum_, position)]
        del found[:5]
        if put.upload:
            links = checksums.next_link(links, sum_)
            expected_seq += 1
            origin = [put.topic, put.version, zlib.crc32(put.version.encode())]
            assert uploads[:8] == [*origin, expected_seq, put.payload, ts_ms, sum_, links]
            del uploads[:8]
    assert (found, uploads, chain) == ([], [], links)
    assert seq == 10 + batch.uploads
    sizes = [(len(put.topic) + len(put.payload) + ROW_OVERHEAD_BYTES, put.upload) for put, _, _ in expected]
    assert batch.size_bytes == sum(size for size, _ in sizes)
    assert batch.upload_bytes == sum(size for size, upload in sizes if upload)
    assert batch.topics() == {
        topic: sum(put.topic == topic for put, _, _ in expected) for topic in {put.topic for put, _, _ in expected}
    }


def test_a_topic_that_all_rows_have_is_the_first_parameter() -> None:
    topic, equal = "topic-1", "topic-" + str(1)  # another object
    batch = new_batch()
    rows = [(topic, True), (topic, True), ("other", False), (topic, True), (equal, True)]
    for index, (name, upload) in enumerate(rows):
        batch.append_all([Put(name, bytes([index]), upload)], index / 1000, index)
    for first, count, expected in (
        (0, 2, True),
        (0, 1, True),
        (1, 2, False),
        (0, 0, False),
        (2, 1, True),
        (3, 2, False),
    ):
        one_topic, found = batch.feature_parameters(first, count)
        assert one_topic is expected
        topics = [found.pop(0)] * count if one_topic else found[::5]
        assert topics == [name for name, _ in rows[first : first + count]]
        assert found[0 if one_topic else 1 :: 4 if one_topic else 5] == list(range(first, first + count))
        assert found[1 if one_topic else 2 :: 4 if one_topic else 5] == list(range(first, first + count))
    one_topic, found, seq, chain = batch.upload_parameters(0, 3, 7, 17)  # parameters of rows 0, 1 and 3
    assert (one_topic, len(found), found[:3], found[3::5]) == (True, 18, [topic, "", 0], [8, 9, 10])
    one_topic, found, *_ = batch.upload_parameters(3, 1, seq, chain)
    assert (one_topic, found[:4]) == (True, [topic, "", 0, 11])
    one_topic, found, *_ = batch.upload_parameters(2, 2, 9, 17)
    assert (one_topic, found[::8], found[3::8]) == (False, [topic, topic], [10, 11])


def test_uploads_of_one_topic_and_two_versions_share_neither() -> None:
    batch, version, other = new_batch(), "v1", "v2"
    batch.append_all([Put("t", b"", True, one) for one in (version, version, other)], 1.0, -1)
    shared, found, *_ = batch.upload_parameters(0, 2, 0, 17)
    assert (shared, len(found), found[:4]) == (True, 13, ["t", "v1", zlib.crc32(b"v1"), 1])
    shared, found, *_ = batch.upload_parameters(0, 3, 0, 17)
    assert (shared, len(found), found[1::8]) == (False, 24, ["v1", "v1", "v2"])
    with pytest.raises(TypeError, match="a version of type str, bytes and int"):
        batch.append_all([("t", b"", True, 3)], 1.0, -1)  # type: ignore[list-item]


def test_parts_of_the_uploads_continue_the_chain() -> None:
    batch = new_batch()
    batch.append_all([Put("t", bytes([index]), index % 3 != 0) for index in range(50)], 1.0, -1)
    _, whole, *end = batch.upload_parameters(0, batch.uploads, 0, 17)
    _, first, seq, chain = batch.upload_parameters(0, 20, 0, 17)
    _, rest, *rest_end = batch.upload_parameters(20, batch.uploads - 20, seq, chain)
    assert (first[0], rest[0]) == ("t", "t")
    assert (first + rest[3:], rest_end) == (whole, end)
    with pytest.raises(IndexError):
        batch.feature_parameters(40, 11)
    with pytest.raises(IndexError):
        batch.upload_parameters(batch.uploads + 1, 0, 0, 0)


def test_rows_move_to_the_end_of_another_batch() -> None:
    both, first, second = new_batch(), new_batch(), new_batch()
    for batch, puts in ((first, [Put("a", b"1", True)]), (second, [Put("b", b"2", False), Put("c", b"3", True)])):
        batch.append_all(puts, 1.0, 4)
        both.append_all(puts, 1.0, 4)
    first.take(second)
    first.take(first)
    assert (len(second), second.uploads, second.size_bytes, second.upload_bytes) == (0, 0, 0, 0)
    assert first.feature_parameters(0, 3) == both.feature_parameters(0, 3)
    assert first.upload_parameters(0, 2, 0, 1) == both.upload_parameters(0, 2, 0, 1)
    assert (first.size_bytes, first.upload_bytes) == (both.size_bytes, both.upload_bytes)


def test_a_row_beyond_a_limit_is_refused_and_leaves_nothing() -> None:
    row_bytes = ROW_OVERHEAD_BYTES + 2
    put, local = Put("t", b"x", True), Put("t", b"x", False)
    batch = new_batch(rows=2)
    assert [batch.append_all([put], 0.0, 0) for _ in range(3)] == [False, False, None]
    batch = new_batch(size_bytes=row_bytes)
    assert [batch.append_all([put], 0.0, 0) for _ in range(2)] == [False, None]
    batch = new_batch(upload_bytes=row_bytes)
    assert [batch.append_all([one], 0.0, 0) for one in (put, put, local, put)] == [False, None, False, None]
    assert (batch.uploads, batch.upload_bytes, batch.size_bytes) == (1, row_bytes, 2 * row_bytes)
    assert batch.append_all([put], 0.0, 0, True) is False
    assert len(batch) == 3
    assert new_batch(upload_bytes=1).append_all([put], 0.0, 0) is False  # the first is always accepted
    assert new_batch(used=1, upload_bytes=1).append_all([put], 0.0, 0) is None
    batch = new_batch(rows=0)
    assert batch.append_value("t", 1, True, 0.0, -1, 100) is None
    batch.set_limits(1, 1, 0, 0, 2)
    assert batch.append_value("t", 1, False, 0.0, -1, 100) is False
    assert len(batch) == 1


def test_a_row_is_due_from_a_number_of_rows_on() -> None:
    batch = new_batch(due_rows=2)
    assert [batch.append_value("t", 1, True, 0.0, -1, 100) for _ in range(3)] == [False, True, True]
    batch.set_limits(MANY, MANY, 0, MANY, 5)
    assert [batch.append_all([Put("t", b"1")], 0.0, 0) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("seed", range(20))
def test_memory_of_payloads_is_used_again_and_each_row_keeps_its_own(seed: int) -> None:
    rng = random.Random(seed)
    batch, other = new_batch(), new_batch()
    payloads: dict[int, list[bytes]] = {id(batch): [], id(other): []}
    for _ in range(200):
        chosen = rng.choice([batch, other])
        kept = payloads[id(chosen)]
        action = rng.random()
        if action < 0.03:
            chosen.clear()
            kept.clear()
            assert (len(chosen), chosen.uploads, chosen.size_bytes, chosen.upload_bytes) == (0, 0, 0, 0)
        elif action < 0.08:
            batch.take(other)
            payloads[id(batch)] += payloads[id(other)]
            payloads[id(other)].clear()
        elif action < 0.2:
            chosen.set_limits(MANY, MANY, 1, 1, MANY)
            assert chosen.append_value("t", [rng.randbytes(8000)], True, 1.0, 2, MANY) is None
            chosen.set_limits(MANY, MANY, 0, MANY, MANY)
        else:
            data = rng.randbytes(rng.choice([0, 1, 1300, 8000, 8188, 8192, 20_000]))
            value = rng.choice([data, [data], {"x": data}])
            assert chosen.append_value("t", value, rng.random() < 0.5, 1.0, 2, MANY) is False
            kept.append(plain.encode(value))
    for chosen in (batch, other):
        assert [row[3] for row in _feature_rows(chosen)] == payloads[id(chosen)]
        _check_checksums(chosen)


def test_parameters_that_are_still_used_keep_their_payloads() -> None:
    batch = new_batch()
    batch.append_value("t", ["first"], True, 1.0, 2, MANY)
    rows = _feature_rows(batch)
    batch.clear()
    batch.append_value("t", ["later"], True, 1.0, 2, MANY)
    assert rows[0][3] == plain.encode(["first"])
    assert _feature_rows(batch)[0][3] == plain.encode(["later"])


@pytest.mark.parametrize("size_bytes", [0, 1, 255, 256, 65535, 65536, 1 << 20])
def test_a_value_of_bytes_is_copied_behind_its_head(size_bytes: int) -> None:
    batch = new_batch()
    value = random.Random(1).randbytes(size_bytes)
    assert batch.append_value("t", value, True, 1.0, 2, MANY) is False
    assert batch.size_bytes == batch.upload_bytes == len(plain.encode(value)) + 1 + ROW_OVERHEAD_BYTES
    assert _feature_rows(batch)[0][3] == plain.encode(value)
    _check_checksums(batch)


def test_refused_values_leave_no_memory_behind() -> None:
    batch = new_batch(used=1, upload_bytes=1)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = bytes(8000)
    for value in (data, [data]):
        for _ in range(15_000):
            assert batch.append_value("t", value, True, 1.0, 2, MANY) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 50_000


def test_a_call_with_a_wrong_output_adds_none() -> None:
    batch = new_batch()
    good = Put("t", b"x", True)
    for wrong in (("t", bytearray(b"x"), True), (b"t", b"x", True), ("\ud800", b"x", True), ("t", b"x"), None):
        with pytest.raises((TypeError, UnicodeEncodeError)):
            batch.append_all([good, wrong], 0.0, 0)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="time in seconds"):
        batch.append_all([good], float("nan"), 0)
    assert (len(batch), batch.uploads, batch.size_bytes, batch.upload_bytes) == (0, 0, 0, 0)
    assert batch.append_value("t", "xx", True, 0.0, -1, 2) is None  # 3 bytes


def _feature_rows(batch: RowBatch) -> list[list[object]]:
    """Return topic, ts_ms, position, payload and checksum of each row."""
    one_topic, found = batch.feature_parameters(0, len(batch))
    topics = [found.pop(0)] if one_topic else []
    columns = 4 if one_topic else 5
    return [topics + found[first : first + columns] for first in range(0, len(found), columns)]


def _check_checksums(batch: RowBatch) -> None:
    for topic, ts_ms, position, payload, checksum in _feature_rows(batch):
        assert isinstance(payload, bytes | bytearray)
        assert is_sound_feature(topic, bytes(payload), ts_ms, position, checksum), (topic, payload)


def test_a_row_after_a_refused_one_has_its_own_checksum() -> None:
    batch = new_batch(upload_bytes=100)
    assert batch.append_all([Put("first", b"1")], 1.0, 5) is False
    assert batch.append_all([Put("larger", b"2" * 500)], 1.0, 5) is None
    assert batch.append_all([Put("first", b"3")], 1.0, 5) is False
    with pytest.raises(TypeError, match="of type str, int and str"):
        batch.append_all([Put("larger", b"4"), Put("larger", 5)], 1.0, 5)  # type: ignore[arg-type]
    assert batch.append_all([Put("first", b"6", upload=False)], 1.0, 5) is False
    assert len(batch) == 3
    _check_checksums(batch)


@pytest.mark.parametrize("rows_before", [0, 1])
def test_a_row_after_taken_ones_has_its_own_checksum(rows_before: int) -> None:
    batch, later = new_batch(), new_batch()
    batch.append_all([Put("first", b"1")] * rows_before, 1.0, 5)
    later.append_all([Put("second", b"2")], 1.0, 5)
    batch.take(later)
    assert batch.append_all([Put("second", b"3")], 1.0, 5) is False
    assert len(batch) == rows_before + 2
    later.append_all([Put("third", b"4"), Put("third", b"5")], 1.0, 5)
    _check_checksums(batch)
    _check_checksums(later)

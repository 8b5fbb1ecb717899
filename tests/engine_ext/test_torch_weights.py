"""The reader of PyTorch checkpoints: made files, damaged ones and hostile ones; no PyTorch is needed."""

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sim.checkpoints import MAGIC, PROTOCOL, SIZES, Storage, checkpoint, dumps, tensor
from walle.engine_ext.errors import ModelError
from walle.engine_ext.torch_weights import read_weights

ARRAYS: dict[str, NDArray[Any]] = {
    "conv.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2),
    "bn.steps": np.asarray(7, np.int64),
    "fc.bias": np.asarray([0.5, -1.0], np.float32),
}


def test_tensors_are_read_with_their_names_types_and_shapes() -> None:
    found = read_weights(checkpoint(ARRAYS))
    assert found.keys() == ARRAYS.keys()
    for name, expected in ARRAYS.items():
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), max_size=4), st.randoms(use_true_random=False))
def test_a_tensor_may_be_a_turned_view_of_its_storage(shape: list[int], random: Any) -> None:
    whole = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.float32).reshape(shape)
    turned = whole.transpose(random.sample(range(len(shape)), len(shape)))
    storage = Storage("FloatStorage", "a", whole.size)
    view = tensor(storage, 0, turned.shape, tuple(step // 4 for step in turned.strides))
    np.testing.assert_array_equal(read_weights(checkpoint({"a": whole}, {"a": view}))["a"], turned)


@pytest.mark.parametrize(
    ("module", "name"),
    [("os", "system"), ("builtins", "eval"), ("torch._utils", "_rebuild_parameter"), ("torch", "HalfStorage")],
)
def test_a_name_that_is_not_of_tensors_is_refused_and_nothing_is_called(tmp_path: Path, module: str, name: str) -> None:
    call = pickle.GLOBAL + f"{module}\n{name}\n".encode() + pickle.UNICODE
    call += f"touch {tmp_path / 'called'}\n".encode() + pickle.TUPLE1 + pickle.REDUCE + pickle.STOP
    with pytest.raises(ModelError, match=rf"asks for {module}\.{name}"):
        read_weights(dumps(MAGIC) + dumps(PROTOCOL) + dumps(SIZES) + b"\x80\x02" + call)
    assert not (tmp_path / "called").exists()


def nested(depth: int) -> Any:
    value: Any = ()
    for _ in range(depth):
        value = (value, value)
    return value


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a": nested(60)}, "is not a dictionary of at most"),
        ({"a": 1}, "is not a dictionary of at most"),
        ({"a": tensor(Storage("FloatStorage", "a", 4), 2, (3,), (1,))}, "reaches beyond its storage"),
        ({"a": tensor(Storage("FloatStorage", "a", 4), 0, (2,), (9,))}, "reaches beyond its storage"),
        ({"a": tensor(Storage("FloatStorage", "a", 4), 0, (1 << 40,), (0,))}, "reaches beyond its storage"),
        ({"a": tensor(Storage("FloatStorage", "a", 4), -1, (2,), (1,))}, "are not numbers"),
        ({"a": tensor(Storage("FloatStorage", "a", 4), 0, (2, 2), (1,))}, "2 axes and 1 strides"),
        ({"a": tensor(Storage("FloatStorage", "a", 4), 0, nested(60), ())}, "are not numbers"),
        ({"a": tensor(Storage("FloatStorage", "a", 4, view=("x", 0, 1)), 0, (2,), (1,))}, "one that is a view"),
        ({"a": tensor(Storage("FloatStorage", "a", 1 << 40), 0, (2,), (1,))}, "cut off, or is not of the size"),
        ({"a": tensor(Storage("FloatStorage", "b", 4), 0, (2,), (1,))}, "other storages than it has"),
    ],
)
def test_hostile_tensors_are_refused(tensors: Any, message: str) -> None:
    arrays = {"a": np.zeros(4, np.float32)}
    with pytest.raises(ModelError, match=message):
        read_weights(checkpoint(arrays, tensors))


def test_one_storage_is_not_copied_for_thousands_of_tensors() -> None:
    whole = np.zeros((1000, 1000), np.float32)
    turned = tensor(Storage("FloatStorage", "a", whole.size), 0, (1000, 1000), (1, 1000))
    with pytest.raises(ModelError, match="more than 4 times the values of its storages"):
        read_weights(checkpoint({"a": whole}, {str(number): turned for number in range(5_000)}))  # 20 GB


def get(index: int) -> bytes:
    return pickle.BINGET + bytes([index])


def put(index: int) -> bytes:
    return pickle.BINPUT + bytes([index])


REBUILD = pickle.GLOBAL + b"torch._utils\n_rebuild_tensor_v2\n"
LONG_TUPLE = pickle.MARK + 60_000 * pickle.NONE + pickle.TUPLE


@pytest.mark.parametrize(
    ("setup", "repeated", "message"),
    [
        (LONG_TUPLE + put(0), REBUILD + get(0) + pickle.REDUCE, "at most 7 arguments"),
        (
            LONG_TUPLE + put(1) + pickle.NONE + put(2) + pickle.MARK + 2 * get(2) + 2 * get(1) + pickle.TUPLE + put(0),
            REBUILD + get(0) + pickle.REDUCE,
            "not tuples of at most 8 numbers",
        ),
    ],
    ids=["arguments", "shape"],
)
def test_a_long_tuple_is_refused_at_its_first_call(setup: bytes, repeated: bytes, message: str) -> None:
    hostile = b"\x80\x02" + setup + repeated + pickle.STOP
    with pytest.raises(ModelError, match=message):
        read_weights(dumps(MAGIC) + dumps(PROTOCOL) + dumps(SIZES) + hostile)


def test_a_long_text_that_is_compared_by_many_instructions_is_refused() -> None:
    text = pickle.BINUNICODE + struct.pack("<I", 2_000) + 2_000 * b"a"
    hostile = b"\x80\x02" + pickle.EMPTY_DICT + text + put(0) + pickle.NONE + pickle.SETITEM
    hostile += text + put(1) + pickle.NONE + pickle.SETITEM + 20 * (get(1) + pickle.NONE + pickle.SETITEM) + pickle.STOP
    with pytest.raises(ModelError, match="a text of more than 1000 characters"):
        read_weights(dumps(MAGIC) + dumps(PROTOCOL) + dumps(SIZES) + hostile)


def test_a_pickle_makes_no_more_objects_than_many_tensors_need() -> None:
    hostile = b"\x80\x02" + 1_000_000 * pickle.EMPTY_DICT + pickle.STOP
    with pytest.raises(ModelError, match="more than 1000000 instructions"):
        read_weights(dumps(MAGIC) + dumps(PROTOCOL) + dumps(SIZES) + hostile)


def test_a_checkpoint_for_which_there_is_no_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "frombuffer", fail)
    with pytest.raises(ModelError, match="more memory than this process has"):
        read_weights(checkpoint(ARRAYS))


@pytest.mark.parametrize("ending", [pickle.SETITEM, pickle.SETITEMS])
def test_a_key_that_takes_exponential_time_to_hash_is_refused(ending: bytes) -> None:
    key = pickle.EMPTY_TUPLE + pickle.BINPUT + b"\0"
    for number in range(60):
        key += 2 * (pickle.BINGET + bytes([number])) + pickle.TUPLE2 + pickle.BINPUT + bytes([number + 1])
    mark = pickle.MARK if ending == pickle.SETITEMS else b""
    hostile = b"\x80\x02" + pickle.EMPTY_DICT + mark + key + pickle.NONE + ending + pickle.STOP
    with pytest.raises(ModelError, match="keys are not texts"):
        read_weights(dumps(MAGIC) + dumps(PROTOCOL) + dumps(SIZES) + hostile)


@pytest.mark.parametrize(
    "instruction",
    [
        pickle.NEWOBJ, pickle.INST, pickle.OBJ, pickle.STACK_GLOBAL, pickle.EXT1 + b"\1",
        pickle.BYTEARRAY8 + b"\xff" * 8, pickle.BINBYTES8 + b"\xff" * 8, pickle.DUP, pickle.POP_MARK, pickle.FROZENSET,
    ],
)  # fmt: skip
def test_an_instruction_that_tensors_do_not_need_is_refused(instruction: bytes) -> None:
    hostile = b"\x80\x02" + 4 * pickle.EMPTY_DICT + instruction + pickle.STOP
    with pytest.raises(ModelError, match="KeyError"):
        read_weights(dumps(MAGIC) + dumps(PROTOCOL) + dumps(SIZES) + hostile)


def test_attributes_are_dropped_and_a_large_index_needs_no_memory() -> None:
    """PyTorch's dictionary has an attribute; the memory of the reader in C would have 2^31 places for the index."""
    body = b"\x80\x02" + pickle.EMPTY_DICT + pickle.LONG_BINPUT + struct.pack("<I", (1 << 31) - 1)
    body += pickle.EMPTY_DICT + pickle.BUILD + pickle.STOP
    assert read_weights(dumps(MAGIC) + dumps(PROTOCOL) + dumps(SIZES) + body + dumps([])) == {}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255), st.booleans())
def test_a_damaged_checkpoint_is_read_or_refused(place: int, value: int, is_cut: bool) -> None:
    data = bytearray(checkpoint(ARRAYS))
    place %= len(data)
    if is_cut:
        del data[place:]
    else:
        data[place] = value
    try:
        read_weights(bytes(data))
    except ModelError:
        return
    assert not is_cut


def test_other_files_are_refused() -> None:
    for data in (b"", b"PK\3\4", dumps([1]), dumps(1) + dumps(PROTOCOL) + dumps(SIZES)):
        with pytest.raises(ModelError, match=r"is (not a|a damaged) PyTorch checkpoint"):
            read_weights(data)

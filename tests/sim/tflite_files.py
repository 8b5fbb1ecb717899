"""Made .tflite files, from the numbers of the fields in TensorFlow's schema.fbs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
from numpy.typing import NDArray

TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.int32): 2, np.dtype(np.int8): 9}


@dataclass
class Tensor:
    """A tensor of a file; `data` None: it is computed. `shape` and `kind` are those of `data` if not given."""

    name: str
    data: NDArray[Any] | None = None
    shape: tuple[int, ...] | None = None
    kind: int | None = None
    buffer: int | None = None  # number of the buffer, for one that several tensors have


@dataclass
class Operator:
    """An operator by the number of its code in the schema. `options`: field → (struct's code, value)."""

    code: int
    inputs: Sequence[int]
    outputs: Sequence[int]
    options: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    custom: str = ""


def tflite(
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    inputs: Sequence[int] = (0,),
    outputs: Sequence[int] = (1,),
) -> bytes:
    """Return the bytes of a file with one subgraph."""
    to = flatbuffers.Builder(1024)
    buffers = [_table(to, {})]
    made = []
    for one in tensors:
        number = one.buffer or 0
        if one.data is not None:
            number = len(buffers)
            buffers.append(_table(to, {0: ("offset", to.CreateByteVector(one.data.tobytes()))}))
        shape = one.shape if one.shape is not None else one.data.shape if one.data is not None else ()
        kind = one.kind if one.kind is not None else 0 if one.data is None else TYPES[one.data.dtype]
        fields: dict[int, tuple[str, float]] = {0: ("offset", _numbers(to, shape)), 1: ("b", kind), 2: ("I", number)}
        made.append(_table(to, fields | {3: ("offset", to.CreateString(one.name))}))
    codes = []
    steps = []
    for number, step in enumerate(operators):
        custom: dict[int, tuple[str, float]] = {1: ("offset", to.CreateString(step.custom))} if step.custom else {}
        codes.append(_table(to, {0: ("b", min(step.code, 127)), **custom, 3: ("i", step.code)}))
        found: dict[int, tuple[str, float]] = {
            0: ("I", number),
            1: ("offset", _numbers(to, step.inputs)),
            2: ("offset", _numbers(to, step.outputs)),
            4: ("offset", _table(to, step.options)),
        }
        steps.append(_table(to, found))
    graph = _table(to, {
        0: ("offset", _offsets(to, made)),
        1: ("offset", _numbers(to, inputs)),
        2: ("offset", _numbers(to, outputs)),
        3: ("offset", _offsets(to, steps)),
    })  # fmt: skip
    root = _table(to, {
        0: ("I", 3),
        1: ("offset", _offsets(to, codes)),
        2: ("offset", _offsets(to, [graph])),
        4: ("offset", _offsets(to, buffers)),
    })  # fmt: skip
    to.Finish(root, b"TFL3")
    return bytes(to.Output())


def _table(to: flatbuffers.Builder, fields: Mapping[int, tuple[str, float]]) -> int:
    to.StartObject(16)
    for number, (code, value) in fields.items():
        match code:
            case "offset":
                to.PrependUOffsetTRelativeSlot(number, int(value), 0)
            case "b":
                to.PrependInt8Slot(number, int(value), -128)
            case "I":
                to.PrependUint32Slot(number, int(value), 2**32 - 1)
            case "i":
                to.PrependInt32Slot(number, int(value), -(2**31))
            case _:
                to.PrependFloat32Slot(number, value, -1e30)
    return int(to.EndObject())


def _numbers(to: flatbuffers.Builder, numbers: Sequence[int]) -> int:
    return int(to.CreateNumpyVector(np.asarray(numbers, np.int32)))


def _offsets(to: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    to.StartVector(4, len(offsets), 4)
    for one in reversed(offsets):
        to.PrependUOffsetTRelative(one)
    return int(to.EndVector())

"""Mutations of hostile ONNX files, and of some of onnx's own node tests, each converted and opened.

python -m tests.sim.hostile_onnx --times 2 --seed 1       # two mutations of each file

Prints a line of JSON at the end. What ends the process that converts is counted as refused; this process, whose memory
is limited, opens what was converted, and ends with an error where a failure has no type. It prints the name of each
file before it, so that the last one is known.
"""

import argparse
import json
import random
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, Message
from onnx import defs

from tests.engine_ext.hostile_onnx import FILES
from tests.sim.onnx_suite import all_cases, load_case, quiet
from walle.engine_ext.conversion import ConvertLimits
from walle.engine_ext.conversion.converter import Converter
from walle.engine_ext.session import load
from walle.errors import EngineError

_LIMITS = ConvertLimits(memory_bytes=256 << 20, cpu_s=5, wall_s=30)
_MEMORY_BYTES = 8 << 30  # limit of this process's address space
_EACH_CASE = 30  # every 30th of the node tests
_INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with a few of them changed, inserted, removed or repeated."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(made) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            made[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            made[at : at + 1] = bytes([rng.choice(_INTERESTING)])
        elif kind == 2:
            made[at:at] = bytes(rng.choices(_INTERESTING, k=rng.randint(1, 9)))
        elif kind == 3:
            del made[at : at + rng.randint(1, 8)]
        else:
            made[at:at] = made[at : at + rng.randint(1, 64)]
    return bytes(made)


def changed(data: bytes, rng: random.Random) -> bytes:
    """Return the model with a few of its fields changed: a message that is whole, of a model that is not."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return mutated(data, rng)
    for _ in range(rng.randint(1, 3)):
        _change(rng.choice(list(_messages(model))), rng)
    return bytes(model.SerializeToString())


def _messages(message: Message) -> Iterator[Message]:
    """Yield a message and those within it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.is_repeated else [value]:
                yield from _messages(one)


def _change(message: Any, rng: random.Random) -> None:
    """Change, repeat or remove one of the fields of a message."""
    fields = message.ListFields()
    if not fields:
        return
    field, value = rng.choice(fields)
    kind = rng.randrange(4)
    if kind == 0:
        message.ClearField(field.name)
    elif field.is_repeated:
        at = rng.randrange(len(value))
        if kind == 1:
            del value[at]
        elif kind == 2:
            value.extend([value[at]] * rng.randint(1, 40))
        elif field.message_type is None:
            value[at] = _other(field, value[at], rng)
    elif field.message_type is None:
        setattr(message, field.name, _other(field, value, rng))


def _other(field: Any, value: Any, rng: random.Random) -> Any:
    """Return another value of a field's type."""
    if field.enum_type is not None:
        return rng.choice([one.number for one in field.enum_type.values])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        narrow = field.cpp_type == field.CPPTYPE_INT32
        return rng.choice([-1, 0, 1, 2, 3, 7, 20, (1 << 31) - 1, *([] if narrow else [1 << 31, 1 << 40, -(1 << 63)])])
    if isinstance(value, float):
        return rng.choice([0.0, -1.0, 1e30, float("nan"), float("inf")])
    if isinstance(value, str):
        return rng.choice(["", "x", "y", *(one.name for one in defs.get_all_schemas())])
    return mutated(value, rng)


def seeds() -> list[tuple[str, bytes]]:
    """Return the files that are mutated, by name."""
    with quiet():
        cases = list(all_cases().items())[::_EACH_CASE]
        sound = [(name, load_case(case)[0].SerializeToString()) for name, case in cases]
    return [*((one.name, one.data) for one in FILES), *sound]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="mutations of each file")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    rng = random.Random(arguments.seed)
    counts = {"files": 0, "refused": 0, "converted": 0}
    with tempfile.TemporaryDirectory() as folder, Converter(_LIMITS) as converter:
        path, out_path = Path(folder, "m.onnx"), Path(folder, "m.walle")
        for name, data in seeds():
            for _ in range(arguments.times):
                sys.stdout.write(f"{name}\n")
                sys.stdout.flush()
                path.write_bytes(rng.choice((mutated, changed, changed))(data, rng))
                counts["files"] += 1
                try:
                    with path.open("rb") as source, out_path.open("w+b") as out:
                        converter.convert(source.fileno(), out.fileno(), name="m.onnx", folder=folder)
                    load(out_path)
                except EngineError:
                    counts["refused"] += 1
                else:
                    counts["converted"] += 1
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main()

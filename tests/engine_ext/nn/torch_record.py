"""File of PyTorch's results: arrays by name, and texts. `record_torch.py` writes it, tests read it."""

import functools
import json
import lzma
from pathlib import Path
from typing import Any, NamedTuple

import numpy

PATH = Path(__file__).with_name("torch_record.xz")


class Record(NamedTuple):
    """Contents of the file: arrays by "case/name", and versions, signatures, texts and schedules."""

    arrays: dict[str, Any]
    texts: dict[str, Any]

    def named(self, start: str) -> dict[str, Any]:
        """Return the arrays whose names begin so, by the rest of their names."""
        return {name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)}

    def listed(self, start: str) -> list[Any]:
        """Return the arrays that are numbered after that name."""
        return [array for _, array in sorted((int(at), array) for at, array in self.named(start).items())]


def write_record(path: Path, arrays: dict[str, Any], texts: dict[str, Any]) -> None:
    """Write the arrays, equal ones once: a line of JSON, then their bytes."""
    index, places, data = {}, {}, bytearray()
    for name, array in arrays.items():
        raw = array.tobytes()
        if raw not in places:
            places[raw] = len(data)
            data += raw
        index[name] = (str(array.dtype), list(array.shape), places[raw])
    head = json.dumps({"texts": texts, "index": index}, separators=(",", ":"))
    path.write_bytes(lzma.compress(head.encode() + b"\n" + bytes(data), preset=9 | lzma.PRESET_EXTREME))


@functools.cache
def read_record(path: Path = PATH) -> Record:
    """Return the record in the file."""
    head, data = lzma.decompress(path.read_bytes()).split(b"\n", 1)
    found = json.loads(head)
    arrays = {
        name: numpy.frombuffer(data, dtype, numpy.prod(shape, dtype=int), start).reshape(shape).copy()
        for name, (dtype, shape, start) in found["index"].items()
    }
    return Record(arrays, found["texts"])

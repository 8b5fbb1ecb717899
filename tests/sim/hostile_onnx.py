"""Mutations of hostile ONNX files, each converted and opened: a campaign of any length.

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
from pathlib import Path

from tests.engine_ext.hostile_onnx import FILES
from walle.engine_ext.onnx_import import ConvertLimits
from walle.engine_ext.onnx_import.converter import Converter
from walle.engine_ext.session import load
from walle.errors import EngineError

_LIMITS = ConvertLimits(memory_bytes=256 << 20, cpu_s=5, wall_s=30)
_MEMORY_BYTES = 8 << 30  # of this process's address space
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
        for one in FILES:
            for _ in range(arguments.times):
                sys.stdout.write(f"{one.name}\n")
                sys.stdout.flush()
                path.write_bytes(mutated(one.data, rng))
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

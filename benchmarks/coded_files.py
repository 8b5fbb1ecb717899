"""Bytes and time of a new version of a model on its way: whole, compressed, and as the difference to the old one.

Cases: weights of which one row in twenty changed, a file with 1 KB inserted, weights that a training nudged everywhere,
weights that share nothing with the old ones, and a table of text of which a tenth changed. Each form is made by the
cloud's own code (`CodedFiles`) and decoded by a device's (`decode`); results are compared first. CPU time is the
smallest of the rounds, of decoding that of the last form that there is; memory is that of a device's process above what
it had before.

    python -m benchmarks.coded_files [--rounds 3] [--megabytes 60] [--json]
"""

import argparse
import hashlib
import json
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.headline import print_headline
from walle.base.file_coding import DCZ, XOR, ZSTD
from walle.deploy.agent.coded_file import Base, decode
from walle.deploy.shared_files.coded_files import CodedFiles
from walle.deploy.shared_files.folder_store import FolderStore
from walle.protocol import FileEntry


def cases(megabytes: int) -> dict[str, tuple[bytes, bytes]]:
    """Return the old and the new bytes of each case."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((1000, 1000), dtype=np.float32)
    rows = weights.copy()
    rows[rng.choice(1000, 50, replace=False)] = rng.standard_normal((50, 1000), dtype=np.float32)
    nudged = weights * (1 + 1e-4 * rng.standard_normal(weights.shape, dtype=np.float32))
    large = rng.bytes(megabytes * 1_000_000)
    half = len(large) // 2
    lines = [f"item {number},{rng.integers(10**6)},{rng.random():.4f}\n" for number in range(40_000)]
    changed = [line if rng.random() > 0.1 else line.replace("item", "article") for line in lines]
    return {
        "weights of 4 MB, 1 row in 20 changed": (weights.tobytes(), rows.tobytes()),
        f"{megabytes} MB, 1 KB inserted": (large, large[:half] + bytes(1000) + large[half:]),
        "weights of 4 MB, all nudged by 1e-4": (weights.tobytes(), nudged.astype(np.float32).tobytes()),
        "4 MB of weights, all new": (weights.tobytes(), rng.standard_normal(10**6, dtype=np.float32).tobytes()),
        "a table of text, a tenth of its lines changed": ("".join(lines).encode(), "".join(changed).encode()),
    }


def measure(old: bytes, new: bytes, rounds: int) -> dict[str, float]:
    """Return sizes in bytes, and CPU seconds and memory of making and decoding the difference."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = FolderStore(folder / "files")
        entries = [FileEntry("model", store.put(data), len(data)) for data in (old, new)]
        base = Base(entries[0].sha256, store.path(entries[0].sha256), len(old))
        making_s = []
        for number in range(rounds):
            coded = CodedFiles(folder / f"coded-{number}", store)
            begun_s = time.process_time()
            coded.make(entries[1:], [entries[:1]])
            making_s.append(time.process_time() - begun_s)
        found = {"whole": float(len(new)), "make_s": min(making_s)}
        for coding, dictionary in ((ZSTD, ""), (DCZ, base.sha256), (XOR, base.sha256)):
            form = coded.find(entries[1].sha256, frozenset({coding}), dictionary)
            if form is not None:
                with form.file as file:
                    found[coding] = float(len(file.read()))
                found |= _decoded_apart(Path(form.file.name), coding, new, base, rounds)
        return found


def _decoded_apart(coded: Path, coding: str, new: bytes, base: Base, rounds: int) -> dict[str, float]:
    """Return CPU seconds and megabytes of decoding, in a process of its own, whose memory nothing else uses."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        wanted = hashlib.sha256(new).hexdigest()
        return pool.apply(_decoded, (coded, coding, len(new), base, wanted, rounds))


def _decoded(coded: Path, coding: str, size_bytes: int, base: Base, sha256: str, rounds: int) -> dict[str, float]:
    target = coded.with_suffix(".decoded")
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins again
    before_kib = _peak_kib()
    times_s = []
    for _ in range(rounds):
        begun_s = time.process_time()
        decode(coded, coding, target, size_bytes=size_bytes, base=base)
        times_s.append(time.process_time() - begun_s)
    grown_kib = _peak_kib() - before_kib
    with target.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise SystemExit(f"{coding} does not decode to the file")
    return {"decode_s": min(times_s), "decode_mb": grown_kib / 1024}


def _peak_kib() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=60, help="size of the large file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = {name: measure(*pair, options.rounds) for name, pair in cases(options.megabytes).items()}
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("case", "whole KB", "zstd KB", "dcz KB", "walle-xor KB", "made in ms", "decoded in ms", "memory MB")
    for name, row in rows.items():
        sizes = (f"{row[form] / 1000:,.0f}" if form in row else "not made" for form in ("whole", ZSTD, DCZ, XOR))
        decoding = (f"{row['decode_s'] * 1000:.1f}", f"{row['decode_mb']:.0f}") if "decode_s" in row else ("-", "-")
        table.add_row(name, *sizes, f"{row['make_s'] * 1000:.0f}", *decoding)
    Console(width=140).print(table)
    name, row = next(iter(rows.items()))
    peers = {title: row[form] / 1000 for form, title in (("whole", "whole"), (ZSTD, "zstd alone")) if form in row}
    ours = min(row[form] for form in (DCZ, XOR) if form in row) / 1000
    print_headline(f"new version of {name}, sent as the difference", unit="KB", better="lower", ours=ours, peers=peers)


if __name__ == "__main__":
    main()

"""Rows per CPU second of the feature store, against raw SQLite with the same tables and durability.

The peer calls `executemany` on prepared rows, checksums and chain values included, in transactions of 1,000 rows. The
store gets 1,000 outputs a call (`put_all`) or one a call (`put`), which are already encoded; or one value a call, which
it encodes (`put_value`). All ways write the same 1,000 objects again and again, and run in turn in each round, which
begins with another of them each time. A ratio is the median of the rounds' ratios, a rate that of the rounds' median.

    python benchmarks/store.py [--rows 50000] [--rounds 7] [--json]
"""

import argparse
import asyncio
import contextlib
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.headline import print_headline
from walle.base import plain
from walle.pipeline.features import checksums, store_schema
from walle.pipeline.features.kept_features import Bounds
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.features.store_schema import StoreState

BATCH = 1000
_HEADLINE_BYTES = 1300
_INSERT_UPLOAD = (
    "INSERT INTO outbox (seq, topic, payload, created_ms, checksum, chain, version, version_checksum)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
KEEP = Bounds(rows_per_topic=1 << 40, rows=1 << 40, size_bytes=1 << 60)


def outputs(rows: int, size_bytes: int, *, upload: bool) -> list[Put]:
    rng = random.Random(1)
    payloads = [plain.encode(rng.randbytes(size_bytes - 4)) for _ in range(BATCH)]
    return [Put("scenario/ipv", payloads[row % BATCH], upload) for row in range(rows)]


def raw(path: Path, puts: list[Put]) -> float:
    """Return the CPU seconds of the peer."""
    state = StoreState.new()
    batches = []
    chain = state.last_chain
    for first in range(0, len(puts), BATCH):
        features, uploads = [], []
        for seq, put in enumerate(puts[first : first + BATCH], first + 1):
            checksum = checksums.row_checksum(put.topic, put.payload, 5)
            features.append((put.topic, 5, -1, put.payload, checksums.feature_checksum(checksum, -1)))
            if put.upload:
                chain = checksums.next_link(chain, checksum)
                uploads.append((seq, put.topic, put.payload, 5, checksum, chain, "", 0))
        batches.append((features, uploads))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "journal_size_limit = 4194304"):
            db.execute(f"PRAGMA {pragma}")
        db.execute("BEGIN")
        store_schema.create(db, state)
        db.execute("COMMIT")
        began_s = time.process_time()
        for features, uploads in batches:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "INSERT INTO features (topic, ts_ms, position, payload, checksum) VALUES (?, ?, ?, ?, ?)", features
            )
            db.executemany(_INSERT_UPLOAD, uploads)
            db.execute("UPDATE state SET last_seq = last_seq + ?", (len(uploads),))
            db.execute("COMMIT")
        return time.process_time() - began_s


def put_all(path: Path, puts: list[Put]) -> float:
    """Return the CPU seconds of the store with 1,000 outputs a call."""

    async def main() -> float:
        async with FeatureStore(path, threshold=BATCH, keep=KEEP, max_outbox_bytes=1 << 60) as store:
            began_s = time.process_time()
            for first in range(0, len(puts), BATCH):
                await store.put_all(puts[first : first + BATCH])
                await store.flush()
            return time.process_time() - began_s

    return asyncio.run(main())


def put(path: Path, puts: list[Put]) -> float:
    """Return the CPU seconds of the store with one output a call."""

    async def main() -> float:
        async with FeatureStore(path, threshold=BATCH, keep=KEEP, max_outbox_bytes=1 << 60) as store:
            began_s = time.process_time()
            for one in puts:
                await store.put_all((one,))
            await store.flush()
            return time.process_time() - began_s

    return asyncio.run(main())


def put_value(path: Path, puts: list[Put]) -> float:
    """Return the CPU seconds of the store with one value a call, not encoded yet."""
    values = [plain.decode(one.payload) for one in puts[:BATCH]] * (len(puts) // BATCH + 1)

    async def main() -> float:
        async with FeatureStore(path, threshold=BATCH, keep=KEEP, max_outbox_bytes=1 << 60) as store:
            began_s = time.process_time()
            for one, value in zip(puts, values, strict=False):
                await store.put(one.topic, value, upload=one.upload)
            await store.flush()
            return time.process_time() - began_s

    return asyncio.run(main())


def measure(rows: int, rounds: int) -> list[dict[str, object]]:
    ways: dict[str, Callable[[Path, list[Put]], float]] = {
        "raw": raw,
        "put_all": put_all,
        "put": put,
        "put_value": put_value,
    }
    results: list[dict[str, object]] = []
    for size_bytes, upload in ((128, True), (1300, True), (128, False), (1300, False)):
        puts = outputs(rows, size_bytes, upload=upload)
        cpu_s: dict[str, list[float]] = {name: [] for name in ways}
        for first in range(rounds):
            names = list(ways)
            for place in range(len(names)):
                name = names[(first + place) % len(names)]
                with tempfile.TemporaryDirectory() as folder:
                    cpu_s[name].append(ways[name](Path(folder) / "features.db", puts))
        line: dict[str, object] = {"payload_bytes": size_bytes, "upload": upload}
        line |= {f"{name}_rows_per_cpu_s": round(rows / statistics.median(times)) for name, times in cpu_s.items()}
        for name in list(ways)[1:]:
            ratios = [raw_s / way_s for raw_s, way_s in zip(cpu_s["raw"], cpu_s[name], strict=True)]
            line[f"{name}_of_raw"] = round(statistics.median(ratios), 2)
        results.append(line)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines = measure(options.rows, options.rounds)
    if options.json:
        sys.stdout.write(json.dumps(lines) + "\n")
        return
    for line in lines:
        sys.stdout.write("  ".join(f"{name} {value}" for name, value in line.items()) + "\n")
    (line,) = [line for line in lines if line["payload_bytes"] == _HEADLINE_BYTES and line["upload"]]
    print_headline(
        f"features of {_HEADLINE_BYTES:,} bytes stored for upload in a second of CPU time, {BATCH:,} a call",
        unit="a second",
        better="higher",
        ours=float(str(line["put_all_rows_per_cpu_s"])),
        peers={"raw SQLite": float(str(line["raw_rows_per_cpu_s"]))},
    )


if __name__ == "__main__":
    main()

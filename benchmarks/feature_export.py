"""Cost of `walle features export`: CPU time of a feature and peak memory, from the store to Parquet.

    python -m benchmarks.feature_export [--features 1000000] [--json]

Makes a store with that many features of 1,000 devices, 13 columns each, and runs the command in a process of its own,
as a user does; the figures are that process's, its start included.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.headline import print_headline
from walle.base import plain
from walle.pipeline.ingest.stores import open_uploads
from walle.pipeline.tunnel.received import Received

_DEVICES = 1_000
_BATCH = 5_000


async def fill(path: Path, features: int) -> None:
    """Store the features: tables of a text, an integer and a float."""
    rng = random.Random(1)
    async with open_uploads(path, create=True) as store:
        for first in range(0, features, _BATCH):
            batch = []
            for number in range(first, min(features, first + _BATCH)):
                visit = {"page": f"item/{rng.randrange(5000)}", "clicks": rng.randrange(9), "dwell": rng.random()}
                payload, device = plain.encode(visit), f"device-{number % _DEVICES}"
                seq, sent_ms = number // _DEVICES + 1, 1_700_000_000_000 + number
                batch.append(Received(device, "e", seq, "shop/visits", payload, sent_ms, sent_ms + 500, version="v12"))
            await store.accept(batch)


def measure(features: int) -> dict[str, float]:
    """Return seconds of CPU time, microseconds of a feature, and the peak of resident memory in MB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "uploads.db"
        asyncio.run(fill(path, features))
        command = [
            sys.executable,
            "-c",
            "from walle.cli import main; main()",
            "features",
            "export",
            f"{folder}/f.parquet",
            "--uploads",
            str(path),
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"the export failed with status {process.returncode}")
        cpu_s = usage.ru_utime + usage.ru_stime
        return {
            "features": features,
            "cpu_s": cpu_s,
            "cpu_us": cpu_s / features * 1e6,
            "rss_mb": usage.ru_maxrss / 1024,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.features)
    if arguments.json:
        print(json.dumps(found))
    else:
        print("{features:,} features: {cpu_s:.1f} s of CPU time, {cpu_us:.1f} µs each; {rss_mb:.0f} MB".format(**found))
        what = f"a feature from the store to Parquet, CPU time, start included, of {arguments.features:,}"
        print_headline(what, unit="µs", better="lower", ours=found["cpu_us"])


if __name__ == "__main__":
    main()

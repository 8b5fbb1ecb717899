"""Check of what a load test left in the cloud: every upload once, in order, and counts that agree.

    python -m loadtest.check UPLOADS < EXPECTED_JSON

UPLOADS is a file of the cloud's, or the postgresql:// URL of its uploads. EXPECTED_JSON maps each device to its number
of uploads. Prints one line for each wrong result.
"""

import asyncio
import collections
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from loadtest.devices import TOPIC
from walle.base import plain
from walle.pipeline.ingest.stores import open_uploads


async def wrong_results(uploads: str | Path, made: Mapping[str, int]) -> list[str]:
    """Return what differs from each device's uploads 0, 1, 2, ... in that order, each once."""
    arrived = collections.defaultdict[str, list[int]](list)
    wrong: list[str] = []
    async with open_uploads(uploads) as ingest:
        after = 0
        while rows := await ingest.query(after=after, limit=5_000):
            after = rows[-1][0]
            for _, upload in rows:
                if upload.topic != TOPIC:
                    wrong.append(f"{upload.device_id}: upload {upload.seq} has the topic {upload.topic!r}")
                else:
                    arrived[upload.device_id].append(plain.decode(upload.payload)[0])
        wrong += [f"{recorded.device_id}: {recorded.loss}" for recorded in await ingest.losses()]
    wrong += [f"{device_id}: uploads of an unknown device" for device_id in sorted(arrived.keys() - made.keys())]
    for device_id, count in sorted(made.items()):
        numbers = arrived[device_id]
        if numbers == list(range(count)):
            continue
        copies = collections.Counter(numbers)
        missing = [number for number in range(count) if not copies[number]]
        twice = [number for number, times in copies.items() if times > 1]
        what = f"missing {missing[:5]}, more than once {twice[:5]}"
        if not missing and not twice:
            what = "not in order" if len(numbers) == count else "numbers that it did not make"
        wrong.append(f"{device_id}: made {count} uploads, {len(numbers)} are in the cloud: {what}")
    return wrong


if __name__ == "__main__":
    found = asyncio.run(wrong_results(sys.argv[1], json.load(sys.stdin)))
    sys.stdout.write("".join(f"{line}\n" for line in found))

"""Decisions of a gateway for a fleet: how often it knows what a device names, what a decision takes, and its memory.

python -m benchmarks.push_fleet [--devices 2000 20000 200000] [--tasks 348]

Each device checks in twice, in an order of chance, after a start with empty caches; each has what it should, by an
app version, a model and a system of its own, and half of the fleet is in each of the releases under way. The first
round counts what a device has to send beside its digests. Times are CPU time: of a header that was seen before, of one
that was not, and of one after the table was swapped.
"""

import argparse
import dataclasses
import json
import random
import resource
import statistics
import time

from benchmarks.headline import print_headline
from benchmarks.rules import CASES, table_of
from walle.deploy.push.answerer import Answerer
from walle.deploy.releases.draws import group_of
from walle.deploy.releases.table import ReleaseTable, RowEntry
from walle.protocol import Profile, PushAnswer, ShortProfile, part_digest, parts_of, parts_to_header


def _at_half(table: ReleaseTable) -> ReleaseTable:
    """Return the table with half of the devices in each release under way: the most variants of what devices have."""

    def at_half(entry: RowEntry) -> RowEntry:
        if entry.admission is None:
            return entry
        return dataclasses.replace(entry, admission=dataclasses.replace(entry.admission, share=0.5))

    rows = [dataclasses.replace(row, entries=tuple(map(at_half, row.entries))) for row in table.rows.values()]
    return ReleaseTable(table.generation, rows)


def measure(devices: int, tasks: int, under_way: int, case: str = "uniform, 12 ranges") -> dict[str, float]:
    """Return the figures of a fleet."""
    rng = random.Random(7)
    table = _at_half(table_of(CASES[case], tasks, under_way))
    answerer = Answerer(table)
    known: dict[tuple[str, ...], list[bytes]] = {}  # what devices would send, outside of the figures
    lists: dict[tuple[int, bytes], tuple[str, ...]] = {}  # digests by group, and by which releases cover the device
    every = b"".join(group_of([number]) for number in range(under_way))
    headers: list[bytes] = []
    names: list[tuple[str, ...]] = []
    for number in range(devices):
        app_version = f"10.{rng.randrange(5)}.{rng.randrange(4)}"
        attributes = {"os": "android", "os_version": f"{rng.randrange(9, 15)}", "model": f"m{rng.randrange(200)}"}
        profile = Profile(f"d{number}", app_version, attributes)
        key = table.index.matching(profile), table.draws.first(profile.device_id, every)
        if key not in lists:
            parts = parts_of({one.task: one.version for one in table.answer(profile)}, {})
            lists[key] = tuple(part_digest(part) if part else "" for part in parts)
            known[lists[key]] = parts
        digests = lists[key]
        headers.append(ShortProfile(app_version, attributes, digests).to_header().encode())
        names.append(digests)
    figures: dict[str, float] = {"devices": devices, "tasks": tasks, "releases under way": under_way}
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for what in ("first", "second", "new table"):
        if what == "new table":
            rows = list(table.rows.values())
            answerer.swap(ReleaseTable(table.generation + 1, rows[:-1]))
        asked, sent, took = 0, 0, []
        for number in rng.sample(range(devices), devices):
            begin = time.thread_time_ns()
            answer = answerer.headers(headers[number], f"d{number}")
            took.append((time.thread_time_ns() - begin) / 1000)
            found = PushAnswer.from_header(answer[0][1].decode()) if answer else PushAnswer()
            if found.unknown:
                asked += 1
                parts = known[names[number]]
                have = parts_to_header([parts[at] for at in found.unknown]).encode()
                sent += len(have)
                answerer.headers(headers[number], f"d{number}", have)
        took.sort()
        figures |= {
            f"{what}: asked %": round(100 * asked / devices, 3),
            f"{what}: bytes sent": sent,
            f"{what}: us, median": round(statistics.median(took), 2),
            f"{what}: us, p99": round(took[len(took) * 99 // 100], 1),
        }
    figures |= {
        "headers, different": len(set(headers)),
        "lists, different": len(known),
        "parts known": len(answerer.parts),
        "MB of parts": round(answerer.parts.size_bytes / 1e6, 2),
        "MB grown": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - memory_mb),
        "bytes of a profile": round(statistics.mean(map(len, headers))),
    }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[2_000, 20_000, 200_000])
    parser.add_argument("--tasks", type=int, default=348)
    parser.add_argument("--under-way", type=int, nargs="+", default=[0, 10, 20])
    parser.add_argument("--case", choices=CASES, default="uniform, 12 ranges", help="for whom the releases are")
    options = parser.parse_args()
    for under_way in options.under_way:
        for devices in options.devices:
            found = measure(devices, options.tasks, under_way, options.case)
            print(json.dumps(found), flush=True)
    what = f"decision for a profile seen before, {devices:,d} devices, {under_way} releases under way, median CPU time"
    print_headline(what, unit="µs", better="lower", ours=found["second: us, median"])


if __name__ == "__main__":
    main()

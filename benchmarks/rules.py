"""Decisions on who gets what: microseconds of a gateway for one profile, with the rules of many active tasks.

    python benchmarks/rules.py [--tasks 348] [--repeat 9] [--uploaded 1000000]

Each case is a table of that many tasks. A fresh device sends attributes that no profile before had; "index" is what the
gateway does, "one by one" evaluates each rule by CEL, as it would without the index. Times are CPU time, medians.
With --uploaded, a table of attributes of that many devices is made too, and the rules are over these.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.headline import print_headline
from walle.deploy.policies.attribute_schema import ColumnType, uploaded_columns
from walle.deploy.policies.attribute_table import AttributeTable, write_table
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.uploaded_attributes import UploadedTables
from walle.deploy.push.answerer import Answerer
from walle.deploy.releases.release import Release, ReleaseState
from walle.deploy.releases.request import ReleaseRequest
from walle.deploy.releases.table import ReleaseTable, plan_row
from walle.protocol import Attribute, Profile

SCHEMA = {
    "os": ColumnType.STRING,
    "os_version": ColumnType.STRING,
    "model": ColumnType.STRING,
    "memory_mb": ColumnType.INT,
    "battery": ColumnType.DOUBLE,
    "age_group": ColumnType.STRING,
    "is_member": ColumnType.BOOL,
}


def _uniform(number: int) -> Policy:
    return Policy(f">={number % 12},<{number % 12 + 4}")


def _uniform_distinct(number: int) -> Policy:
    return Policy(f">={number % 12}.{number},<{number % 12 + 4}")


def _customised(number: int) -> Policy:
    os, low = ("android", "ios")[number % 2], 512 * (number % 16)
    rules = [
        f"os == '{os}' && memory_mb >= {low} && version_in(os_version, '>={number % 9 + 8}')",
        f"model in ['m{number % 40}', 'm{number % 37}', 'm{number % 31}'] && battery > 0.{number % 10}",
        f"age_group == 'g{number % 6}' && is_member && !(os == '{os}')",
        f"memory_mb >= {low} && memory_mb < {low + 4096} && version_in(app_version, '>=9,<12')",
    ]
    return Policy(rule=rules[number % 4]).typed(SCHEMA)


def _partly_indexed(number: int) -> Policy:
    rule = f"os == '{('android', 'ios')[number % 2]}' && model in ['m{number % 40}'] && memory_mb / 1024 > {number % 7}"
    return Policy(rule=rule).typed(SCHEMA)


def _not_indexed(number: int) -> Policy:
    return Policy(rule=f"memory_mb / 1024 + {number} > 2 && model.endsWith('{number % 10}')").typed(SCHEMA)


def _some_not_indexed(number: int) -> Policy:
    return _not_indexed(number) if number % 17 == 0 and number < 340 else _customised(number)


CASES: dict[str, Callable[[int], Policy]] = {
    "every device": lambda _: Policy(),
    "uniform, 12 ranges": _uniform,
    "uniform, a range each": _uniform_distinct,
    "customised": _customised,
    "customised, a part by CEL": _partly_indexed,
    "customised, 20 of them by CEL alone": _some_not_indexed,
    "customised, all by CEL": _not_indexed,
}


def table_of(policy: Callable[[int], Policy], tasks: int, under_way: int) -> ReleaseTable:
    """Return a table of tasks, each fully released, and `under_way` of them in a gray step of the next version too."""
    rows = []
    for number in range(tasks):
        request = ReleaseRequest(scenario="shop", task=f"task-{number}", version="v1", policy=policy(number))
        full = Release(
            id=f"task-{number}-v1-{number}",
            number=number,
            request=request,
            created_s=0.0,
            updated_s=0.0,
            state=ReleaseState.FULL,
            manifest=f"{number:064x}",
            size_bytes=1,
        )
        releases = [full]
        if number < under_way:
            request = dataclasses.replace(request, version="v2")
            gray = dataclasses.replace(
                full, id=f"task-{number}-v2-{tasks + number}", number=tasks + number, request=request
            )
            releases.append(dataclasses.replace(gray, state=ReleaseState.GRAY))
        rows.append(plan_row(request.name, releases, "/cdn").sign(lambda one: one, 1, 1 << 40))
    return ReleaseTable(1, rows)


def profiles(table: ReleaseTable) -> Iterator[Profile]:
    """Return profiles of devices that have all that they should, each with attributes and a version of its own."""
    number = 0
    while True:
        number += 1
        attributes: dict[str, Attribute] = {
            "os": ("android", "ios")[number % 2],
            "os_version": f"{8 + number % 10}.{number % 7}",
            "model": f"m{number % 50}",
            "memory_mb": 1024 + number,
            "battery": number % 97 / 97,
            "age_group": f"g{number % 7}",
            "is_member": number % 3 > 0,
        }
        profile = Profile(f"device-{number}", f"10.{number % 5}.{number}", attributes)
        has = {one.task: one.version for one in table.answer(profile)}
        yield dataclasses.replace(profile, tasks=has)


def median_us(action: Callable[[Profile], object], some: list[Profile]) -> float:
    """Return the median microseconds of CPU time of an action over profiles."""
    took = []
    for profile in some:
        begin = time.thread_time_ns()
        action(profile)
        took.append((time.thread_time_ns() - begin) / 1000)
    return statistics.median(took)


def measure(policy: Callable[[int], Policy], tasks: int, under_way: int) -> dict[str, float]:
    """Return the median microseconds of each kind of profile."""
    table = table_of(policy, tasks, under_way)
    source = profiles(table)
    some = [next(source) for _ in range(300)]
    index, policies = (
        table.index,
        list(dict.fromkeys(entry.policy for row in table.rows.values() for entry in row.entries)),
    )
    for profile in some[:3]:
        assert [bool(index.matching(profile) & table.bit_of(one)) for one in policies] == [
            one.matches(profile) for one in policies
        ]

    def decide_fresh(profile: Profile) -> object:
        table._plans.clear()  # the group is new too
        return table.answer(profile)

    def match_new_values(profile: Profile) -> object:
        for rules in (*index._evaluated, *index._uploaded_evaluated):
            rules._known.clear()
        return index.matching(profile)

    answerer = Answerer(table)
    small = [dataclasses.replace(one, tasks=dict(list(one.tasks.items())[:50])) for one in some]
    raw = {one.device_id: one.to_header().encode() for one in small}
    for one in small:
        answerer.headers(raw[one.device_id], one.device_id)
    return {
        "known profile": median_us(lambda one: answerer.headers(raw[one.device_id], one.device_id), small),
        "rules, index": median_us(index.matching, some),
        "rules, index, values new": median_us(match_new_values, some),
        "rules, one by one": median_us(lambda one: [policy.matches(one) for policy in policies], some[:50]),
        "decision, fresh, group known": median_us(table.answer, some),
        "decision, fresh, group new": median_us(decide_fresh, some),
    }


def measure_uploaded(tasks: int, rows: int) -> dict[str, float]:
    """Return the costs of a table of attributes, and the median microseconds of profiles that are joined with it."""
    schema = {**SCHEMA, "uploaded.age_group": ColumnType.STRING, "uploaded.is_member": ColumnType.BOOL}
    columns = uploaded_columns(schema)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "rows").open("w") as file:
            for number in range(rows):
                row = {"device_id": f"device-{number}", "age_group": f"g{number % 7}", "is_member": number % 3 > 0}
                file.write(json.dumps(row) + "\n")
        began = time.process_time()
        with (folder / "rows").open("rb") as lines, (folder / "table").open("wb") as out:
            write_table(lines, out, key="device_id", columns=columns, put_s=0.0, put_by="")
        made_s, began = time.process_time() - began, time.process_time()
        uploaded = UploadedTables((AttributeTable(folder / "table"),))
        opened_s = time.process_time() - began

    def policy(number: int) -> Policy:
        rule = f"uploaded.age_group == 'g{number % 6}' && os == '{('android', 'ios')[number % 2]}'"
        return Policy(rule=rule).typed(schema)

    table = table_of(policy, tasks, 0)
    source = profiles(table)
    some = [next(source) for _ in range(300)]
    answerer = Answerer(table)
    answerer.swap_uploaded(uploaded)
    raw = {one.device_id: one.to_header().encode() for one in some}
    for one in some:
        answerer.headers(raw[one.device_id], one.device_id)
    return {
        "table: bytes for each id": uploaded.tables[0].size_bytes / rows,
        "table: made, ms": made_s * 1000,
        "table: opened, ms": opened_s * 1000,
        "known profile, us": median_us(lambda one: answerer.headers(raw[one.device_id], one.device_id), some),
        "join, us": median_us(uploaded.join, some),
        "decision, fresh, us": median_us(table.answer, some),
        "join and decision, fresh, us": median_us(lambda one: table.answer(uploaded.join(one)), some),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=348)
    parser.add_argument("--repeat", type=int, default=3, help="of each case; the median is shown")
    parser.add_argument("--uploaded", type=int, default=0, help="rows of a table of attributes; only that is measured")
    options = parser.parse_args()
    if options.uploaded:
        print(f"{options.tasks} tasks, a table of {options.uploaded} devices")
        for what, value in measure_uploaded(options.tasks, options.uploaded).items():
            print(f"  {what:30} {value:9.1f}")
        return
    for name, policy in CASES.items():
        for under_way in (0, 20, options.tasks):
            runs = [measure(policy, options.tasks, under_way) for _ in range(options.repeat)]
            print(f"{options.tasks} tasks, {name}, {under_way} in a gray step")
            medians = {what: statistics.median(run[what] for run in runs) for what in runs[0]}
            for what, value in medians.items():
                print(f"  {what:30} {value:9.1f} us")
            if name == "customised" and not under_way:
                matched = medians
    what = f"rules of {options.tasks} tasks matched to a profile, CPU time, by the index"
    peers = {"each rule by CEL": matched["rules, one by one"]}
    print_headline(what, unit="µs", better="lower", ours=matched["rules, index"], peers=peers)


if __name__ == "__main__":
    main()

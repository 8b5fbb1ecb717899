"""Trigger matching (§5.1): events per CPU second of one call per event, and of batches, against a dict trie in Python.

Conditions are distinct sequences of 1 to 8 trigger ids, drawn from 64 event ids and 100 pages ("mixed"); an event has
one of each. All matchers see the same events; their hits are compared first. Rounds alternate between the matchers, so
that other load affects all; the best round counts.

    python benchmarks/trigger_matching.py [--conditions 10,1000,10000] [--events 50000] [--rounds 7] [--json]
    python benchmarks/trigger_matching.py --steps [--conditions 10,100] [--json]

The second form measures what optional steps cost: microseconds of CPU time an event of conditions on four ids, and of
the same with two of them up to three times or not at all: 16 sequences each.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.headline import print_headline
from walle.pipeline.events.event import Event
from walle.pipeline.trigger.trie import EventStream, TriggerTrie
from walle.protocol import TriggerCondition

EVENT_IDS = [f"event_{index}" for index in range(64)]
PAGE_IDS = [f"page_{index}" for index in range(100)]


class DictTrie:
    """The peer: a trie of dicts, and the nodes that the latest event matched. Its hits are not sorted."""

    def __init__(self) -> None:
        self._start: dict[str | None, Any] = {}
        self._pending: list[dict[str | None, Any]] = []

    def add(self, trigger_ids: Sequence[str], task: str) -> None:
        node = self._start
        for trigger_id in trigger_ids:
            node = node.setdefault(trigger_id, {})
        node.setdefault(None, []).append(task)

    def feed(self, event_id: str, page_id: str) -> list[str]:
        pending = []
        hits: list[str] = []
        for node in (self._start, *self._pending):
            for trigger_id in (event_id, page_id):
                child = node.get(trigger_id)
                if child is not None:
                    pending.append(child)
                    tasks = child.get(None)
                    if tasks:
                        hits += tasks
        self._pending = pending
        return hits


def conditions_of(rng: random.Random, count: int) -> list[TriggerCondition]:
    """Return distinct conditions in random order."""
    found: set[tuple[str, ...]] = set()
    while len(found) < count:
        found.add(tuple(rng.choices([*EVENT_IDS, *PAGE_IDS], k=rng.randint(1, 8))))
    return [TriggerCondition(trigger_ids) for trigger_ids in rng.sample(sorted(found), count)]


def one_by_one(feed: Callable[[str, str], Any], events: Sequence[tuple[str, str]]) -> float:
    start = time.process_time()
    for event_id, page_id in events:
        feed(event_id, page_id)
    return time.process_time() - start


def in_batches(trie: TriggerTrie, events: Sequence[tuple[str, str]], size: int = 1000) -> float:
    columns = [tuple(zip(*events[at : at + size], strict=True)) for at in range(0, len(events), size)]
    start = time.process_time()
    for event_ids, page_ids in columns:
        trie.feed_many(event_ids, page_ids)
    return time.process_time() - start


def through_stream(stream: EventStream, events: Sequence[Event], first: int) -> float:
    start = time.process_time()
    for position, event in enumerate(events, first):
        stream.feed(position, event)
    return time.process_time() - start


def measure(count: int, event_count: int, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Return the million events per CPU second of each matcher, with `count` conditions."""
    rng = random.Random(seed)
    trie, peer, stream = TriggerTrie(), DictTrie(), EventStream()
    for index, condition in enumerate(conditions_of(rng, count)):
        trie.add(condition, f"task{index}")
        stream.add(condition, f"task{index}")
        peer.add(condition.trigger_ids, f"task{index}")
    events = [(rng.choice(EVENT_IDS), rng.choice(PAGE_IDS)) for _ in range(event_count)]
    hits = 0
    for event in events[: min(event_count, 20_000)]:
        expected = sorted(set(peer.feed(*event)))
        if trie.feed(*event) != expected:
            raise AssertionError(f"the matchers disagree on {event}")
        hits += len(expected)
    whole = [Event(event_id, page_id, index, {"item": index}) for index, (event_id, page_id) in enumerate(events)]
    seconds: dict[str, list[float]] = {"one call": [], "batches": [], "stream": [], "dict trie": []}
    for turn in range(rounds):
        seconds["one call"].append(one_by_one(trie.feed, events))
        seconds["dict trie"].append(one_by_one(peer.feed, events))
        seconds["batches"].append(in_batches(trie, events))
        seconds["stream"].append(through_stream(stream, whole, turn * event_count))
    rates = {name: event_count / min(times) / 1e6 for name, times in seconds.items()}
    return {
        "conditions": count,
        "hits_per_event": round(hits / min(event_count, 20_000), 2),
        **{f"{name.replace(' ', '_')}_m_per_s": round(rate, 3) for name, rate in rates.items()},
        "one_call_against_dict_trie": round(rates["one call"] / rates["dict trie"], 2),
        "batches_against_dict_trie": round(rates["batches"] / rates["dict trie"], 2),
    }


def measure_steps(count: int, event_count: int, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Return the microseconds of CPU time an event of `count` conditions, without and with optional steps."""
    rng = random.Random(seed)
    ids = [rng.choices(EVENT_IDS, k=4) for _ in range(count)]
    events = [(rng.choice(EVENT_IDS), rng.choice(PAGE_IDS)) for _ in range(event_count)]
    row: dict[str, Any] = {"conditions": count}
    for skips in (False, True):
        for name, times in (("plain", 1), ("optional", [0, 3])):
            trie = TriggerTrie()
            for index, (first, second, third, last) in enumerate(ids):
                steps = [first, {"id": second, "times": times}, {"id": third, "times": times}, last]
                trie.add(TriggerCondition.parse({"sequence": steps, "skip_till_next": skips}), f"task{index}")
            seconds = min(one_by_one(trie.feed, events) for _ in range(rounds))
            row[f"{name}{'_skip_till_next' if skips else ''}_us"] = round(seconds / event_count * 1e6, 3)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--conditions", default="10,1000,10000", help="counts, separated by commas; default: %(default)s"
    )
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", action="store_true", help="measure optional steps instead")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measured = measure_steps if options.steps else measure
    rows = [measured(int(count), options.events, options.rounds) for count in options.conditions.split(",")]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.steps:
        return
    row = rows[-1]
    print_headline(
        f"events matched to {row['conditions']:,d} conditions, one call each, in a second of CPU time",
        unit="million",
        better="higher",
        ours=row["one_call_m_per_s"],
        peers={"trie of dicts in Python": row["dict_trie_m_per_s"]},
    )


if __name__ == "__main__":
    main()

"""Aggregation of page visits (§5.1), and the IPV feature from JSON, each against plain Python in the same run.

aggregation: over many visits in one batch, of each page: events, counts by kind, dwell, sum and mean of a field of the
contents. "columns open" compares built-in aggregations over open columns with a dict loop over Python events that are
decoded already; "from bytes" adds opening the columns, and decoding the same bytes, to either side. Results are
compared first.

ipv: visits of the generator from JSON to the compressed feature (read, compute encoded, compress) as a share of
`json.loads` of the same bytes. The steps are the device's and the task's own; zstd's level and contexts are those of
the tunnel. Each way is done with a visit before the next one: results that are kept would cost `json.loads` half as
much again. "with a dictionary" compresses as the tunnel does for a task that has one (ADR 23), trained on the features
of other visits. "through Python objects" makes the feature a dict, which is then encoded as the store does it.

Rounds alternate between the ways, so that other load affects all; the best round counts, in CPU time.

    python benchmarks/aggregation.py [--visits 2000] [--rounds 9] [--json]
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import zstandard

from apps.ipv.logs import generated_visits
from apps.ipv.training_data import task_module
from benchmarks.headline import print_headline
from walle.base import plain
from walle.engine_ext._core import packed_value
from walle.pipeline.events.event import BASIC_KINDS, Event
from walle.pipeline.stream.events import Events
from walle.pipeline.tunnel.dictionaries import Dictionary, train_dictionary

EVENTS_A_VISIT = 19
_ZSTD_LEVEL = 3  # level of the tunnel


def page_visits(rng: random.Random, visits: int) -> list[Event]:
    """Return the events of some page visits, one visit after the other, each on a page of its own."""
    events = []
    for visit in range(visits):
        ts_ms = visit * 60_000
        for index in range(EVENTS_A_VISIT):
            kind = (
                BASIC_KINDS[0]
                if index == 0
                else BASIC_KINDS[4]
                if index == EVENTS_A_VISIT - 1
                else rng.choice(BASIC_KINDS[1:4])
            )
            ts_ms += rng.randint(50, 2_000)
            held = {"item_id": f"i{rng.randint(0, 9)}", "price": rng.randint(1, 900), "depth": rng.random()}
            events.append(Event(kind, f"page/{visit}", ts_ms, held))
    return events


def by_dicts(events: Sequence[Event]) -> tuple[dict[tuple[str, str], int], dict[str, Any]]:
    """Return counts by page and kind, and (events, dwell, sum and mean of price) by page: a plain Python loop."""
    kinds: dict[tuple[str, str], int] = {}
    pages: dict[str, list[Any]] = {}
    for event in events:
        page_id, ts_ms = event.page_id, event.ts_ms
        key = (page_id, event.event_id)
        kinds[key] = kinds.get(key, 0) + 1
        page = pages.get(page_id)
        if page is None:
            pages[page_id] = page = [0, ts_ms, ts_ms, 0]
        page[0] += 1
        page[1] = min(page[1], ts_ms)
        page[2] = max(page[2], ts_ms)
        page[3] += event.contents["price"]
    return kinds, {page: (one[0], one[2] - one[1], one[3], one[3] / one[0]) for page, one in pages.items()}


def by_columns(events: Events) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Return the same as two tables."""
    pages = events.group_by("page_id")
    kinds = pages.group_by("event_id").aggregate(count="count")
    table = pages.aggregate(events="count", dwell=("ts_ms", "span"), total=("price", "sum"), mean=("price", "mean"))
    return kinds, table


def best_seconds(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the CPU seconds of the best round of each way; rounds alternate between them."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            started_s = time.process_time()
            way()
            best[name] = min(best[name], time.process_time() - started_s)
    return best


def measure_aggregation(visits: int, rounds: int) -> dict[str, Any]:
    """Return thousand events per CPU second of each way."""
    events = page_visits(random.Random(7), visits)
    encoded = Events(events).encode()
    opened = Events.from_bytes(encoded)
    kinds, pages = by_dicts(events)
    kind_table, page_table = by_columns(opened)
    if (
        dict(zip(zip(kind_table["page_id"], kind_table["event_id"], strict=True), kind_table["count"], strict=True))
        != kinds
    ):
        raise RuntimeError("the counts by kind differ")
    rows = zip(*(page_table[name] for name in ("page_id", "events", "dwell", "total", "mean")), strict=True)
    if {page: tuple(row) for page, *row in rows} != pages:
        raise RuntimeError("the pages' aggregates differ")
    seconds = (
        best_seconds(
            {
                "dict loop": lambda: by_dicts(events),
                "columns open": lambda: by_columns(opened),
                "columns open, first use": lambda: by_columns(first_uses.pop()),
                "decode and dict loop": lambda: by_dicts([Event(*row) for row in plain.decode(encoded)]),
                "columns from bytes": lambda: by_columns(Events.from_bytes(encoded)),
            },
            rounds,
        )
        if (first_uses := [Events.from_bytes(encoded) for _ in range(rounds)])
        else {}
    )
    return {
        "events": len(events),
        "thousand_events_per_cpu_s": {name: len(events) / one / 1000 for name, one in seconds.items()},
        "times_the_dict_loop": {
            "columns open": seconds["dict loop"] / seconds["columns open"],
            "columns open, first use": seconds["dict loop"] / seconds["columns open, first use"],
            "columns from bytes": seconds["decode and dict loop"] / seconds["columns from bytes"],
        },
    }


def encode_feature(feature: object) -> bytes:
    """Return the bytes that the device's store keeps of a feature, encoded as it does."""
    return packed_value(feature) or plain.encode(feature)


def visits_in_json(seed: int, visits: int) -> list[bytes]:
    return [
        json.dumps([event.to_dict() for event in visit], separators=(",", ":")).encode()
        for _, visit in generated_visits(seed, max(1, visits // 50), 50)
    ]


def each[T](function: Callable[[T], object], values: Sequence[T]) -> Callable[[], None]:
    """Return a function that calls `function` with each value, and drops what it returns."""

    def call_all() -> None:
        for value in values:
            function(value)

    return call_all


def measure_ipv(visits: int, rounds: int) -> dict[str, Any]:
    """Return CPU microseconds a visit of `json.loads`, and of the steps from JSON to the compressed feature."""
    features = task_module("features")
    texts = visits_in_json(7, visits)
    compress = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=True).compress
    samples = [features.encoded_feature(Events.from_json(text)).data for text in visits_in_json(8, visits)]
    compress_by_dictionary = Dictionary(train_dictionary(samples)).compressor.compress
    opened = [Events.from_json(text) for text in texts]
    encoded = [features.encoded_feature(events).data for events in opened]
    if encoded != [encode_feature(features.ipv_feature(events)) for events in opened]:
        raise RuntimeError("the encoded features differ from those that are encoded from Python objects")
    seconds = best_seconds(
        {
            "json.loads": each(json.loads, texts),
            "JSON to compressed feature": each(
                lambda text: compress(features.encoded_feature(Events.from_json(text)).data), texts
            ),
            "  with a dictionary": each(
                lambda text: compress_by_dictionary(features.encoded_feature(Events.from_json(text)).data), texts
            ),
            "  through Python objects": each(
                lambda text: compress(encode_feature(features.ipv_feature(Events.from_json(text)))), texts
            ),
            "  read JSON": each(Events.from_json, texts),
            "  read, and encoded feature": each(
                lambda text: features.encoded_feature(Events.from_json(text)).data, texts
            ),
            "  zstd": each(compress, encoded),
            "  zstd with a dictionary": each(compress_by_dictionary, encoded),
        },
        rounds,
    )
    return {
        "visits": len(texts),
        "json_bytes": sum(map(len, texts)) / len(texts),
        "feature_bytes": sum(map(len, encoded)) / len(texts),
        "compressed_bytes": sum(len(compress(data)) for data in encoded) / len(texts),
        "compressed_bytes_with_dictionary": sum(len(compress_by_dictionary(data)) for data in encoded) / len(texts),
        "cpu_us": {name: one / len(texts) * 1e6 for name, one in seconds.items()},
        "share_of_json_loads": seconds["JSON to compressed feature"] / seconds["json.loads"],
        "share_with_dictionary": seconds["  with a dictionary"] / seconds["json.loads"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    aggregation = measure_aggregation(options.visits, options.rounds)
    ipv = measure_ipv(min(options.visits, 400), options.rounds)
    if options.json:
        print(json.dumps({"aggregation": aggregation, "ipv": ipv}, indent=1))
        return
    print(f"aggregation of {aggregation['events']:,} events, thousand events per CPU second")
    for name, rate in aggregation["thousand_events_per_cpu_s"].items():
        times = aggregation["times_the_dict_loop"].get(name)
        print(f"  {name:28}{rate:>12,.0f}" + (f"{times:>8.1f} x" if times else ""))
    print(f"IPV, {ipv['json_bytes']:,.0f} bytes of JSON a visit, CPU us a visit")
    for name, cost in ipv["cpu_us"].items():
        print(f"  {name:28}{cost:>12,.1f}")
    print(
        f"  share of json.loads: {ipv['share_of_json_loads']:.3f}, with a dictionary {ipv['share_with_dictionary']:.3f}"
        f" (feature {ipv['feature_bytes']:,.0f} bytes, compressed {ipv['compressed_bytes']:,.0f},"
        f" with a dictionary {ipv['compressed_bytes_with_dictionary']:,.0f})"
    )
    rates = aggregation["thousand_events_per_cpu_s"]
    print_headline(
        f"{aggregation['events']:,} events aggregated by page from their bytes, in a second of CPU time",
        unit="thousand",
        better="higher",
        ours=rates["columns from bytes"],
        peers={"loop over dicts in Python": rates["decode and dict loop"]},
    )


if __name__ == "__main__":
    main()

"""Generator of the events for a release's simulation (README.md): `python -m apps.ipv.make_simulation`."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from apps.ipv.generator import START_MS, ShoppingEvents
from walle.pipeline.events.event import CLICK, PAGE_EXIT, Event

SIMULATION_PATH = Path(__file__).parent / "task" / "simulation" / "events.jsonl"
SEED = 1
DEVICES = 10
VISITS_EACH = 3
MAX_VISIT_EVENTS = 10
_WEEK_MS = 7 * 86_400_000


def simulation_visits() -> list[list[Event]]:
    """Return the visits: of each device, its first short ones with a click.

    Devices follow each other a week apart, so that the whole file is in the order of time.
    """
    visits: list[list[Event]] = []
    for device in range(DEVICES):
        stream = ShoppingEvents(SEED, f"simulation-{device:02d}", start_ms=START_MS + device * _WEEK_MS)
        visits.extend(itertools.islice(filter(_fits, _visits(stream)), VISITS_EACH))
    return visits


def _visits(stream: ShoppingEvents) -> Iterator[list[Event]]:
    visit: list[Event] = []
    for _, event in stream:
        visit.append(event)
        if event.event_id == PAGE_EXIT:
            yield visit
            visit = []


def _fits(visit: list[Event]) -> bool:
    return len(visit) <= MAX_VISIT_EVENTS and any(event.event_id == CLICK for event in visit)


def write_simulation(path: Path = SIMULATION_PATH) -> Path:
    """Write the visits as JSON lines, one event each, visit after visit; return the path."""
    events = itertools.chain.from_iterable(simulation_visits())
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(event.to_dict(), separators=(",", ":")) + "\n" for event in events]
    path.write_text("".join(lines), encoding="utf-8")
    return path


if __name__ == "__main__":
    write_simulation()

"""Page visits of event logs and of the generator, each with its user: the input of training, figures and rankings."""

from collections.abc import Iterator
from pathlib import Path

from apps.ipv.generator import ShoppingEvents
from walle.pipeline.events.event import PAGE_EXIT, Event
from walle.pipeline.events.event_log import EventLog
from walle.pipeline.trigger.trie import EventStream

MAPPINGS = Path(__file__).parent / "mappings"
LOGS = {  # file of a log: its mapping
    "shop_app_events_a.jsonl.gz": "shop_app_events.toml",
    "web_shop_hits_a.csv.gz": "web_shop_hits.toml",
    "snowplow_ecommerce_events.csv": "snowplow_ecommerce.toml",
}

type UserVisit = tuple[str, list[Event]]  # user and events, from enter to exit


def open_log(folder: Path, name: str) -> EventLog:
    """Return the log `name` of LOGS in `folder`, with its mapping."""
    return EventLog(folder / name, MAPPINGS / LOGS[name])


def logged_visits(log: EventLog) -> Iterator[UserVisit]:
    """Yield the finished page visits of a log in the order of their exits; a stream of the log is a user."""
    streams: dict[str, EventStream] = {}
    for record in log.records():
        stream = streams.get(record.stream)
        if stream is None:
            stream = streams[record.stream] = EventStream(max_events=1)
        visit, _ = stream.feed(record.position, record.event)
        if visit is not None and record.event.event_id == PAGE_EXIT:
            yield record.stream, visit.events


def generated_visits(seed: int, users: int, visits_each: int) -> Iterator[UserVisit]:
    """Yield the first visits of each user of the generator, user after user."""
    for number in range(users):
        user = f"device-{number:04d}"
        left, visit = visits_each, list[Event]()
        for _, event in ShoppingEvents(seed, user):
            visit.append(event)
            if event.event_id == PAGE_EXIT:
                yield user, visit
                visit, left = [], left - 1
                if not left:
                    break

"""Training examples of the IPV encoder: a visit's rows, the action after each event, and the visit that follows it.

Two actions are predicted. After each event but the last: the kind of the next event of the visit, a click that is an
action by its name. After the last: the user's next visit, within half an hour of the exit.
"""

import dataclasses
import importlib
import sys
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from apps.ipv.logs import UserVisit
from walle.pipeline.events.event import CLICK, EXPOSURE, PAGE_EXIT, PAGE_SCROLL, Event

NEXT_EVENTS = (PAGE_SCROLL, EXPOSURE, CLICK, PAGE_EXIT, "add_favorite", "add_cart", "purchase", "other")
NEXT_VISITS = ("none", "the same page", "a page of an item", "another page")
MAX_STEPS = 64  # rows of one example; of a longer visit the last ones, as in the task
_SESSION_GAP_MS = 1_800_000
_HELD_OUT_PERCENT = 20
_TASK = Path(__file__).parent / "task"


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One visit: `rows` [T, 16], `next_events` [T] with -1 for the last, `next_visit` -1 if it is not known."""

    user: str
    rows: NDArray[np.float32]
    kinds: tuple[str, ...]
    next_events: NDArray[np.int64]
    next_visit: int


def task_module(name: str) -> ModuleType:
    """Return a module of the task's folder, which is on the path of task VMs only."""
    if str(_TASK) not in sys.path:
        sys.path.append(str(_TASK))
    return importlib.import_module(name)


def is_held_out(user: str) -> bool:
    """Return whether a user's visits test the encoder and do not train it: a fifth of the users, by a hash."""
    return zlib.crc32(f"held out/{user}".encode()) % 100 < _HELD_OUT_PERCENT


def make_examples(visits: Iterable[UserVisit]) -> list[Example]:
    """Return an example for each visit, in the order of the visits. A user's last visit has no known successor."""
    step_rows = task_module("steps").step_rows
    listed = list(visits)
    following: dict[int, list[Event]] = {}
    latest: dict[str, int] = {}
    for number, (user, visit) in enumerate(listed):
        if user in latest:
            following[latest[user]] = visit
        latest[user] = number
    examples = []
    for number, (user, whole) in enumerate(listed):
        visit = whole[-MAX_STEPS:]
        rows = np.asarray(step_rows(visit)[: len(visit)], np.float32)
        after = [NEXT_EVENTS.index(action_of(event)) for event in visit[1:]]
        next_visit = next_visit_of(whole, following[number]) if number in following else -1
        kinds = tuple(event.event_id for event in visit)
        examples.append(Example(user, rows, kinds, np.asarray([*after, -1], np.int64), next_visit))
    return examples


def action_of(event: Event) -> str:
    """Return the class of an event among NEXT_EVENTS."""
    action = event.contents.get("action")
    if event.event_id == CLICK and action in NEXT_EVENTS[4:7]:
        return str(action)
    return event.event_id if event.event_id in NEXT_EVENTS[:4] else "other"


def next_visit_of(visit: Sequence[Event], following: Sequence[Event]) -> int:
    """Return the class of the visit that follows, among NEXT_VISITS."""
    if following[0].ts_ms - visit[-1].ts_ms > _SESSION_GAP_MS:
        return 0
    if following[0].page_id == visit[0].page_id:
        return 1
    of_page = any(event.contents.get("item_id") for event in (following[0], following[-1]))
    items = {event.contents["item_id"] for event in following if event.contents.get("item_id")}
    return 2 if of_page or len(items) == 1 else 3

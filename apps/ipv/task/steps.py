"""The encoder's input for a page visit: one row of 16 numbers per event, each in about [-1, 1].

column  0      1: an event; 0: padding, which leaves the encoder's state unchanged
        1..5   kind, one-hot; zeros for an unknown kind
        6, 7   time since the event before, and since the first: log(1 + seconds), scaled
        8, 9   scroll depth, and its change
        10     place in the list of exposed items: log(1 + slot), scaled
        11..13 add-favourite, add-cart, purchase
        14     item: a hash
        15     widget, of an enter the page, of an unknown kind its event id: a hash
"""

import math

from fields import KINDS, number, text_hash

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from walle.task import Event

CHUNK = 8  # steps that the encoder takes at once; rows are padded to a multiple
MAX_STEPS = 256  # bounds the work, and an escalated visit to 16 KB
WIDTH = 16
_ACTIONS = ("add_favorite", "add_cart", "purchase")


def step_rows(events: "list[Event]") -> list[list[float]]:
    """Return the rows of the last MAX_STEPS events, then padding: a multiple of CHUNK rows, at least CHUNK."""
    events = events[-MAX_STEPS:]
    rows = []
    first_ms = before_ms = events[0].ts_ms if events else 0
    depth = 0.0
    for event in events:
        row = [0.0] * WIDTH
        row[0] = 1.0
        if event.event_id in KINDS:
            row[1 + KINDS.index(event.event_id)] = 1.0
        row[6] = _log_seconds(event.ts_ms - before_ms) / 4
        row[7] = _log_seconds(event.ts_ms - first_ms) / 7
        before_ms = event.ts_ms
        contents = event.contents
        reached = min(1.0, max(0.0, number(contents.get("depth"), depth)))
        row[8], row[9] = reached, reached - depth
        depth = reached
        row[10] = math.log1p(min(1000.0, max(0.0, number(contents.get("slot"), 0.0)))) / 7
        if contents.get("action") in _ACTIONS:
            row[11 + _ACTIONS.index(contents["action"])] = 1.0
        row[14] = _signed_hash(contents.get("item_id"))
        row[15] = _signed_hash(_place(event))
        rows.append(row)
    missing = CHUNK - len(rows) if not rows else -len(rows) % CHUNK
    return rows + [[0.0] * WIDTH for _ in range(missing)]


def _place(event: "Event") -> object:
    if event.event_id not in KINDS:
        return event.event_id
    return event.page_id if event.event_id == "page_enter" else event.contents.get("widget_id")


def _log_seconds(ms: int) -> float:
    return math.log1p(min(86_400.0, max(0.0, ms / 1000)))


def _signed_hash(value: object) -> float:
    """Map a text to [-1, 1), the same on every device; 0 for an empty one."""
    return text_hash(value) / 2**31 - 1 if isinstance(value, str) and value else 0.0

"""Model of shoppers' movements for `generator.py`: sessions, page visits, and the kinds and times of their events.

Random quantities and the sources of their figures ("log" is shop_app_events_a: 5,884 events of 49 devices, 102
sessions):

====================== ========================================= =====================================================
quantity               drawn from                                measured
====================== ========================================= =====================================================
page visits a session  log-normal, median 9, sigma 0.83, 1..60   log: median 9, mean 12.5, p90 28
events a page visit    2 + log-normal, mean 19.3; 4.2 % of       paper §7.1: 19.3 raw events an IPV feature (the log's
                       visits are long: 66 to 110                own mean is 4.5, its p99 11: thinner instrumentation)
dwell on a page        log-normal, median 20 s, sigma 1,         log: median 11.2 s, mean 24.7 s, p90 67 s; median of
                       x sqrt(events / 19.3), 0.5 s .. 15 min    OTTO 32 s (clicks), of online_shoppers 30 s (a visit's
                                                                 mean), of web_shop 6 s
gaps within a visit    exposures come in bursts, 15-150 ms       log: 73 % of gaps under 0.3 s, the others' median 9 s
                       apart; the rest of the dwell is shared    (here 59 % and 1.7 s: four times the events share
                       log-normally, sigma 1                     about the same dwell)
visits with a click    11.7 %, all on item pages                 log: 150 add_to_cart on 1,277 page views
on add-to-cart
purchases              0.5 % of visits                           log: 6 on 1,277 page views
pause between sessions log-normal, median 4 h, sigma 1           none of the logs follows a device for long: assumed
====================== ========================================= =====================================================

Kinds of pages (60 % item pages, the IPV's subject), the order of scrolls, exposures and clicks, favourites (6 %) and
the share of long visits are assumptions too: neither the paper nor the logs give them.
"""

import dataclasses
import itertools
import math
import random

PAGES = {"item_detail": 60, "home": 14, "category": 10, "search": 8, "cart": 8}
LONG_SHARE = 0.042
LONG_EVENTS = (66, 110)
_BODY_MEDIAN, _BODY_SIGMA, _BODY_MOST = 11.83, 0.62, 62
_DWELL_MS = (500, 900_000)
_BURST_MS = (15, 150)
_ON_ITEM_PAGES = {"add_cart": 0.2, "add_favorite": 0.1, "purchase": 0.0085}  # a visit without room for a click drops it
_NEXT = {  # weights of the event kinds that follow each kind within a page
    "page_enter": {"exposure": 70, "page_scroll": 20, "click": 10},
    "exposure": {"exposure": 66, "page_scroll": 20, "click": 14},
    "page_scroll": {"exposure": 72, "page_scroll": 23, "click": 5},
    "click": {"exposure": 40, "page_scroll": 40, "click": 20},
}


@dataclasses.dataclass(frozen=True, slots=True)
class VisitPlan:
    """The plan of a page visit: its page, number of events, start and duration."""

    page_id: str
    events: int
    start_ms: int
    dwell_ms: int


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One event of a visit: its kind, its time, and the action of a click ("" if it has none)."""

    kind: str
    ts_ms: int
    action: str = ""


def plan_session(rng: random.Random, start_ms: int) -> tuple[list[VisitPlan], int]:
    """Return the visits of a session that starts at `start_ms`, and when the next session starts."""
    visits = []
    for _ in range(min(60, max(1, round(rng.lognormvariate(math.log(9), 0.83))))):
        page_id = rng.choices(tuple(PAGES), tuple(PAGES.values()))[0]
        events = _events(rng)
        dwell = rng.lognormvariate(math.log(20_000), 1.0) * math.sqrt(events / 19.3)
        dwell_ms = round(min(_DWELL_MS[1], max(_DWELL_MS[0], dwell, events * _BURST_MS[1])))
        visits.append(VisitPlan(page_id, events, start_ms, dwell_ms))
        start_ms += dwell_ms + rng.randint(40, 400)
    pause_ms = min(48 * 3_600_000, round(rng.lognormvariate(math.log(4 * 3_600_000), 1.0)))
    return visits, start_ms + max(1_800_000, pause_ms)


def _events(rng: random.Random) -> int:
    if rng.random() < LONG_SHARE:
        return rng.randint(*LONG_EVENTS)
    return 2 + min(_BODY_MOST, round(rng.lognormvariate(math.log(_BODY_MEDIAN), _BODY_SIGMA)))


def plan_steps(rng: random.Random, visit: VisitPlan) -> list[Step]:
    """Return the steps of a visit: page_enter first, page_exit last and exactly `dwell_ms` later."""
    kinds = ["page_enter"]
    while len(kinds) < visit.events - 1:
        following = _NEXT[kinds[-1]]
        kinds.append(rng.choices(tuple(following), tuple(following.values()))[0])
    actions = _actions(rng, visit)
    for index in actions:
        kinds[index] = "click"
    kinds.append("page_exit")
    times = _times(rng, kinds, visit)
    return [
        Step(kind, ts_ms, actions.get(index, "")) for index, (kind, ts_ms) in enumerate(zip(kinds, times, strict=True))
    ]


def _actions(rng: random.Random, visit: VisitPlan) -> dict[int, str]:
    """Return the steps of the visit that are clicks on a button, with the action of each."""
    if visit.page_id != "item_detail":
        return {}
    wanted = [action for action, share in _ON_ITEM_PAGES.items() if rng.random() < share]
    room = range(1, visit.events - 1)
    return dict(zip(sorted(rng.sample(room, min(len(wanted), len(room)))), wanted, strict=False))


def _times(rng: random.Random, kinds: list[str], visit: VisitPlan) -> list[int]:
    bursts: list[int] = []  # 0 where the gap is not one of a burst
    for before, kind in itertools.pairwise(kinds):
        in_burst = kind == "exposure" and before != "click" and rng.random() < 0.9
        bursts.append(rng.randint(*_BURST_MS) if in_burst else 0)
    weights = [
        0.0 if burst else rng.lognormvariate(0.0, 1.0) for burst in bursts
    ]  # the last gap, to exit, always counts
    unit = (visit.dwell_ms - sum(bursts)) / sum(weights)
    times, elapsed = [visit.start_ms], 0.0
    for burst, weight in zip(bursts, weights, strict=True):
        elapsed += burst + weight * unit
        times.append(visit.start_ms + int(elapsed))
    times[-1] = visit.start_ms + visit.dwell_ms
    return times

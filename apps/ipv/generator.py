"""Shopping event streams from a seed, one per device: events as a phone's tracking SDK would pass them to Walle.

A stream is the same for the same seed and device id, and can start at any position: a device that restarts reads again
the events that its open pages need. `visits.py` models the shoppers' movements and names the sources of its figures;
this module adds the contents that real SDKs send: every event repeats application, device, network, user, session and
status fields (names after shop_app_events_a, whose events have 1,234 bytes on average as compact JSON), and adds a few
that belong to its kind. Sizes follow §7.1 of the paper: 19.3 raw events and 21.2 KB (21,200 bytes of compact JSON) a
page visit, 1,098 bytes an event. Over 20,000 visits of 200 devices (seed 7) this module gives 19.30 events and 21,207
bytes a visit, 1,099 bytes an event; 11.9 % of the visits add to the cart, 4.2 % have more than 64 events, and 1.4 % are
that long on a device of performance class "low".
"""

import json
import random
from collections.abc import Iterator
from typing import Any

from apps.ipv import catalogue
from apps.ipv.attributes import DeviceAttributes, device_attributes
from apps.ipv.visits import Step, VisitPlan, plan_session, plan_steps
from walle.pipeline.events.event import Event

START_MS = 1_700_000_000_000
_MODELS = {
    "android": (("Redmi", "23049RAD8C"), ("HUAWEI", "ALN-AL00"), ("vivo", "V2309A")),
    "ios": (("Apple", "iPhone15,2"),),
}
_SCREENS = {"low": (720, 1600), "middle": (1080, 2400), "high": (1440, 3200)}
_WIDGETS = {
    "item_detail": ("picture", "sku_panel", "reviews", "shop_entry", "share", "similar_item"),
    "home": ("banner", "feed_item", "search_box", "channel_tab"),
    "category": ("filter", "sort", "feed_item"),
    "search": ("search_box", "suggestion", "filter", "result_item"),
    "cart": ("select_item", "change_quantity", "item_title", "coupon"),
}
_BUTTONS = {"add_cart": "button_add_cart", "add_favorite": "button_favorite", "purchase": "button_buy_now"}


def event_bytes(event: Event) -> int:
    """Return the size of an event as compact JSON without an end of line: the "raw bytes" of reports."""
    fields = {"event_id": event.event_id, "page_id": event.page_id, "ts_ms": event.ts_ms, "contents": event.contents}
    return len(json.dumps(fields, separators=(",", ":")))


class ShoppingEvents:
    """The endless event stream of one device. The position of an event is its number, from 0 without gaps."""

    def __init__(self, seed: int, device_id: str, *, start_ms: int = START_MS) -> None:
        self.seed = seed
        self.device_id = device_id
        self.start_ms = start_ms
        self.attributes = device_attributes(seed, device_id)
        self._fixed = _fixed_fields(self._rng("device"), device_id, self.attributes)

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        return self.events_from(0)

    def events_from(self, position: int) -> Iterator[tuple[int, Event]]:
        """Return the events from `position` on, with their positions.

        Sessions and visits before it are planned but not written out: about 0.2 s for a million events.

        Raises:
            ValueError: the position is negative.
        """
        if position < 0:
            raise ValueError(f"position {position}: positions start at 0")
        return self._play(position)

    def _play(self, position: int) -> Iterator[tuple[int, Event]]:
        first, session, start_ms = 0, 0, self.start_ms
        while True:
            visits, next_ms = plan_session(self._rng(session), start_ms)
            for number, visit in enumerate(visits):
                if first + visit.events > position:
                    for index, event in enumerate(self._write(session, number, visit, start_ms), first):
                        if index >= position:
                            yield index, event
                first += visit.events
            session, start_ms = session + 1, next_ms

    def _rng(self, *where: object) -> random.Random:
        return random.Random("/".join(map(str, ("events", self.seed, self.device_id, *where))))

    def _write(self, session: int, number: int, visit: VisitPlan, session_ms: int) -> list[Event]:
        rng = self._rng(session, number)
        fixed = self._fixed | {
            "session_id": f"{self.device_id[-8:]}-{session_ms}",
            "session_start_ms": session_ms,
            "session_number": session + 1,
            "trace_id": f"{rng.getrandbits(128):032x}",
            "referrer": f"app://shop.example/{rng.choice(tuple(_WIDGETS))}?scm=1007.{rng.randint(10_000, 99_999)}.0.0",
            "page_url": f"app://shop.example/{visit.page_id}?spm=a2141.{rng.randint(1_000_000, 9_999_999)}.0.0",
        }
        page = _Page(rng, visit)
        events = []
        for step in plan_steps(rng, visit):
            status = _status_fields(rng, step.ts_ms - session_ms)
            contents = page.contents(step) | fixed | {"record_id": f"{rng.getrandbits(128):032x}"} | status
            events.append(Event(step.kind, visit.page_id, step.ts_ms, contents))
        return events


class _Page:
    """The state of one page visit for its events' contents: its item, scroll depth, and exposed items."""

    def __init__(self, rng: random.Random, visit: VisitPlan) -> None:
        self._rng = rng
        self._visit = visit
        self._item = _popular_item(rng) if visit.page_id == "item_detail" else None
        self._depth = 0.0
        self._slot = 0

    def contents(self, step: Step) -> dict[str, Any]:
        """Return the fields of the event's kind."""
        match step.kind:
            case "page_enter":
                return self._item_fields() | {
                    "source": self._rng.choice(("home", "search", "category", "push", "share"))
                }
            case "page_scroll":
                move = self._rng.uniform(0.02, 0.25) * self._rng.choice((1, 1, 1, -1))
                self._depth = round(min(1.0, max(0.0, self._depth + move)), 3)
                return {"depth": self._depth, "velocity": round(abs(self._rng.gauss(0, 1200)), 1)}
            case "exposure":
                self._slot += 1
                shown = _popular_item(self._rng)
                return {
                    "item_id": shown.item_id,
                    "slot": self._slot,
                    "area": f"area_{self._rng.randint(100_000, 999_999)}",
                }
            case "click":
                if step.action:
                    pressed = {
                        "widget_id": _BUTTONS[step.action],
                        "action": step.action,
                        "sku_id": f"{self._rng.getrandbits(40)}",
                    }
                    return pressed | self._item_fields()
                return {"widget_id": self._rng.choice(_WIDGETS[self._visit.page_id]), "x": self._rng.randint(0, 1080)}
            case _:
                return self._item_fields() | {"reason": self._rng.choice(("back", "back", "next_page", "background"))}

    def _item_fields(self) -> dict[str, Any]:
        if self._item is None:
            return {}
        item = self._item
        return {"item_id": item.item_id, "category": item.category, "price_cents": item.price_cents}


def _popular_item(rng: random.Random) -> catalogue.Item:
    """A few items draw most of the views: rank ~ u^3."""
    return catalogue.item(int(rng.random() ** 3 * catalogue.ITEMS))


def _fixed_fields(rng: random.Random, device_id: str, attributes: DeviceAttributes) -> dict[str, Any]:
    """The fields that every event of a device repeats."""
    brand, model = rng.choice(_MODELS[attributes.os])
    width, height = _SCREENS[attributes.performance]
    return {
        "app_id": "shop",
        "app_version": attributes.app_version,
        "app_package_name": "com.example.shopping",
        "sdk_name": "tracker",
        "sdk_version": "4.7.1",
        "device_id": device_id,
        "unique_id": f"{rng.getrandbits(128):032x}",
        "platform": attributes.os,
        "os_version": str(rng.randint(12, 17)),
        "brand": brand,
        "model": model,
        "locale": rng.choice(("zh_CN", "en_US", "de_DE")),
        "country_code": rng.choice(("CN", "US", "DE")),
        "carrier": rng.choice(("China Unicom", "China Mobile", "Telekom")),
        "zone_offset": 28_800_000,
        "screen_width": width,
        "screen_height": height,
        "user": {"user_id": f"{rng.getrandbits(64):016x}", "first_touch_ms": START_MS - rng.randint(0, 10**10)},
    }


def _status_fields(rng: random.Random, since_ms: int) -> dict[str, Any]:
    """The device's state, which SDKs attach to each event and the feature does not use."""
    return {
        "network_type": rng.choice(("WIFI", "WIFI", "5G", "4G")),
        "signal_dbm": rng.randint(-110, -50),
        "battery_level": round(max(0.05, 0.9 - since_ms / 2e7), 3),
        "battery_charging": False,
        "memory_free_mb": rng.randint(200, 3000),
        "storage_free_mb": rng.randint(2_000, 90_000),
        "cpu_load": round(rng.random(), 3),
        "orientation": "portrait",
        "session_duration_ms": since_ms,
    }

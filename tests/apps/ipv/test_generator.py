import itertools
import json
import statistics

import pytest

from apps.ipv import catalogue
from apps.ipv.attributes import APP_VERSIONS, device_attributes
from apps.ipv.generator import ShoppingEvents, event_bytes
from walle.pipeline.events.event import BASIC_KINDS, PAGE_ENTER, PAGE_EXIT, Event

VISITS = 2000


def visits_of(stream: ShoppingEvents, count: int) -> list[list[Event]]:
    visits: list[list[Event]] = [[]]
    for _, event in stream:
        visits[-1].append(event)
        if event.event_id == PAGE_EXIT:
            if len(visits) == count:
                break
            visits.append([])
    return visits


@pytest.fixture(scope="module")
def visits() -> list[list[Event]]:
    """2,000 visits of 100 devices."""
    return [
        visit for number in range(100) for visit in visits_of(ShoppingEvents(7, f"device-{number:04d}"), VISITS // 100)
    ]


def test_events_a_visit_follow_the_paper(visits: list[list[Event]]) -> None:
    assert len(visits) == VISITS
    assert statistics.fmean(map(len, visits)) == pytest.approx(19.3, rel=0.03)


def test_bytes_a_visit_follow_the_paper(visits: list[list[Event]]) -> None:
    sizes = [sum(map(event_bytes, visit)) for visit in visits]
    assert statistics.fmean(sizes) == pytest.approx(21_200, rel=0.03)


def test_dwell_follows_the_logs(visits: list[list[Event]]) -> None:
    dwell_s = [(visit[-1].ts_ms - visit[0].ts_ms) / 1000 for visit in visits]
    assert 11.2 <= statistics.median(dwell_s) <= 32  # medians of the shop app and of OTTO
    assert min(dwell_s) >= 0.5


def test_visits_that_add_to_the_cart_follow_the_log(visits: list[list[Event]]) -> None:
    adding = sum(any(event.contents.get("action") == "add_cart" for event in visit) for visit in visits)
    assert 0.09 < adding / VISITS < 0.15


def test_few_visits_are_long(visits: list[list[Event]]) -> None:
    assert 0.02 < sum(len(visit) > 64 for visit in visits) / VISITS < 0.07


def test_a_visit_starts_with_its_enter_and_ends_with_its_exit(visits: list[list[Event]]) -> None:
    for visit in visits:
        kinds = [event.event_id for event in visit]
        assert kinds[0] == PAGE_ENTER
        assert kinds[-1] == PAGE_EXIT
        assert set(kinds[1:-1]) <= set(BASIC_KINDS) - {PAGE_ENTER, PAGE_EXIT}
        assert len({event.page_id for event in visit}) == 1
        assert all(before.ts_ms <= after.ts_ms for before, after in itertools.pairwise(visit))


def test_contents_carry_what_sdks_send(visits: list[list[Event]]) -> None:
    for event in visits[0]:
        assert {"device_id", "network_type", "screen_width", "locale", "battery_level", "user"} <= set(event.contents)
    records = [event.contents["record_id"] for visit in visits for event in visit]
    assert len(set(records)) == len(records)


def test_the_same_seed_and_device_give_the_same_events_and_others_do_not() -> None:
    def first(seed: int, device_id: str) -> list[Event]:
        return [event for _, event in itertools.islice(ShoppingEvents(seed, device_id), 100)]

    assert first(1, "a") == first(1, "a")
    assert first(1, "a") != first(2, "a")
    assert first(1, "a") != first(1, "b")


def test_time_never_goes_back() -> None:
    times = [event.ts_ms for _, event in itertools.islice(ShoppingEvents(3, "device"), 5000)]
    assert all(before <= after for before, after in itertools.pairwise(times))


def test_a_stream_can_be_entered_anywhere() -> None:
    stream = ShoppingEvents(5, "device")
    whole = list(itertools.islice(stream, 1500))
    assert [position for position, _ in whole] == list(range(1500))
    for start in (0, 1, 17, 500, 1203, 1499):
        assert list(itertools.islice(stream.events_from(start), 1500 - start)) == whole[start:]


def test_a_negative_position_is_refused() -> None:
    with pytest.raises(ValueError, match="positions start at 0"):
        ShoppingEvents(5, "device").events_from(-1)


def test_the_size_of_an_event_is_its_line_of_json() -> None:
    event = Event("click", "home", 5, {"x": "é"})
    assert event_bytes(event) == len(json.dumps(event.to_dict(), separators=(",", ":")).encode())


def test_attributes_are_steady_and_varied() -> None:
    drawn = [device_attributes(1, f"device-{number}") for number in range(1000)]
    assert drawn[7] == device_attributes(1, "device-7")
    assert {attributes.app_version for attributes in drawn} == set(APP_VERSIONS)
    assert 0.3 < sum(attributes.performance == "low" for attributes in drawn) / 1000 < 0.4
    assert set(drawn[0].to_profile()) == {"os", "performance", "user_age"}


def test_the_catalogue_finds_its_items_and_no_others() -> None:
    items = [catalogue.item(number) for number in (0, 1, 4711, catalogue.ITEMS - 1)]
    assert [catalogue.find(item.item_id) for item in items] == items
    last_but_one = str(int(items[0].item_id) + 1)
    for unknown in ("", "1", "x" * 12, last_but_one, "²" * 12, "9" * 12, "9" * 10_000):
        assert catalogue.find(unknown) is None
    with pytest.raises(IndexError, match="catalogue holds items 0 to"):
        catalogue.item(catalogue.ITEMS)

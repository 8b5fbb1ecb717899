import itertools
import json
import math
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.pipeline import slow_events
from walle.base import plain
from walle.engine_ext import _core
from walle.pipeline.events.event import MAX_CONTENTS_DEPTH, Event, EventError
from walle.pipeline.stream.events import Events

FUNCTIONS = ("count", "sum", "mean", "min", "max", "span", "first", "last", "distinct", "std", "q1", "median", "q3")
FIELDS = ("event_id", "page_id", "ts_ms", "n", "item.price", "item", "contents.ts_ms", "nothing")

numbers = st.one_of(
    st.integers(-5, 5),
    st.integers(-(2**53), 2**53),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0, 1e16, -1e16, 0.1, 1e300]),
    st.floats(-1e6, 1e6),
)
scalars = st.one_of(
    st.none(), st.booleans(), numbers, st.text(max_size=3), st.sampled_from(["a", "b", "\u00e9\U0001f600"])
)
contents = st.fixed_dictionaries(
    {},
    optional={
        "n": scalars,
        "item": st.one_of(scalars, st.fixed_dictionaries({}, optional={"price": scalars, "other": scalars})),
        "ts_ms": scalars,
        "list": st.lists(scalars, max_size=3),
    },
)
events_of = st.lists(
    st.builds(
        Event,
        st.sampled_from(["click", "exposure", "item", "\u4e2d"]),
        st.sampled_from(["", "item", "list"]),
        st.integers(0, 60),
        contents,
    ),
    max_size=12,
)


def same(left: Any, right: Any) -> bool:
    """Return whether values and their types are equal; floats nearly, because sums are compensated differently."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or math.isclose(left, right, rel_tol=1e-12, abs_tol=1e-9)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return (
            isinstance(right, dict) and list(left) == list(right) and all(same(left[key], right[key]) for key in left)
        )
    return type(left) is type(right) and left == right


def columns(events: list[Event]) -> Events:
    """Return the events as a VM gets them: from their bytes."""
    return Events.from_bytes(Events(events).encode())


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(events_of)
def test_events_come_back_from_their_bytes(events: list[Event]) -> None:
    encoded = Events(events).encode()
    assert encoded == plain.encode([(one.event_id, one.page_id, one.ts_ms, one.contents) for one in events])
    opened = Events.from_bytes(encoded)
    assert list(opened) == events
    assert opened.encode() == encoded
    assert [opened[index] for index in range(-len(events), len(events))] == [*events, *events]


@given(events_of, st.sampled_from(FIELDS), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), scalars)
def test_where_agrees_with_the_predicate_of_a_trigger(
    events: list[Event], field: str, comparison: str, value: Any
) -> None:
    if value is None or (isinstance(value, bool) and comparison not in ("==", "!=")):
        with pytest.raises(EventError):
            columns(events).where(field, comparison, value)  # type: ignore[arg-type]
        return
    assert list(columns(events).where(field, comparison, value)) == slow_events.where(events, field, comparison, value)


@given(events_of, st.sampled_from([None, "click", "nothing"]), st.sampled_from([None, "", "item"]), st.integers(0, 70))
def test_selections_are_those_of_the_slow_meaning(
    events: list[Event], event_id: str | None, page_id: str | None, end_ms: int
) -> None:
    view = columns(events)
    assert list(view.named(event_id, page_id)) == slow_events.named(events, event_id, page_id)
    assert list(view.key_by("item")) == [one for one in events if "item" in (one.event_id, one.page_id)]
    assert list(view.time_window(5, 5 + end_ms)) == slow_events.window(events, 5, 5 + end_ms)[2]
    assert list(view[1:-1]) == events[1:-1]
    assert list(view[::-2]) == events[::-2]
    chained = view.named("click").filter(lambda event: event.ts_ms > 10).where("n", ">", 0)
    clicks = [event for event in events if event.event_id == "click" and event.ts_ms > 10]
    assert list(chained) == slow_events.where(clicks, "n", ">", 0)
    mapped = view.map(lambda held: {"n": held.get("n"), "size": len(held)})
    assert mapped.sum("size") == sum(len(event.contents) for event in events)


@given(events_of, st.sampled_from(FIELDS), st.sampled_from(FUNCTIONS))
def test_aggregations_are_those_of_python(events: list[Event], field: str, function: str) -> None:
    view = columns(events)
    if function == "distinct" and any(isinstance(slow_events.field_of(event, field), dict | list) for event in events):
        with pytest.raises(EventError, match=r"of event \d+ is a list or an object"):
            view.distinct(field)
        return
    expected = slow_events.aggregate(events, field, function)
    assert same(view.aggregate(found=(field, function))["found"], expected)
    if hasattr(view, function):
        assert same(getattr(view, function)(field), expected)


@given(events_of, st.lists(st.sampled_from(["event_id", "page_id", "n", "ts_ms"]), min_size=1, max_size=3, unique=True))
def test_groups_are_those_of_a_dict(events: list[Event], fields: list[str]) -> None:
    groups = columns(events).group_by(*fields)
    expected = slow_events.grouped(events, lambda event: tuple(slow_events.group_key(event, field) for field in fields))
    assert [list(group) for _, group in groups] == list(expected.values())
    keys = [tuple(value for _, value in key) for key in expected]
    assert groups.group_keys() == [key[0] if len(fields) == 1 else key for key in keys]
    table = groups.aggregate(events="count", total=("item.price", "sum"))
    assert table["events"] == [len(group) for group in expected.values()]
    assert same(table["total"], [slow_events.aggregate(group, "item.price", "sum") for group in expected.values()])


@given(events_of, st.integers(1, 30), st.integers(1, 30), st.integers(-20, 20))
def test_windows_are_those_of_the_slow_meaning(
    events: list[Event], size_ms: int, every_ms: int, offset_ms: int
) -> None:
    view, every_ms = columns(events), min(every_ms, size_ms)
    for groups, expected in (
        (view.tumbling(size_ms, offset_ms=offset_ms), slow_events.tumbling(events, size_ms, offset_ms)),
        (
            view.sliding(size_ms, every_ms, offset_ms=offset_ms),
            slow_events.sliding(events, size_ms, every_ms, offset_ms),
        ),
        (view.sessions(size_ms), slow_events.sessions(events, size_ms)),
    ):
        assert groups.group_keys() == [(start, end) for start, end, _ in expected]
        found = [sorted(group, key=lambda event: event.ts_ms) for _, group in groups]
        assert found == [sorted(inside, key=lambda event: event.ts_ms) for _, _, inside in expected]
    by_page = view.group_by("page_id").tumbling(size_ms)
    pages = slow_events.grouped(events, lambda event: event.page_id)
    assert by_page.group_keys() == [
        (page, start, end) for page, held in pages.items() for start, end, _ in slow_events.tumbling(held, size_ms, 0)
    ]


@given(events_of, st.sampled_from([None, 0.0, 2.5]), st.sampled_from([float("inf"), 3.0]))
def test_a_spread_is_that_of_the_sorted_numbers(events: list[Event], default: float | None, limit: float) -> None:
    found = [slow_events.field_of(event, "n") for event in events]
    numbers: list[Any] = [
        float(value) if slow_events.is_number(value) and -limit <= value <= limit else default for value in found
    ]
    gaps = [max(0, after.ts_ms - before.ts_ms) for before, after in itertools.pairwise(events)]
    for values, spread in (
        ([number for number in numbers if number is not None], columns(events).spread("n", default, limit)),
        (gaps, columns(events).spread("gap_ms")),
    ):
        ordered = [Event("x", "", 0, {"n": value}) for value in sorted(values)]
        expected = [slow_events.aggregate(ordered, "n", how) for how in ("mean", "std", "q1", "median", "q3", "max")]
        assert spread is None if not values else spread is not None and same(list(spread), expected)


SPECIALS = ("column", "of_first", "of_last", "rise", "fall", "turns", "mean_step", "spread")
TEXT_FUNCTIONS = ("column", "of_first", "of_last", "distinct", "distinct_count", "first_seen", "most_common")
plan_fields = st.sampled_from(["event_id", "ts_ms", "n", "item.price", "contents.ts_ms", "since_ms", "nothing"])
digits = st.fixed_dictionaries({}, optional={"digits": st.integers(0, 3)})
readings = st.fixed_dictionaries({}, optional={"default": st.just(0.0), "limit": st.sampled_from([3.0, 2.0**53])})
starts = st.fixed_dictionaries({}, optional={"start": st.just(0.5), "items": st.integers(0, 5)})
plan_steps = st.one_of(
    st.just("count"),
    st.tuples(st.one_of(plan_fields, st.just("gap_ms")), st.sampled_from([*SPECIALS, *set(FUNCTIONS) - {"distinct"}]),
              st.builds(lambda *parts: {key: part[key] for part in parts for key in part}, digits, readings, starts)),
    st.tuples(plan_fields, st.just("distinct")).filter(lambda step: step[0] != "since_ms"),
    st.tuples(plan_fields, st.sampled_from(TEXT_FUNCTIONS),
              st.builds(lambda chars, rest: {"max_chars": chars, **rest}, st.integers(0, 3), starts)),
    st.tuples(st.dictionaries(st.sampled_from("abc"), plan_fields, max_size=3), st.just("records"),
              st.one_of(starts, readings, st.just({"max_chars": 2}))),
)  # fmt: skip
templates = st.dictionaries(
    st.text(max_size=3),
    st.one_of(plan_steps, st.lists(plan_steps, max_size=3), st.dictionaries(st.just("a"), plan_steps)),
    max_size=6,
)
plans = st.dictionaries(st.sampled_from([None, "click", "exposure", "nothing"]), templates, min_size=1)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(events_of, plans)
@example([Event("click", "", 0, {}), Event("click", "", 4, {})], {None: {"": ("gap_ms", "spread", {"limit": 3.0})}})
def test_a_plan_agrees_with_its_steps(events: list[Event], selections: dict[str | None, Any]) -> None:
    assert same(Events.plan(selections).run(columns(events)), slow_events.run_plan(events, selections))


@given(st.lists(st.sampled_from(["", "a", "b", "a\u00e9", "longer"]), max_size=100), st.integers(0, 5))
def test_texts_are_counted_in_small_and_large_visits_alike(texts: list[str], max_chars: int) -> None:
    events = [Event("x", "", at, {"t": text}) for at, text in enumerate(texts)]
    options = {"max_chars": max_chars, "items": 3}
    selections = {None: {how: ("t", how, options) for how in ("distinct", "first_seen", "most_common")}}
    assert Events.plan(selections).run(columns(events)) == slow_events.run_plan(events, selections)


def test_a_plan_reads_more_fields_than_one_pass_finds() -> None:
    contents = [{f"k{number}": number * at for number in range(0, 100, 1 + at)} for at in range(3)]
    events = [Event("x", "", 0, one) for one in contents]
    steps: dict[str | None, Any] = {None: {f"k{number}": (f"k{number}", "column") for number in range(100)}}
    assert Events.plan(steps).run(columns(events)) == slow_events.run_plan(events, steps)


@given(st.floats(-1e18, 1e18), st.integers(-(10**6), 10**6), st.integers(0, 15))
def test_a_plan_rounds_as_round_does(number: float, half: int, digits: int) -> None:
    numbers = [number, half / 2, half / 8, half * 0.005, half * 0.05, 2.675, 0.15, -0.04, 1e-300]
    events = columns([Event("x", "", 0, {"n": one}) for one in numbers])
    found = Events.plan({None: {"n": ("n", "column", {"digits": digits})}}).run(events)[None]["n"]
    assert list(map(repr, found)) == [repr(round(one, digits)) for one in numbers]


@pytest.mark.parametrize(
    ("selections", "message"),
    [
        ({}, "must be a dict of event ids"),
        ({5: {}}, "an event id, unless it is None, must be str"),
        ({None: "count"}, "a selection that is not a dict of steps"),
        ({None: {"a": "sum"}}, "a step without a field that is not count"),
        ({None: {"a": ("n", "sum", {}, 1)}}, r"a part that is not \(field, function\)"),
        ({None: {"a": ("n", "sums")}}, "unknown function 'sums'"),
        ({None: {"a": ("n", "sum", {"chars": 1})}}, "unknown option 'chars'"),
        ({None: {"a": ("n", "sum", {"max_chars": 1})}}, "sum does not take max_chars"),
        ({None: {"a": ("n", "most_common")}}, "needs the option max_chars"),
        ({None: {"a": ("n", "distinct", {"limit": 1})}}, "distinct is of a field without"),
        ({None: {"a": ("n", "column", {"limit": 1, "max_chars": 1})}}, "as text .* and as a number"),
        ({None: {"a": ("n", "column", {"digits": 16})}}, "digits must be an int from 0 to 15"),
        ({None: {"a": ("n", "column", {"items": 2**70})}}, "items must be an int"),
        ({None: {"a": ("n", "column", {"default": "0"})}}, "default must be a number"),
        ({None: {"a": ("n..m", "column")}}, "empty key"),
        ({None: {"a": ("n", "records")}}, "records are of a dict"),
        ({None: {"a": [["count"] * 2] * 200}}, "more than 256 steps"),
        ({None: {"a": [[[[[[[["count"]]]]]]]]}}, "nested deeper than 8"),
    ],
)  # fmt: skip
def test_a_wrong_plan_is_refused_with_its_fault(selections: Any, message: str) -> None:
    with pytest.raises(EventError, match=message):
        Events.plan(selections)


def test_errors_name_the_field_and_the_event() -> None:
    view = Events([Event("click", "", 0, {"n": 1}), Event("click", "", 1, {"n": [1]})])
    for wrong, message in (
        (lambda: view.group_by("n"), "n: of event 1 is a list"),
        (lambda: view.sum("a..b"), "field: 'a..b' has an empty key"),
        (lambda: view.aggregate(x=("n", "sums")), "aggregation: 'sums' is unknown; use count, sum"),
        (lambda: view.where("n", "=", 1), "comparison: must be one of"),
        (lambda: view.tumbling(0), "window: must be longer than 0 ms"),
        (lambda: view.sliding(10_000, 1), "in more than 1000 windows"),
        (lambda: view.tumbling(2**70), "window"),
        (lambda: view.group_by("n.x").aggregate(**{"n.x": "count"}), "is the name of a key"),
        (lambda: Events([Event("x", "", 0, {"a": {1, 2}})]).encode(), "contents: have values"),
        (lambda: Events.from_bytes(b"\x91\x94\xa0"), "event_id: of event 0 is empty"),
        (lambda: Events.from_bytes(b"\x92\x94\xa1x\xa0\x01\x80"), "events: these bytes are not events"),
    ):
        with pytest.raises(EventError, match=message.replace("(", r"\(")):
            wrong()


def test_sums_of_large_integers_are_exact() -> None:
    view = Events([Event("x", "", 0, {"n": 2**63 - 1})] * 5 + [Event("x", "", 0, {"n": 2**64 - 1})])
    assert view.sum("n") == 5 * (2**63 - 1) + 2**64 - 1
    assert view.mean("n") == (5 * (2**63 - 1) + 2**64 - 1) / 6
    assert view.max("n") == 2**64 - 1


def test_values_that_bytes_do_not_hold_stay_in_the_events_and_are_of_no_kind_in_columns() -> None:
    array = memoryview(b"12")
    events = Events([Event("a", "", 0, {"x": array, "n": 1}), Event("b", "", 1, {"x": 10**30, "y": {1: (2,)}, "n": 2})])
    assert events.sum("n") == 3
    assert events.sum("x") == 0
    assert events.where("n", ">", 1)[0].contents["x"] == 10**30
    assert dict(events.group_by("event_id"))["a"][0].contents["x"] is array
    assert [event.contents.get("y") for event in events[::-1]] == [{1: (2,)}, None]
    assert events.column("x", "missing") == ["missing"] * 2


def test_a_large_batch_keeps_a_column_and_gives_the_same() -> None:
    events = [Event("click", f"p{index % 7}", index, {"n": index % 5}) for index in range(1000)]
    view = columns(events)
    assert view.sum("n") == view.sum("n") == 2000
    assert view.named("click").group_by("page_id").aggregate(n=("n", "sum"))["n"] == [
        sum(event.contents["n"] for event in events if event.page_id == f"p{page}") for page in range(7)
    ]


# --- JSON -------------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=40),
        st.text(st.characters(max_codepoint=127), max_size=40),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=20), st.dictionaries(st.text(max_size=20), inner, max_size=20)),
    max_leaves=40,
)


def refuse_constant(name: str) -> Any:
    raise ValueError(name)


def event_json(held: str) -> bytes:
    return b'{"event_id":"x","page_id":"p","ts_ms":5,"contents":{"v":%s}}' % held.encode("utf-8", "surrogatepass")


@given(json_values, st.booleans(), st.sampled_from([None, 1]), st.booleans())
def test_json_becomes_the_bytes_that_json_loads_would_encode(
    value: Any, ascii_only: bool, indent: int | None, as_list: bool
) -> None:
    text = event_json(json.dumps(value, ensure_ascii=ascii_only, indent=indent))
    text = b"[%s, %s]" % (text, text) if as_list else text + b"\n" + text + b"\n"
    assert Events.from_json(text).encode() == plain.encode([("x", "p", 5, {"v": json.loads(json.dumps(value))})] * 2)


pair_keys = st.sampled_from(
    [
        *(f"k{number}" for number in range(24)),
        "\\u006b1",
        "k\u00e9",
        "a key with more than thirty-two bytes of text",
        "",
    ]
)
pair_values = st.sampled_from(
    ["1", "12", "123", "-1.5", '""', '"a"', '"ab"', '"a text with more than thirty-two bytes in it"', '"\\u00e9"',
     '"\u00e9"', "null", "[1,[2]]", '{"k1":1}', '{"k1":1,"k2":{"k1":2},"k1":3}', "{}"]
)  # fmt: skip


@st.composite
def similar_contents(draw: st.DrawFn) -> list[list[tuple[str, str]]]:
    """Return the pairs of the contents of some events: each a few edits of those before, as real ones are."""
    pairs = draw(st.lists(st.tuples(pair_keys, pair_values), max_size=30))
    found = []
    for _ in range(draw(st.integers(1, 6))):
        for edit in draw(
            st.lists(st.sampled_from(["put", "put", "value", "value", "drop", "swap", "shuffle"]), max_size=5)
        ):
            at = draw(st.integers(0, len(pairs)))
            if edit == "put":
                pairs = [*pairs[:at], (draw(pair_keys), draw(pair_values)), *pairs[at:]]
            elif edit == "shuffle":
                pairs = draw(st.permutations(pairs))
            elif at < len(pairs):
                key = draw(pair_keys) if edit == "swap" else pairs[at][0]
                pairs = [*pairs[:at], *([] if edit == "drop" else [(key, draw(pair_values))]), *pairs[at + 1 :]]
        found.append(pairs)
    return found


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(similar_contents(), st.booleans(), st.integers(0, 2**32))
def test_contents_that_repeat_those_before_become_what_json_loads_makes_of_them(
    contents: list[list[tuple[str, str]]], is_compact: bool, seed: int
) -> None:
    rng = random.Random(seed)

    def spaced(mark: str) -> str:
        return mark if is_compact or rng.random() < 0.8 else rng.choice((" ", "")) + mark + rng.choice((" ", "\n\t"))

    texts = []
    for pairs in contents:
        held = "".join(f'"{key}"{spaced(":")}{value}{spaced(",")}' for key, value in pairs)
        held = "{" + held.rstrip(", \n\t") + "}"
        fields = ['"event_id":"x"', '"page_id":"p"', '"ts_ms":5', f'"contents":{held}']
        if rng.random() < 0.3:
            fields += ['"other":{"k1":1}', '"contents":{"k1":1,"k2":2,"k3":3}']
            rng.shuffle(fields)
        texts.append("{" + spaced(",").join(fields) + "}")
    text = "[" + spaced(",").join(texts) + "]"
    expected = [("x", "p", 5, event["contents"]) for event in json.loads(text)]
    assert Events.from_json(text.encode()).encode() == plain.encode(expected)


@pytest.mark.parametrize(
    "contents",
    [
        ['{"a":1,"b":2,"c":3}', '{"a":1, "b":2, "c":3}'],  # spaces where those before have none
        ['{"a":1, "b":2, "c":3}', '{"a":1,"b":2,"c":3}'],
        ['{"a":1,"b":2,"a":3}', '{"a":1,"b":2,"a":3}'],
        ['{"a":1,"b":2,"c":3}', '{"a":1,"b":2,"a":3}'],  # a key again, after pairs that were copied
        ['{"a":1,"b":2,"c":3}', '{"b":2,"c":3,"a":1,"b":9}'],
        ['{"a":1,"b":2,"c":3}', '{"x":1,"a":1,"b":2,"x":3}'],  # a key again that those before do not have
        ['{"a":1,"b":2,"c":3}', '{"a":1,"b":2,"c":3}', '{"c":3,"b":2,"a":1,"c":4}'],
        ['{"a":1,"b":2,"a":3}', '{"a":1,"b":2,"c":3}'],  # the contents before had pairs that were merged
        ["{" + ",".join(f'"k{n}":{n}' for n in range(300)) + "}"] * 2,
        ["{" + ",".join(f'"k{n}":{n}' for n in range(count)) + "}" for count in (15, 16, 17, 3, 0, 16)],
        [
            "{" + ",".join(f'"{at}{n}":{n}' for n in range(20)) + "}" for at in "aba"
        ],  # more other keys than are remembered
    ],
)
def test_equal_keys_are_found_in_contents_that_repeat_those_before(contents: list[str]) -> None:
    text = "[" + ",".join(f'{{"event_id":"x","page_id":"p","ts_ms":5,"contents":{held}}}' for held in contents) + "]"
    expected = [("x", "p", 5, event["contents"]) for event in json.loads(text)]
    assert Events.from_json(text.encode()).encode() == plain.encode(expected)


mangled = st.text(st.sampled_from('{}[]",:.0123456789eE+-\\uDd8tfnrulase \n\x01\u00e9ab'), max_size=25)


@given(mangled)
def test_json_is_refused_where_json_loads_refuses_it(held: str) -> None:
    text = event_json(held)
    try:
        value = json.loads(text, parse_constant=refuse_constant)
        encoded = plain.encode([(value["event_id"], value["page_id"], value["ts_ms"], value["contents"])])
        Event.from_dict(value)
    except (ValueError, plain.PlainDataError, EventError, KeyError):
        with pytest.raises(EventError):
            Events.from_json(text)
        return
    assert Events.from_json(text).encode() == encoded


@given(st.binary(max_size=30))
def test_bytes_that_are_not_utf8_are_refused(held: bytes) -> None:
    text = b'{"event_id":"x","page_id":"","ts_ms":0,"contents":{"a":"%s"}}' % held
    try:
        encoded = plain.encode([["x", "", 0, json.loads(text)["contents"]]])
    except (ValueError, plain.PlainDataError):
        with pytest.raises(EventError):
            Events.from_json(text)
        return
    assert Events.from_json(text).encode() == encoded


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "a long key with more than sixteen bytes", "\\u0061"]), st.integers(0, 99)
        ),
        max_size=80,
    )
)
def test_the_last_value_of_equal_keys_counts(pairs: list[tuple[str, int]]) -> None:
    text = event_json("{" + ",".join(f'"{key}": [{value}, {{"b": 0}}]' for key, value in pairs) + "}")
    assert Events.from_json(text).encode() == plain.encode([("x", "p", 5, json.loads(text)["contents"])])


@pytest.mark.parametrize(
    "number",
    ["0", "-0", "-0.0", "1e5", "1E400", "-1e400", "1e-400", "0.1", "123456789012345678", "18446744073709551615",
     "5e-324", "-9223372036854775808", "2.2250738585072011e-308", "9007199254740993.0", "0.30000000000000004", "1e22",
     "1e23", "123456789.123456789", "0.000001", "100000000000000000000000.0",
     "0.00000000000000000000000000000000012e5"],
)  # fmt: skip
def test_numbers_are_those_of_json_loads(number: str) -> None:
    assert Events.from_json(event_json(number)).encode() == plain.encode([("x", "p", 5, {"v": json.loads(number)})])


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 25))
def test_reals_round_as_json_loads_does(real: float, digits: int) -> None:
    for number in (repr(real), f"{real:.{digits}e}", f"{real:.{digits}f}"):
        if "." in number or "e" in number:
            assert Events.from_json(event_json(number)).encode() == plain.encode([("x", "p", 5, {"v": float(number)})])


def test_the_fields_of_an_event_in_json_stand_in_any_order() -> None:
    text = b'{"contents":{"a":1},"x":[1,{"y":2}],"ts_ms":3,"event_id":"no","page_id":"p","event_id":"e"}'
    assert list(Events.from_json(text)) == [Event("e", "p", 3, {"a": 1})]
    assert len(Events.from_json(b" \n")) == len(Events.from_json(b"[ ]")) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"event_id":"x","page_id":"","contents":{}}', "ts_ms: of event 0 is missing"),
        (b'{"event_id":"","page_id":"","ts_ms":1,"contents":{}}', "event_id: of event 0 is empty"),
        (b'{"event_id":"x","page_id":"","ts_ms":1.0,"contents":{}}', "ts_ms: of event 0 must be int"),
        (b'{"event_id":"x","page_id":"","ts_ms":true,"contents":{}}', "ts_ms: of event 0 must be int"),
        (b'{"event_id":"x","page_id":"","ts_ms":-1,"contents":{}}', "ts_ms: of event 0 is not milliseconds"),
        (b'{"event_id":"x","page_id":"","ts_ms":1,"contents":[]}', "contents: of event 0 must be an object"),
        (b'{"event_id":1,"page_id":"","ts_ms":1,"contents":{}}', "event_id: of event 0 must be str"),
        (b'{"event_id":"x","page_id":"","ts_ms":1,"contents":{"a":99999999999999999999}}', "byte 55 .*64 bits"),
        (b'{"event_id":"x","page_id":"","ts_ms":1,"contents":{"a":NaN}}', "event 0: byte 55 of the JSON"),
        (b'{"event_id":"x","page_id":"","ts_ms":1,"contents":{}', "ends here too early"),
        (b'{"event_id":"x","page_id":"","ts_ms":1,"contents":{}} 5', "event: of event 1 must be an object"),
        (b"[5]", "event: of event 0 must be an object"),
        (b'{"event_id":"x","page_id":"","ts_ms":1,"contents":{"a":"%s"}}' % (b"y" * 2**18), "more than 262144"),
    ],
)  # fmt: skip
def test_wrong_json_is_refused_with_its_place(text: bytes, message: str) -> None:
    with pytest.raises(EventError, match=message):
        Events.from_json(text)


def test_contents_are_as_deep_as_an_event_may_be() -> None:
    def nested(levels: int) -> bytes:
        return event_json("[" * (levels - 1) + "]" * (levels - 1))

    assert len(Events.from_json(nested(MAX_CONTENTS_DEPTH))) == 1
    with pytest.raises(EventError, match="deeper than 90"):
        Events.from_json(nested(MAX_CONTENTS_DEPTH + 1))


# --- damaged and hostile bytes ----------------------------------------------------------------------------------------

ENCODED = Events([Event("click", "p", 5, {"n": 1, "t": "text", "l": [1.5, None], "m": {"a": b"x"}})] * 3).encode()

DAMAGE_PLAN = Events.plan({
    None: {how: ("t", how, {"max_chars": 2}) for how in TEXT_FUNCTIONS} | {how: ("n", how) for how in SPECIALS},
    "click": {"l": ("l", "column"), "m": ("m", "of_last"), "r": ({"a": "m.a"}, "records")},
})  # fmt: skip


DAMAGE_RESULT = Events.result_plan([
    {how: ("t", how, {"max_chars": 2}) for how in TEXT_FUNCTIONS} | {how: ("n", how) for how in SPECIALS},
    ("click", {"t": ("t", "column"), "l": ("l", "column"), "m": ("m", "of_last"), "r": ({"a": "m.a"}, "records")}),
])  # fmt: skip


@given(st.integers(0, len(ENCODED) - 1), st.binary(min_size=1, max_size=9), st.booleans())
def test_damaged_bytes_are_refused_or_read_as_something(at: int, put: bytes, cut: bool) -> None:
    damaged = ENCODED[:at] + put + (b"" if cut else ENCODED[at + len(put) :])
    try:
        events = Events.from_bytes(damaged)
        events.aggregate(**{f"{name}_{how}": (name, how) for name in ("n", "t", "m.a") for how in FUNCTIONS})
        DAMAGE_PLAN.run(events)
        assert plain.encode(plain.decode(DAMAGE_RESULT.encode(events).data)) == DAMAGE_RESULT.encode(events).data
        list(events.group_by("t", "m.a"))
        list(events)
    except EventError:
        pass


def test_their_types_cannot_be_made_or_changed() -> None:
    for kind in (_core.EventView, _core.EventGroups, _core.EventPlan, _core.Encoded):
        with pytest.raises(TypeError):
            kind()
        with pytest.raises(TypeError):
            object.__new__(kind)
        with pytest.raises(TypeError):
            type("Sub", (kind,), {})
        with pytest.raises(TypeError):
            kind.x = 1  # type: ignore[union-attr]


@pytest.mark.parametrize("at", [0, 1])
def test_an_id_that_is_not_utf8_is_refused_by_each_way_to_read_it(at: int) -> None:
    event: list[object] = ["event", "page", 5, {}]
    event[at] = "XXXX"
    damaged = plain.encode([event]).replace(b"XXXX", b"\xff\xfe\xff\xfe")
    for read in ("fields", "rows"):
        with pytest.raises((EventError, UnicodeDecodeError)):
            getattr(_core.open_events(damaged), read)()
    with pytest.raises((EventError, UnicodeDecodeError)):
        _core.open_events(damaged).row(0)

"""Plans of one result: their meaning, and the same result encoded in C++ without objects for its parts."""

import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.pipeline import slow_events
from tests.pipeline.stream.test_event_columns import columns, events_of, plan_fields, plan_steps, same
from walle.base import plain
from walle.base.clock import SystemClock
from walle.engine_ext import _core
from walle.pipeline.events.event import Event, EventError
from walle.pipeline.features.put import Put
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.stream.events import Events

TEXT = {"max_chars": 3}
VALUES: dict[str, Any] = {"given": {"a": [1, (None, 2.5)], "b": "\u00e9", "c": b"x", "d": -(2**63)}, "empty": []}

conditions = st.fixed_dictionaries(
    {},
    optional={"omit_empty": st.booleans(), "required": st.booleans(), "otherwise": st.sampled_from([0, None, "count"])},
)
bounds = st.fixed_dictionaries({}, optional={"least": st.sampled_from([0, 2, 0.5]), "whole": st.booleans()})
# Steps whose results are the same bit for bit in C++ and in Python, so that both agree on what is empty.
exact_steps = st.one_of(
    st.tuples(plan_fields, st.sampled_from(["of_first", "of_last", "first", "last", "min", "max", "count"]),
              st.builds(lambda *parts: parts[0] | parts[1], conditions, bounds)),
    st.tuples(plan_fields, st.sampled_from(["distinct", "distinct_count", "first_seen", "most_common", "of_first"]),
              st.builds(lambda options: options | TEXT, conditions)),
    st.tuples(plan_fields, st.just("tally"),
              st.builds(lambda options: options | TEXT | {"texts": ("a", "b", "1")}, conditions)),
)  # fmt: skip
leaves = st.one_of(
    plan_steps, exact_steps, st.sampled_from([0, 7, -1.5, True, None, 2**63 - 1, ("given",), ("empty",), ("nothing",)])
)


def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    selected = st.builds(
        lambda event_id, part, options, least: (event_id, part, options | least),
        st.sampled_from([None, "click", "exposure", "nothing"]),
        inner.filter(lambda part: not isinstance(part, str)),
        conditions,
        st.fixed_dictionaries({}, optional={"min_events": st.integers(0, 3)}),
    )
    return st.one_of(selected, st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=20))


templates = st.dictionaries(st.text(max_size=3), st.recursive(leaves, around, max_leaves=12), max_size=20)
# A template nested too deep is refused, which another test covers.
shallow = templates.filter(lambda template: levels(template) <= 7)


def levels(part: Any) -> int:
    if isinstance(part, dict):
        return 1 + max(map(levels, part.values()), default=0)
    if isinstance(part, list):
        return 1 + max(map(levels, part), default=0)
    if isinstance(part, tuple) and len(part) > 1 and not isinstance(part[1], str):
        return 2 + levels(part[1])
    return 2


def nested(times: int, wrap: Callable[[Any], Any], inner: Any) -> Any:
    """Return `inner`, wrapped a given number of times."""
    for _ in range(times):
        inner = wrap(inner)
    return inner


def is_encodable(value: Any) -> bool:
    try:
        plain.encode(value)
    except plain.PlainDataError:
        return False
    return True


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None)
@given(events_of, shallow)
@example(
    [],
    {"events": "count", "none": ("n", "of_last"), "gap": ("gap_ms", "spread"), "some": (None, {}, {"min_events": 0})},
)
@example(
    [Event("click", "", 1, {"n": 0})], {"a": ("click", {"n": ("n", "last", {"omit_empty": True, "required": True})})}
)
def test_a_result_has_the_meaning_of_its_template_and_is_encoded_byte_for_byte(
    events: list[Event], template: Any
) -> None:
    plan, view = Events.result_plan(template), columns(events)
    expected = slow_events.run_part(events, template, VALUES)
    if expected is slow_events.MISSING:
        for compute in (plan.run, plan.encode):
            with pytest.raises(EventError, match="no result for these events"):
                compute(view, **VALUES)
        return
    found = plan.run(view, **VALUES)
    assert same(found, expected)
    if is_encodable(found):
        assert plan.encode(view, **VALUES).data == plain.encode(found)
        assert plain.encode(plan.encode(view, **VALUES).decode()) == plain.encode(found)
    else:
        with pytest.raises(EventError, match="more than 64 bits"):
            plan.encode(view, **VALUES)


def test_bounds_are_of_a_number_or_of_those_of_a_column() -> None:
    events = columns([Event("x", "", 0, {"n": number}) for number in (-1.5, 0, 2.5, 8.0)])
    bounds = {"whole": True, "least": 3}
    unbounded = Events.result_plan(("n", "spread")).run(events)
    for template, expected in (
        (("n", "spread", bounds), unbounded),
        (("n", "column", bounds), [3, 3, 3, 8]),
        (("n", "mean", bounds), 3),
    ):
        plan = Events.result_plan(template)
        assert plain.encode(plan.run(events)) == plan.encode(events).data == plain.encode(expected)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 255, 256, 70_000])
def test_heads_of_containers_are_the_shortest(count: int) -> None:
    events = columns([Event("x", "", at, {"n": at, "t": f"t{at}"}) for at in range(count)])
    template = {
        "list": ("n", "column"),
        "map": ("t", "most_common", {"max_chars": 9, "items": 300}),
        "left_out": {f"k{at}": (f"k{at}", "of_first") for at in range(20)} | {"n": 1},
        "records": ({"n": "n", "none": "none"}, "records", {"items": 300}),
    }
    plan = Events.result_plan(template)
    assert plan.encode(events).data == plain.encode(plan.run(events))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({5: "count"}, "the name of a step must be str"),
        ({"a": "sum"}, "a step without a field that is not count"),
        ({"a": ()}, "a part that is not"),
        ({"a": (5,)}, "the name of a given value must be str"),
        ({"a": (5, {})}, "an event id, unless it is None, must be str"),
        ({"a": {1, 2}}, "a part that is not"),
        ({"a": 2**64}, "a constant of more than 64 bits"),
        ({"a": ("click", {}, {"digits": 1})}, "a selection with options of a step"),
        ({"a": ("n", "sum", {"min_events": 1})}, "min_events, which is an option of selections"),
        ({"a": ("click", {}, {"min_events": -1})}, "min_events must be an int"),
        ({"a": ("n", "sum", {"omit_empty": 1})}, "omit_empty must be a bool"),
        ({"a": ("n", "sum", {"least": "0"})}, "least must be a number"),
        ({"a": ("n", "tally", TEXT)}, "a tally without the option texts"),
        ({"a": ("n", "tally", {"texts": ("a",)})}, "needs the option max_chars"),
        ({"a": ("n", "tally", {**TEXT, "texts": (1,)})}, "a text of a tally must be str"),
        ({"a": ("n", "tally", {**TEXT, "texts": ("a", "b", "a")})}, "a tally with the same text twice"),
        ({"a": ("n", "sum", {"texts": ("a",)})}, "texts, which is an option of tally"),
        ({"a": [["count"] * 2] * 200}, "more than 256 steps"),
        (nested(8, lambda inner: ("click", inner), {}), "nested deeper than 8"),
        (nested(8, lambda inner: ("n", "sum", {"otherwise": inner}), 0), "nested deeper than 8"),
    ],
)  # fmt: skip
def test_a_wrong_template_is_refused_with_its_fault(template: Any, message: str) -> None:
    with pytest.raises(EventError, match=message):
        Events.result_plan(template)


def test_sums_beyond_64_bits_are_refused_or_computed_by_a_run() -> None:
    events = columns([Event("x", "", 0, {"n": 2**63 - 1})] * 3)
    total = Events.result_plan({"n": ("n", "sum")})
    assert total.run(events) == {"n": 3 * (2**63 - 1)}
    with pytest.raises(EventError, match="a sum of more than 64 bits"):
        total.encode(events)
    with pytest.raises(EventError, match="under None"):
        Events.plan({None: {"n": "count"}}).encode(events)
    assert Events.plan({"x": {"n": "count"}}).encode(events).decode() == {"x": {"n": 3}}
    given = Events.result_plan(("value",))
    for value in (
        array.array("d", [1.0]),
        2**64,
        {1: 2},
        "\ud800",
        object(),
        nested(120, lambda inner: [inner], 1),
    ):
        assert given.run(events, value=value) is value
        with pytest.raises(EventError, match="given a value that cannot be encoded"):
            given.encode(events, value=value)
    with pytest.raises(EventError, match="more than 1048576 bytes"):
        given.encode(events, value=b"x" * (1 << 20))
    assert given.encode(events, value="\u4e2d" * 1000).decode() == "\u4e2d" * 1000


@pytest.mark.parametrize(
    "damage",
    [
        ({"t": "XXXX"}, b"XXXX", b"\xff\xfe\xff\xfe"),
        ({"t": "XXXX"}, b"XXXX", b"\xed\xa0\x80x"),  # a surrogate
        ({"t": ["a", {"b": "XXXX"}]}, b"XXXX", b"ab\xc3\xc3"),
        ({"t": {"XXXX": 1}}, b"XXXX", b"\xc0\x80\xc0\x80"),
        ({"t": {"XX": 1}}, b"\xa2XX", b"\xcd\x00\x01"),  # a key that is a number
    ],
)
@pytest.mark.parametrize(
    "step",
    [("t", "of_first"), ("t", "column"), ("t", "distinct", {"max_chars": 9}), ("t", "most_common", {"max_chars": 9}),
     ({"t": "t"}, "records"), ("t", "last")],
)  # fmt: skip
def test_hostile_bytes_never_become_an_encoded_value_that_is_not_plain_data(
    damage: tuple[Any, bytes, bytes], step: tuple[Any, ...]
) -> None:
    contents, text, bad = damage
    events = Events.from_bytes(plain.encode([["x", "", 0, contents]]).replace(text, bad))
    try:
        encoded = Events.result_plan({"a": step}).encode(events)
    except EventError as error:
        assert "UTF-8" in str(error) or "damaged" in str(error)  # noqa: PT017 -- texts of lists are no texts to some steps
    else:
        assert plain.encode(plain.decode(encoded.data)) == encoded.data
        assert isinstance(contents["t"], list | dict)


def test_an_array_in_encoded_events_is_none_in_a_result() -> None:
    held = plain.encode([["x", "", 0, {"l": [1, array.array("d", [1.0])]}]])
    plan = Events.result_plan({"l": ("l", "of_first")})
    assert plan.encode(Events.from_bytes(held)).decode() == plan.run(Events.from_bytes(held)) == {"l": [1, None]}


# --- encoded values ---------------------------------------------------------------------------------------------------


def encoded(value: Any) -> _core.Encoded:
    return Events.result_plan(("value",)).encode(Events(), value=value)


def test_an_encoded_value_is_compared_by_its_bytes_and_cannot_be_changed() -> None:
    one, same_bytes, other = encoded({"a": [1]}), encoded({"a": (1,)}), encoded({"a": [2]})
    assert one == same_bytes != other
    assert hash(one) == hash(same_bytes)
    assert one != {"a": [1]}  # type: ignore[comparison-overlap]
    assert repr(one) == "<Encoded plain data of 5 bytes>"
    for name in ("data", "depth", "x"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(one, name, b"")
    with pytest.raises(TypeError):
        one < other  # type: ignore[operator]  # noqa: B015


@pytest.mark.parametrize("pack", [plain.encode, lambda value: _core.packed_value(value) or plain.encode(value)])
def test_an_encoded_value_stands_for_its_value_wherever_plain_data_is_encoded(pack: Any) -> None:
    value = {"a": [1, None, "t"], "b": {"c": 2.5}}
    for wrap in (lambda x: x, lambda x: [x, {"k": x}], lambda x: {"k": x, "array": array.array("d", [1.0])}):
        assert pack(wrap(encoded(value))) == plain.encode(wrap(value))
    deep = nested(80, lambda inner: [inner], 1)
    assert pack([[[encoded(deep)]]]) == plain.encode([[[deep]]])
    deepest = nested(20, lambda inner: [inner], encoded(deep))
    assert pack(deepest) == plain.encode(nested(20, lambda inner: [inner], deep))


def test_an_event_takes_an_encoded_value_in_its_contents() -> None:
    event = Event("x", "", 0, {"v": encoded({"n": 3})})
    assert columns([event]).sum("v.n") == 3
    assert Events([event]).encode() == Events([Event("x", "", 0, {"v": {"n": 3}})]).encode()


@pytest.mark.asyncio
async def test_a_store_keeps_the_bytes_of_an_encoded_value(tmp_path: Path) -> None:
    value = {"feature": list(range(50))}
    async with FeatureStore(tmp_path / "features.db", clock=SystemClock()) as store:
        await store.put("t", encoded(value))
        await store.put("t", [encoded(value)])
        assert Put.of("t", encoded(value)).payload == plain.encode(value)
        assert [plain.decode(one.payload) for one in await store.query("t")] == [value, [value]]

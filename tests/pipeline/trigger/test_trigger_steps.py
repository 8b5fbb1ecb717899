"""Optional steps and repetition in a sequence: against regular expressions and the slow matcher (ADR 19)."""

import asyncio
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline import slow_matcher
from tests.pipeline.time_engine import play
from walle.base.clock import ManualClock
from walle.pipeline.events.event import Event
from walle.pipeline.features.store import FeatureStore
from walle.pipeline.trigger.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.trigger.task_queue import Trigger
from walle.protocol import ProtocolError, TriggerCondition
from walle.task.format.config import TaskConfig, TaskConfigError

IDS = "abc"
TIMES = st.tuples(st.integers(0, 2), st.integers(1, 3)).map(lambda times: [min(times), max(times)])


@st.composite
def steps(draw: st.DrawFn) -> list[Any]:
    """Return steps, of which the first occurs and the last occurs a given number of times."""
    count = draw(st.integers(1, 4))
    found: list[Any] = []
    for at in range(count):
        one = draw(st.sampled_from(IDS))
        least = draw(st.integers(1 if at in (0, count - 1) else 0, 2))
        most = least if at == count - 1 else draw(st.integers(max(1, least), 3))
        found.append(one if least == most == 1 else {"id": one, "times": least if least == most else [least, most]})
    return found


def expression(found: Sequence[Any]) -> str:
    """Return the regular expression of consecutive events, a letter each."""
    text = ""
    for step in found:
        if isinstance(step, str):
            text += step
        else:
            times = step["times"]
            text += step["id"] + (f"{{{times}}}" if isinstance(times, int) else f"{{{times[0]},{times[1]}}}")
    return text


def at_times(events: str) -> list[Event]:
    """Return an event for each letter, a second apart."""
    return [Event(one, "", 1000 * at, {}) for at, one in enumerate(events)]


async def triggered(condition: TriggerCondition, events: Sequence[Event], folder: Path) -> list[int]:
    """Return the places of the events that trigger the condition in a stream engine."""
    found: list[int] = []

    async def run(_: str, trigger: Trigger) -> TaskOutput:
        found.append(trigger.position)
        return TaskOutput()

    async with FeatureStore(folder / "features.db", clock=ManualClock()) as store:
        engine = StreamEngine(store, run)
        engine.add_task("task", condition)
        for position, event in enumerate(events):
            await engine.on_event(event, position, can_wait=True)
        await engine.settle()
        engine.remove_task("task")
        assert (engine.events.node_count, engine.events.pending) == (1, 0)  # the start node
        await engine.close()
    return found


def end_of(ids: Sequence[str], condition: TriggerCondition, events: Sequence[Event], first: int) -> int | None:
    """Return the place at which a sequence that begins at `first` is complete, None if it is not."""
    at = first - 1
    for number, one in enumerate(ids, 1):
        at += 1
        while at < len(events):
            event = events[at]
            where = condition.where if number == len(ids) else None
            if one in {"*", event.event_id, event.page_id} and (where is None or where(event.contents)):
                break
            if at == first or not condition.skip_till_next:
                return None
            at += 1
    return at if at < len(events) else None


def by_the_rule(condition: TriggerCondition, events: Sequence[Event]) -> list[int]:
    """Return the places of the triggers by definition: each first event has one match, the first that is complete."""
    found = set()
    for first, event in enumerate(events):
        ends = [end_of(ids, condition, events, first) for ids in slow_matcher.sequences(condition)]
        end = min((one for one in ends if one is not None), default=None)
        if end is not None and (not condition.within_ms or events[end].ts_ms - event.ts_ms <= condition.within_ms):
            found.add(end)
    return sorted(found)


@settings(max_examples=60, deadline=None)
@given(found=steps(), events=st.text(IDS, max_size=30))
def test_consecutive_events_are_matched_as_by_a_regular_expression(
    tmp_path_factory: pytest.TempPathFactory, found: list[Any], events: str
) -> None:
    condition = TriggerCondition.parse({"sequence": found})
    assert TriggerCondition.parse(condition.to_json()) == condition
    whole = re.compile(expression(found))
    ends = [
        next((end for end in range(begin, len(events)) if whole.fullmatch(events[begin : end + 1])), None)
        for begin in range(len(events))
    ]
    expected = sorted({end for end in ends if end is not None})
    assert asyncio.run(triggered(condition, at_times(events), tmp_path_factory.mktemp("steps"))) == expected


CONDITIONS = st.builds(
    lambda first, middle, last, options: TriggerCondition.parse({"sequence": [first, *middle, last], **options}),
    st.sampled_from(IDS),
    st.lists(
        st.builds(lambda one, times: {"id": one, "times": times}, st.sampled_from([*IDS, "*"]), TIMES), max_size=3
    ),
    st.sampled_from(IDS),
    st.fixed_dictionaries(
        {"skip_till_next": st.booleans(), "within_ms": st.sampled_from([0, 0, 4, 12])},
        optional={"where": st.just({"field": "n", "is": ">=", "value": 1})},
    ),
)
EVENTS = st.builds(
    Event,
    st.sampled_from(IDS),
    st.sampled_from(["", *IDS]),
    st.integers(0, 30),  # clocks go back too
    st.integers(0, 2).map(lambda n: {"n": n}),
)


@settings(max_examples=150, deadline=None)
@given(condition=CONDITIONS, events=st.lists(EVENTS, max_size=30))
def test_each_first_event_triggers_once_where_its_first_sequence_is_complete(
    tmp_path_factory: pytest.TempPathFactory, condition: TriggerCondition, events: list[Event]
) -> None:
    condition = dataclasses.replace(condition, without_visit=True)
    expected = by_the_rule(condition, events)
    assert asyncio.run(triggered(condition, events, tmp_path_factory.mktemp("rule"))) == expected
    watch = slow_matcher.Watch(condition)
    occurrences = [slow_matcher.Occurrence(one.event_id, one.page_id, one.ts_ms, one.contents) for one in events]
    assert [at for at, one in enumerate(occurrences) if watch.feed(one)] == expected


OPTIONAL_B = {"id": "b", "optional": True}


@pytest.mark.parametrize(
    ("sequence", "skips", "events", "expected"),
    [
        (["a", OPTIONAL_B, "c"], True, "abc", [2]),
        (["a", OPTIONAL_B, "c"], True, "acbc", [1]),
        (["a", OPTIONAL_B, "c"], True, "aacbc", [2]),  # both first events end at one event
        (["a", OPTIONAL_B, "c"], True, "acabc", [1, 4]),
        (["a", {"id": "b", "times": [1, 3]}, "c"], True, "acbcbcbc", [3]),
        (["a", {"id": "b", "times": [1, 3]}, "c"], True, "abacbc", [3, 5]),  # the second one has no b before place 4
        (["a", {"id": "b", "times": [2, 4]}, "c"], True, "abcbcbc", [4]),
        (["a", OPTIONAL_B, "b"], False, "abb", [1]),
        (["a", {"id": "b", "times": [0, 3]}, "b"], False, "abbbb", [1]),
        (["a", {"id": "*", "optional": True}, "a"], False, "aaaa", [1, 2, 3]),
        (["a", {"id": "*", "optional": True}, "c"], False, "abcc", [2]),
    ],
)
def test_the_first_sequence_that_is_complete_ends_the_others(
    tmp_path: Path, sequence: list[Any], skips: bool, events: str, expected: list[int]
) -> None:
    condition = TriggerCondition.parse({"sequence": sequence, "skip_till_next": skips})
    assert asyncio.run(triggered(condition, at_times(events), tmp_path)) == expected


def test_an_event_that_fails_the_test_of_contents_ends_no_sequence(tmp_path: Path) -> None:
    where = {"field": "n", "is": "==", "value": 1}
    condition = TriggerCondition.parse({"sequence": ["a", OPTIONAL_B, "b"], "where": where})
    events = [Event(one, "", at, {"n": n}) for at, (one, n) in enumerate([("a", 1), ("b", 0), ("b", 1), ("b", 1)])]
    assert asyncio.run(triggered(condition, events, tmp_path)) == [2]


@settings(max_examples=20, deadline=None)
@given(events=st.text(IDS, min_size=1, max_size=40), data=st.data())
def test_crashes_change_no_match_of_optional_steps(
    tmp_path_factory: pytest.TempPathFactory, events: str, data: st.DataObject
) -> None:
    conditions = {
        "some": TriggerCondition.parse({"sequence": ["a", {"id": "b", "times": [0, 3]}, "c"]}),
        "absent": TriggerCondition.parse(
            {"sequence": ["a", {"id": "b", "optional": True}, "a"], "absent": "c", "absent_s": 3}
        ),
        "first": TriggerCondition.parse({"sequence": ["a", {"id": "*", "times": [0, 3]}, "b"]}),
        "skipping": TriggerCondition.parse(
            {"sequence": ["a", {"id": "b", "times": [1, 3]}, "c"], "skip_till_next": True, "within_ms": 9_000}
        ),
    }
    entries = [Event(one, "", 1000 * at, {}) for at, one in enumerate(events)]
    crashes = sorted(data.draw(st.lists(st.integers(1, len(events)), max_size=2)))
    whole = asyncio.run(play(tmp_path_factory.mktemp("whole"), conditions, entries))
    assert asyncio.run(play(tmp_path_factory.mktemp("crashed"), conditions, entries, crashes)) == whole


def test_a_given_number_of_times_needs_nothing_of_an_older_device() -> None:
    condition = TriggerCondition.parse({"sequence": ["search", {"id": "click", "times": 3}]})
    assert condition == TriggerCondition.of(["search", "click", "click", "click"])
    assert condition.to_json() == {"sequence": ["search", "click", "click", "click"]}


def test_optional_steps_are_in_the_table_and_in_the_text() -> None:
    optional_c = {"id": "c", "optional": True}
    condition = TriggerCondition.parse({"sequence": ["a", {"id": "b", "times": [1, 2]}, optional_c, "d"]})
    assert condition.to_json() == {"sequence": ["a", "b", {"id": "b", "optional": True}, optional_c, "d"]}
    assert str(condition) == "a → b → b (optional) → c (optional) → d"
    assert condition.required_ids == tuple("abd")


@pytest.mark.parametrize(
    ("sequence", "error"),
    [
        (["a", {"id": "b"}], 'trigger.sequence[1]: must be an id, or a table such as { id = "click", times = 3 }'),
        (["a", {"id": "b", "times": 0}], "trigger.sequence[1].times: must be a number from 1 to 64, or [least, most]"),
        (["a", {"id": "b", "times": [3, 2]}], "trigger.sequence[1].times: must be a number"),
        (["a", {"id": "b", "times": True}], "trigger.sequence[1].times: must be a number"),
        (["a", {"id": "b", "times": "2"}], "trigger.sequence[1].times: must be a number"),
        (["a", {"id": "b", "optional": 1}], "trigger.sequence[1].optional: must be true or false, is 1"),
        (["a", {"id": 3, "times": 2}], "trigger.sequence[1]: must be an event id or page id, is 3"),
        (["a", {"id": "b", "times": 64}], "trigger.sequence[1]: makes the sequence longer than 64 events"),
        ([{"id": "a", "optional": True}, "b"], "trigger.sequence: must have a first step that occurs"),
        (["a", {"id": "b", "times": [1, 2]}], "trigger.sequence: must have a first step that occurs, and a last one"),
        (
            ["a", *({"id": one, "optional": True} for one in "bcdefgh"), "z"],
            "trigger.sequence: stands for more than 64 sequences; have fewer optional steps",
        ),
    ],
)
def test_steps_that_are_wrong_are_refused_by_field(sequence: list[Any], error: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        TriggerCondition.parse({"sequence": sequence})
    assert str(caught.value).startswith(error)


def test_a_key_beside_optional_steps_needs_skip_till_next() -> None:
    table = {"sequence": ["a", OPTIONAL_B, "c"], "key": "n"}
    with pytest.raises(
        ProtocolError, match=r"trigger\.key: needs skip_till_next, or a sequence without optional steps"
    ):
        TriggerCondition.parse(table)
    assert TriggerCondition.parse({**table, "skip_till_next": True}).key == "n"


def test_a_refused_sequence_names_file_and_line() -> None:
    steps = ", ".join(f'{{ id = "{one}", times = [0, 2] }}' for one in "bcdef")
    config = f'[task]\nname = "t"\n\n[trigger]\nsequence = ["a", {steps}, "z"]\n'
    with pytest.raises(TaskConfigError) as caught:
        TaskConfig.parse(config.encode(), "task.toml")
    assert str(caught.value).startswith("task.toml:5: [trigger] sequence stands for more than 64 sequences")

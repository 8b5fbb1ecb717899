"""Optional steps and repetition in a sequence: against regular expressions and the slow matcher (ADR 220)."""

import asyncio
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.slow_matcher import Occurrence, Watch
from tests.pipeline.time_engine import play
from walle.clock import ManualClock
from walle.deploy.cloud.task_config import TaskConfig, TaskConfigError
from walle.pipeline.events import Event
from walle.pipeline.store import FeatureStore
from walle.pipeline.stream_engine import StreamEngine, TaskOutput
from walle.pipeline.task_queue import Trigger
from walle.protocol import ProtocolError, TriggerCondition

IDS = "abc"


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


async def triggered(condition: TriggerCondition, events: Sequence[str], folder: Path) -> list[int]:
    """Return the places of the events that trigger the condition in a stream engine."""
    found: list[int] = []

    async def run(_: str, trigger: Trigger) -> TaskOutput:
        found.append(trigger.position)
        return TaskOutput()

    async with FeatureStore(folder / "features.db", clock=ManualClock()) as store:
        engine = StreamEngine(store, run)
        engine.add_task("task", condition)
        for position, event_id in enumerate(events):
            await engine.on_event(Event(event_id, "", position * 1000, {}), position, can_wait=True)
        await engine.settle()
        engine.remove_task("task")
        assert (engine.events.node_count, engine.events.pending) == (1, 0)  # the start node
        await engine.close()
    return found


@settings(max_examples=60, deadline=None)
@given(found=steps(), events=st.text(IDS, max_size=30))
def test_consecutive_events_are_matched_as_by_a_regular_expression(
    tmp_path_factory: pytest.TempPathFactory, found: list[Any], events: str
) -> None:
    condition = TriggerCondition.parse({"sequence": found})
    assert TriggerCondition.parse(condition.to_json()) == condition
    whole = re.compile(expression(found))
    expected = [
        end for end in range(len(events)) if any(whole.fullmatch(events[begin : end + 1]) for begin in range(end + 1))
    ]
    assert asyncio.run(triggered(condition, events, tmp_path_factory.mktemp("steps"))) == expected


@settings(max_examples=40, deadline=None)
@given(data=st.data(), events=st.text(IDS, max_size=30), within_ms=st.sampled_from([0, 3_000, 9_000]))
def test_events_in_between_are_skipped_for_any_of_the_sequences(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, events: str, within_ms: int
) -> None:
    middle = data.draw(st.lists(st.tuples(st.sampled_from(IDS), st.booleans()), max_size=4))
    table = {
        "sequence": ["a", *({"id": one, "optional": optional} for one, optional in middle), "b"],
        "within_ms": within_ms,
        "skip_till_next": True,
    }
    choices = itertools.product(*([(), (one,)] if optional else [(one,)] for one, optional in middle))
    watches = [
        Watch(TriggerCondition.of(["a", *itertools.chain(*choice), "b"], within_ms=within_ms, skip_till_next=True))
        for choice in choices
    ]
    expected = [
        at for at, one in enumerate(events) if sum(watch.feed(Occurrence(one, "", 1000 * at)) for watch in watches)
    ]
    condition = TriggerCondition.parse(table)
    assert asyncio.run(triggered(condition, events, tmp_path_factory.mktemp("skipping"))) == expected


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
    assert [one.trigger_ids for one in condition.alternatives()] == [
        tuple("abd"), tuple("abbd"), tuple("abcd"), tuple("abbcd"),
    ]  # fmt: skip


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


def test_a_key_is_refused_beside_optional_steps() -> None:
    with pytest.raises(ProtocolError, match=r"trigger\.key: needs a sequence without optional steps"):
        TriggerCondition.parse({"sequence": ["a", {"id": "b", "optional": True}, "c"], "key": "n"})


def test_a_refused_sequence_names_file_and_line() -> None:
    steps = ", ".join(f'{{ id = "{one}", times = [0, 2] }}' for one in "bcdef")
    config = f'[task]\nname = "t"\n\n[trigger]\nsequence = ["a", {steps}, "z"]\n'
    with pytest.raises(TaskConfigError) as caught:
        TaskConfig.parse(config.encode(), "task.toml")
    assert str(caught.value).startswith("task.toml:5: [trigger] sequence stands for more than 64 sequences")

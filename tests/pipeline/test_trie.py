from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walle.pipeline.events import EventError
from walle.pipeline.trie import TriggerError, TriggerTrie
from walle.protocol import ProtocolError, TriggerCondition

IDS = "abc"


class Oracle:
    """Every condition against the latest events, position by position."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.added: dict[tuple[tuple[str, ...], str], int] = {}

    def add(self, condition: Sequence[str], task: str) -> None:
        self.added.setdefault((tuple(condition), task), len(self.events))

    def remove(self, condition: Sequence[str], task: str) -> None:
        del self.added[tuple(condition), task]

    def feed(self, event_id: str, page_id: str) -> list[str]:
        self.events.append((event_id, page_id))
        triggered = set()
        for (condition, task), since in self.added.items():
            latest = self.events[since:][-len(condition) :]
            if len(latest) == len(condition) and all(
                trigger_id in event for trigger_id, event in zip(condition, latest, strict=True)
            ):
                triggered.add(task)
        return sorted(triggered)


PAIRS = st.tuples(st.lists(st.sampled_from(IDS), min_size=1, max_size=4), st.sampled_from(["t1", "t2", "t3"]))
STEPS = st.one_of(
    st.tuples(st.just("feed"), st.tuples(st.sampled_from(IDS), st.sampled_from(["", *IDS]))),
    st.tuples(st.just("add"), PAIRS),
    st.tuples(st.just("remove"), st.integers(0, 50)),
)


@settings(max_examples=400)
@given(st.lists(PAIRS, max_size=8), st.lists(STEPS, max_size=60))
def test_the_trie_agrees_with_brute_force(
    first: list[tuple[list[str], str]], steps: list[tuple[str, tuple[list[str] | str, str] | int]]
) -> None:
    trie, oracle = TriggerTrie(), Oracle()
    for condition, task in first:
        trie.add(TriggerCondition.of(condition), task)
        oracle.add(condition, task)
    for kind, step in steps:
        if isinstance(step, int):
            if oracle.added:
                added, task = sorted(oracle.added)[step % len(oracle.added)]
                trie.remove(TriggerCondition(added), task)
                oracle.remove(added, task)
        elif kind == "add":
            trie.add(TriggerCondition.of(step[0]), step[1])
            oracle.add(*step)
        else:
            assert isinstance(step[0], str)
            assert trie.feed(step[0], step[1]) == oracle.feed(step[0], step[1])
        assert len(trie) == len(oracle.added)


def test_a_task_is_triggered_once_by_an_event_however_many_conditions_end_there() -> None:
    trie = TriggerTrie()
    for condition in (["click"], ["item"], ["enter", "click"], ["item", "item"]):
        trie.add(TriggerCondition.of(condition), "t")
    trie.add(TriggerCondition.of(["click"]), "s")
    assert trie.feed("enter", "item") == ["t"]
    assert trie.feed("click", "item") == ["s", "t"]


def test_a_condition_added_in_mid_match_waits_for_events_of_its_own() -> None:
    trie = TriggerTrie()
    trie.add(TriggerCondition.of(["a", "b", "c"]), "old")
    trie.feed("a", "")
    trie.add(TriggerCondition.of(["a", "b", "d"]), "new")  # its prefix is pending for `old`
    trie.feed("b", "")
    assert trie.feed("d", "") == []
    assert [trie.feed(event_id, "") for event_id in "abd"] == [[], [], ["new"]]


def test_conditions_share_their_prefix_and_give_their_nodes_back() -> None:
    trie = TriggerTrie()
    trie.add(TriggerCondition.of(["a", "b", "c"]), "t1")
    trie.add(TriggerCondition.of(["a", "b"]), "t2")
    trie.feed("a", "")
    assert trie.pending == 1
    trie.remove(TriggerCondition.of(["a", "b", "c"]), "t1")
    assert trie.feed("b", "") == ["t2"]
    trie.remove(TriggerCondition.of(["a", "b"]), "t2")
    assert len(trie) == 0
    assert trie._start.children == {}
    assert trie.feed("a", "b") == []
    assert trie.pending == 0


@pytest.mark.parametrize("condition", [[], ["a", ""], "abc", ["a"] * (TriggerCondition.MAX_LENGTH + 1)])
def test_a_condition_that_cannot_be_is_refused(condition: Sequence[str]) -> None:
    with pytest.raises(ProtocolError, match=r"^trigger\.sequence"):
        TriggerCondition.of(condition)


def test_what_is_not_there_cannot_be_removed() -> None:
    trie = TriggerTrie()
    trie.add(TriggerCondition.of(["a", "b"]), "t")
    for condition, task in ((["a"], "t"), (["a", "b"], "s"), (["x"], "t")):
        with pytest.raises(TriggerError, match="not in the trie"):
            trie.remove(TriggerCondition.of(condition), task)
    with pytest.raises(EventError):
        trie.feed("", "p")
    with pytest.raises(TriggerError, match="no name"):
        trie.add(TriggerCondition.of(["a"]), "")

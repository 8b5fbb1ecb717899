"""Trigger matching: the trie in C++ against the slow matcher, which is its meaning, and against a trie in Python."""

import gc
import random
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.night.cases import at_night
from tests.pipeline.python_trie import PythonTrie
from tests.pipeline.slow_matcher import Occurrence, SlowMatcher
from walle.pipeline.events.event import EventError
from walle.pipeline.trigger.trie import EventStream, TriggerError, TriggerTrie
from walle.protocol import ContentsTest, ProtocolError, TriggerCondition

IDS = "abc"
TASKS = ("t1", "t2", "t3")
TESTS = (None, None, ContentsTest("n", ">=", 2), ContentsTest("n", "==", 0))


def plain_conditions(max_length: int = 4) -> st.SearchStrategy[TriggerCondition]:
    return st.lists(st.sampled_from(IDS), min_size=1, max_size=max_length).map(TriggerCondition.of)


def with_optional_ids(ids: Sequence[tuple[str, int]], **options: Any) -> TriggerCondition:
    """Return a condition on the ids, of which those with a zero beside them are optional, but for the ends."""
    optional = tuple(at for at in range(1, len(ids) - 1) if not ids[at][1])
    return TriggerCondition(tuple(one for one, _ in ids), optional=optional, **options)


CONDITIONS = st.builds(
    with_optional_ids,
    st.lists(st.tuples(st.sampled_from([*IDS, "*"]), st.integers(0, 2)), min_size=1, max_size=5),
    within_ms=st.sampled_from([0, 0, 1, 5, 12]),
    skip_till_next=st.booleans(),
    cooldown_ms=st.sampled_from([0, 0, 3, 20]),
    where=st.sampled_from(TESTS),
)
PAIRS = st.tuples(st.one_of(plain_conditions(), CONDITIONS), st.sampled_from(TASKS))
OCCURRENCES = st.builds(
    Occurrence,
    st.sampled_from(IDS),
    st.sampled_from(["", *IDS]),
    st.integers(0, 30),  # late events and clocks that go back too
    st.integers(0, 3).map(lambda n: {"n": n}),
)
STEPS = st.one_of(OCCURRENCES, OCCURRENCES, PAIRS, st.integers(0, 50))


def feed(trie: TriggerTrie, event: Occurrence) -> list[str]:
    return trie.feed(event.event_id, event.page_id, event.ts_ms, event.contents)


def check(pairs: Sequence[tuple[TriggerCondition, str]], steps: Sequence[Any]) -> int:
    """Apply the steps to both: feed an event, add a pair, or remove one by a number. Return the number of triggers."""
    trie, slow = TriggerTrie(), SlowMatcher()
    triggers = 0
    for condition, task in pairs:
        trie.add(condition, task)
        slow.add(condition, task)
    for step in steps:
        if isinstance(step, int):
            if slow.watches:
                condition, task = list(slow.watches)[step % len(slow.watches)]
                trie.remove(condition, task)
                slow.remove(condition, task)
        elif isinstance(step, tuple):
            trie.add(*step)
            slow.add(*step)
        else:
            tasks = slow.feed(step)
            assert feed(trie, step) == tasks
            triggers += len(tasks)
        assert len(trie) == len(slow)
    for condition, task in slow.watches:
        trie.remove(condition, task)
    assert (trie.node_count, trie.pending, len(trie)) == (1, 0, 0)
    return triggers


@settings(max_examples=500, deadline=None)
@given(st.lists(PAIRS, max_size=8), st.lists(STEPS, max_size=60))
def test_the_trie_agrees_with_the_slow_matcher(pairs: list[tuple[TriggerCondition, str]], steps: list[Any]) -> None:
    check(pairs, steps)


def random_condition(rng: random.Random) -> TriggerCondition:
    ids = tuple(rng.choice([*IDS, "*"] if rng.random() < 0.3 else IDS) for _ in range(rng.randint(1, 5)))
    if rng.random() < 0.4:
        return TriggerCondition(ids)
    options = rng.choice([0, 2, 8]), rng.random() < 0.5, rng.choice([0, 0, 5]), rng.choice(TESTS)
    return TriggerCondition(ids, *options, optional=tuple(at for at in range(1, len(ids) - 1) if rng.random() < 0.3))


def random_step(rng: random.Random, ts_ms: int) -> Any:
    kind = rng.random()
    if kind < 0.05:
        return rng.randrange(50)
    if kind < 0.12:
        return random_condition(rng), rng.choice(TASKS)
    late_ms = rng.choice([0, 0, 0, 0, rng.randint(-10, 10)])
    return Occurrence(rng.choice(IDS), rng.choice(["", *IDS]), max(0, ts_ms + late_ms), {"n": rng.randrange(4)})


@pytest.mark.parametrize("seed", [0, 1, *at_night(*range(2, 10))])
def test_two_thousand_random_cases_for_each_seed_agree_with_the_slow_matcher(seed: int) -> None:
    rng = random.Random(seed)
    triggers = 0
    for _ in range(2000):
        pairs = [(random_condition(rng), rng.choice(TASKS)) for _ in range(rng.randint(1, 6))]
        triggers += check(pairs, [random_step(rng, 2 * i) for i in range(24)])
    assert triggers > 10_000  # most cases trigger, and so can fail


def many_conditions(rng: random.Random, count: int, ids: Sequence[str]) -> list[tuple[TriggerCondition, str]]:
    conditions = {tuple(rng.choice(ids) for _ in range(rng.randint(1, 6))) for _ in range(count)}
    return [(TriggerCondition(condition), f"task{index}") for index, condition in enumerate(sorted(conditions))]


@pytest.mark.parametrize("id_count", [20, 160, 3000])
def test_thousands_of_conditions_agree_with_the_trie_in_python(id_count: int) -> None:
    rng = random.Random(id_count)
    ids = [f"id{index}" for index in range(id_count)]
    pairs = many_conditions(rng, 5000, ids)
    trie, python = TriggerTrie(), PythonTrie()
    for pair in pairs:
        trie.add(*pair)
        python.add(*pair)
    shared = [TriggerCondition((ids[0], one)) for one in ids]  # one node with as many children as there are ids
    for condition in shared:
        trie.add(condition, "shared")
        python.add(condition, "shared")
    events = [(rng.choice(ids[: rng.choice([1, id_count])]), rng.choice(["", *ids])) for _ in range(4000)]
    assert [trie.feed(*event) for event in events] == [python.feed(*event) for event in events]
    for pair in rng.sample(pairs, len(pairs) // 2):
        trie.remove(*pair)
        python.remove(*pair)
    batch = trie.feed_many([event_id for event_id, _ in events], [page_id for _, page_id in events])
    expected = [(index, task) for index, event in enumerate(events) for task in python.feed(*event)]
    assert list(zip(*batch, strict=True)) == expected


def test_a_batch_means_the_same_as_one_call_per_event() -> None:
    rng = random.Random(3)
    one, many = TriggerTrie(), TriggerTrie()
    for index in range(50):
        condition = random_condition(rng)
        one.add(condition, f"t{index}")
        many.add(condition, f"t{index}")
    events = [step for i in range(500) if isinstance(step := random_step(rng, 2 * i), Occurrence)]
    expected = [(index, task) for index, event in enumerate(events) for task in feed(one, event)]
    columns: list[list[Any]] = [
        [getattr(event, field) for event in events] for field in ("event_id", "page_id", "ts_ms", "contents")
    ]
    assert list(zip(*many.feed_many(columns[0], columns[1], columns[2], columns[3]), strict=True)) == expected
    assert len(expected) > 500


def test_a_batch_with_a_wrong_event_feeds_nothing() -> None:
    trie = TriggerTrie()
    trie.add(TriggerCondition.of(["a", "b"]), "t")
    for event_ids, page_ids, times in (
        (["a", ""], ["", ""], None),
        (["a", 5], ["", ""], None),
        (["a", "a"], ["", None], None),
        (["a", "a"], ["", ""], [0, -1]),
    ):
        with pytest.raises(EventError):
            trie.feed_many(event_ids, page_ids, times)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="differ in length"):
        trie.feed_many(["a", "b"], [""])
    assert trie.pending == 0
    assert trie.feed_many(["b", "a", "b"], ["", "", ""]) == ([2], ["t"])


def test_an_option_that_needs_what_is_not_given_is_an_error() -> None:
    trie = TriggerTrie()
    trie.add(TriggerCondition.of(["a"], within_ms=5), "t")
    with pytest.raises(ValueError, match="ts_ms is missing"):
        trie.feed("a", "")
    assert trie.feed("a", "", 0) == ["t"]
    trie.add(TriggerCondition.of(["a"], where=ContentsTest("n", "==", 1)), "s")
    with pytest.raises(ValueError, match="contents are missing"):
        trie.feed("a", "", 0)
    assert trie.feed("a", "", ts_ms=0, contents={"n": 1}) == ["s", "t"]
    trie.remove(TriggerCondition.of(["a"], where=ContentsTest("n", "==", 1)), "s")
    trie.remove(TriggerCondition.of(["a"], within_ms=5), "t")
    assert trie.feed("a", "") == []


class Text(str):
    """An id that is not quite a str, and says that it equals nothing."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 7


def test_ids_are_the_same_by_their_characters() -> None:
    trie = TriggerTrie()
    ids = ["click", "kl\u00edk", "\u70b9\u51fb", "\U0001f449", "\ud800", "c" * 1024]
    for trigger_id in ids:
        trie.add(TriggerCondition.of([trigger_id]), f"of {trigger_id!r}")
    for trigger_id in ids:
        copy = "".join(list(trigger_id))
        assert trie.feed(copy, "") == trie.feed(Text(copy), "") == trie.feed("x", Text(copy)) == [f"of {trigger_id!r}"]
        assert trie.feed(copy + "x", copy[:-1]) == []
    assert trie.feed_many([Text("click")], [Text("")]) == ([0], ["of 'click'"])


def test_tasks_are_sorted_as_python_sorts_text() -> None:
    rng = random.Random(1)
    trie = TriggerTrie()
    names = sorted({"".join(rng.choices("ab\u00e9\u70b9\U0001f449", k=rng.randint(1, 4))) for _ in range(200)})
    for name in rng.sample(names, len(names)):
        trie.add(TriggerCondition.of(["a"]), name)
    assert trie.feed("a", "") == names
    for name in rng.sample(names, 60):
        trie.remove(TriggerCondition.of(["a"]), name)
        names.remove(name)
        trie.add(TriggerCondition.of(["a"]), "z" + name)
        names.append("z" + name)
    assert trie.feed("a", "") == sorted(names)


def test_a_list_of_tasks_is_its_callers_own() -> None:
    trie = TriggerTrie()
    for task in "abcde":
        trie.add(TriggerCondition.of([task]), task)
    trie.add(TriggerCondition.of(["b"]), "a")
    events = [("a", ""), ("x", ""), ("b", "c"), ("d", ""), ("b", "e"), ("x", "x")]
    expected = [["a"], [], ["a", "b", "c"], ["d"], ["a", "b", "e"], []]
    kept = [trie.feed(*event) for event in events * 3]
    assert kept == expected * 3
    assert len({id(tasks) for tasks in kept}) == len(kept)
    kept[2].clear()
    kept[4].append("mine")
    for _ in range(3):
        for event, tasks in zip(events, expected, strict=True):
            found = trie.feed(*event)  # the list before it is still in use, the one before that is not
            assert found == tasks
            found *= 3
    assert kept[3:5] == [["d"], ["a", "b", "e", "mine"]]


class Reenters:
    """An object that feeds the trie when it is released."""

    def __init__(self, trie: TriggerTrie, found: list[Any]) -> None:
        self.trie = trie
        self.found = found

    def __del__(self) -> None:
        self.found.append(self.trie.feed("a", "b"))


def test_objects_put_into_a_list_of_tasks_are_released() -> None:
    trie, found = TriggerTrie(), list[Any]()
    trie.add(TriggerCondition.of(["a"]), "t")
    for _ in range(20):
        tasks: list[Any] = trie.feed("a", "")
        assert tasks == ["t"]
        tasks.insert(0, Reenters(trie, found))
    del tasks
    assert [trie.feed("a", "") for _ in range(3)] == [["t"]] * 3
    assert found == [["t"]] * 20
    kept = Reenters(trie, found)  # a cycle with the trie
    gone = weakref.ref(kept)
    trie.feed("a", "").append(kept)  # type: ignore[arg-type]
    del trie, kept
    gc.collect()
    assert gone() is None


class Meddler:
    """A test of contents that changes the trie which it tests for."""

    def __init__(self, trie: TriggerTrie) -> None:
        self.trie = trie
        self.errors: list[str] = []

    def __call__(self, contents: Mapping[str, Any]) -> bool:
        for meddle in (
            lambda: self.trie.add(TriggerCondition.of(["z"]), "z"),
            lambda: self.trie.feed("a", "", 0, contents),
            lambda: self.trie.feed_many(["a"], [""], [0], [contents]),
        ):
            with pytest.raises(RuntimeError, match="may not feed or change") as caught:
                meddle()
            self.errors.append(str(caught.value))
        return True


def test_a_predicate_cannot_change_what_is_being_matched_and_its_error_is_the_callers() -> None:
    trie = TriggerTrie()
    meddler = Meddler(trie)
    trie._add(("a",), "t", 0, False, 0, meddler)
    assert trie.feed("a", "", 0, {}) == ["t"]
    assert len(meddler.errors) == 3

    def fail(contents: Mapping[str, Any]) -> bool:
        raise KeyError("contents")

    trie._add(("a",), "t", 0, False, 0, fail)
    with pytest.raises(KeyError, match="contents"):
        trie.feed("a", "", 0, {})
    assert trie._remove(("a",), "t", 0, False, 0, fail)
    assert trie.feed("a", "", 0, {}) == ["t"]


def test_a_trie_in_a_cycle_is_collected() -> None:
    gc.collect()
    trie = TriggerTrie()
    meddler = Meddler(trie)
    trie._add(("a",), "t", 0, False, 0, meddler)
    del trie, meddler
    gc.collect()
    assert not [found for found in gc.get_objects() if isinstance(found, Meddler)]


@pytest.mark.parametrize("kind", [TriggerTrie, EventStream])
def test_a_cycle_that_only_the_trie_can_break_is_collected(kind: type[TriggerTrie] | type[EventStream]) -> None:
    """A built-in method refers to its object, and the garbage collector cannot clear it."""
    gc.collect()

    class Watched(kind):  # type: ignore[misc, valid-type]
        __slots__ = ()

    trie = Watched()
    trie._add(("a",), "t", 0, False, 0, trie.feed)
    del trie
    gc.collect()
    assert not [found for found in gc.get_objects() if isinstance(found, Watched)]


def test_a_task_is_triggered_once_by_an_event_however_many_conditions_end_there() -> None:
    trie = TriggerTrie()
    for condition in (["click"], ["item"], ["enter", "click"], ["item", "item"]):
        trie.add(TriggerCondition.of(condition), "t")
    trie.add(TriggerCondition.of(["click"]), "s")
    assert trie.feed("enter", "item") == ["t"]
    assert trie.feed("click", "item") == ["s", "t"]


def test_a_condition_added_in_mid_match_ignores_earlier_events() -> None:
    trie = TriggerTrie()
    trie.add(TriggerCondition.of(["a", "b", "c"]), "old")
    trie.feed("a", "")
    trie.add(TriggerCondition.of(["a", "b", "d"]), "new")  # the shared prefix is pending for `old`
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
    assert trie.node_count == 1
    assert trie.feed("a", "b") == []
    assert trie.pending == 0


@pytest.mark.parametrize("condition", [[], ["a", ""], "abc", ["a"] * (TriggerCondition.MAX_LENGTH + 1)])
def test_a_condition_that_cannot_be_is_refused(condition: Sequence[str]) -> None:
    with pytest.raises(ProtocolError, match=r"^trigger\.sequence"):
        TriggerCondition.of(condition)


@pytest.mark.parametrize("skip", [False, True])
def test_pairs_that_differ_in_an_option_of_the_engine_are_two(skip: bool) -> None:
    trie = TriggerTrie()
    pair = (("a", "b"), "t", 0, skip, 0, None)
    assert trie._add(*pair)
    assert trie._add(*pair, 1)  # a new version's condition is added before the old one is removed
    assert not trie._add(*pair, 1)
    assert trie._remove(*pair)
    assert not trie._remove(*pair)
    assert [trie.feed(event_id, "") for event_id in "ab"] == [[], ["t"]]
    assert trie._remove(*pair, 1)
    assert (len(trie), trie.node_count) == (0, 1)


def test_conditions_of_one_task_that_share_a_sequence_are_two() -> None:
    trie = TriggerTrie()
    first, second = (TriggerCondition.of(ids, optional=(1,)) for ids in (["a", "b", "c"], ["a", "d", "c"]))
    trie.add(first, "t")
    trie.add(second, "t")  # a new version's condition comes before the old one is removed
    trie.add(second, "t")
    assert len(trie) == 2
    trie.remove(first, "t")
    assert [trie.feed(event_id, "") for event_id in "abcacadc"] == [[], [], [], [], ["t"], [], [], ["t"]]
    trie.remove(second, "t")
    assert (len(trie), trie.node_count) == (0, 1)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    ("ids", "optional"), [("abc", 0b001), ("abc", 0b100), ("abc", 0b1000), ("abcdefghi", 0b11111110)]
)
def test_optional_ids_that_cannot_be_are_refused(ids: str, optional: int, skip: bool) -> None:
    trie = TriggerTrie()
    pair = (tuple(ids), "t", 0, skip, 0, None, 0, optional)
    with pytest.raises(ValueError, match="the condition is wrong"):
        trie._add(*pair)
    trie.add(TriggerCondition.of(tuple(ids)), "t")
    if ids == "abcdefghi":
        assert not trie._remove(*pair)
    assert len(trie) == 1


def test_a_condition_that_was_not_added_cannot_be_removed() -> None:
    trie = TriggerTrie()
    trie.add(TriggerCondition.of(["a", "b"]), "t")
    for condition, task in ((["a"], "t"), (["a", "b"], "s"), (["x"], "t")):
        with pytest.raises(TriggerError, match="not in the trie"):
            trie.remove(TriggerCondition.of(condition), task)
    with pytest.raises(EventError):
        trie.feed("", "p")
    with pytest.raises(TriggerError, match="no name"):
        trie.add(TriggerCondition.of(["a"]), "")

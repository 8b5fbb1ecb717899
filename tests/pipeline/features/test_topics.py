"""Topics of tasks: full names, what a task may put and read, and the same rule for names on both sides."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walle.pipeline.features import topics
from walle.pipeline.features.put import MAX_TOPIC_CHARS
from walle.pipeline.features.topics import (
    MAX_NAME_CHARS,
    TopicError,
    check_readable,
    full_topic,
    is_topic_name,
    own_topic,
    owner,
)
from walle.pipeline.ingest.store.quota import DeviceQuota
from walle.protocol import reads
from walle.protocol.fields import ProtocolError

TASK = "shop/ipv"


def test_a_task_puts_only_under_its_name() -> None:
    assert own_topic(TASK, "clicks") == "shop/ipv/clicks"
    assert own_topic(TASK, "shop/ipv/clicks") == "shop/ipv/clicks"
    assert own_topic(TASK, own_topic(TASK, "x" * MAX_NAME_CHARS)) == f"shop/ipv/{'x' * MAX_NAME_CHARS}"
    assert own_topic(TASK, TASK) == TASK
    longest = own_topic(f"{'s' * 64}/{'t' * 64}", "n" * MAX_NAME_CHARS)
    assert len(longest) <= MAX_TOPIC_CHARS


@pytest.mark.parametrize(
    "topic", ["shop/browse", "shop/browse/clicks", "home/ipv/clicks", "shop/ipvx", "/shop/ipv/x", "a/b"]
)
def test_a_topic_of_another_task_is_refused(topic: str) -> None:
    with pytest.raises(TopicError, match=f"{re.escape(repr(topic))} is not of task shop/ipv") as refused:
        own_topic(TASK, topic)
    assert (refused.value.task, refused.value.topic) == (TASK, topic)


@pytest.mark.parametrize(
    "topic", ["", "a b", ".hidden", "é", "x" * 65, "shop/ipv/", "shop/ipv/a/b", "a\0", "walle\n", 5, None]
)
def test_a_topic_that_is_not_a_name_is_refused(topic: object) -> None:
    with pytest.raises(TopicError, match=r"is not a name|must be text"):
        own_topic(TASK, topic)


@given(st.text(max_size=70), st.text(max_size=70))
def test_a_task_puts_under_its_name_whatever_it_asks_for(topic: str, other: str) -> None:
    for text in (topic, f"shop/{topic}", f"shop/{other}/{topic}", f"shop/ipv/{topic}"):
        with contextlib.suppress(TopicError):
            assert owner(own_topic(TASK, text)) == TASK


def test_a_task_names_what_it_asks_for_by_its_scenario() -> None:
    assert full_topic(TASK) == "shop/ipv"
    assert full_topic(TASK, "clicks") == "shop/ipv/clicks"
    assert full_topic(TASK, "", "browse") == "shop/browse"
    assert full_topic(TASK, "clicks", "browse") == "shop/browse/clicks"
    assert full_topic(TASK, "clicks", "shop/browse") == "shop/browse/clicks"
    assert full_topic(TASK, "shop/browse/clicks") == "shop/browse/clicks"
    for topic, other in (("shop/a/b", "browse"), ("a b", ""), (5, ""), ("a", 5)):
        with pytest.raises(TopicError):
            full_topic(TASK, topic, other)


def test_a_task_reads_its_own_topics_and_those_that_it_lists() -> None:
    allowed = frozenset({"shop/browse/clicks", "shop/rank"})
    for topic in ("shop/ipv", "shop/ipv/clicks", "shop/browse/clicks", "shop/rank"):
        check_readable(TASK, allowed, topic)
    with pytest.raises(TopicError, match=r"add 'browse' to topics under \[reads\] in task.toml"):
        check_readable(TASK, allowed, "shop/browse")
    for topic in ("clicks", "home/ipv", "shop", "", "shop/ipvx", "/shop/ipv"):
        with pytest.raises(TopicError):
            check_readable(TASK, allowed, topic)


@given(st.text("aZ9._-/ é\n", max_size=MAX_NAME_CHARS + 3))
def test_the_rule_for_names_is_the_same_in_a_vm_and_in_a_manifest(name: str) -> None:
    try:
        reads.check_reads([f"browse/{name}"], "reads")
    except ProtocolError:
        assert not is_topic_name(name)
    else:
        assert is_topic_name(name)


def test_the_bound_on_a_tasks_topics_leaves_room_to_others() -> None:
    assert DeviceQuota().topics // 10 >= topics.MAX_TOPICS

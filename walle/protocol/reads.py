"""Topics of other tasks that a task reads: the [reads] table of task.toml, and `reads` of a manifest (§5.1)."""

import re
from collections.abc import Mapping
from typing import Any

from walle.protocol.fields import ProtocolError, shorten

MAX_READS = 100
# The name of a task, and of a topic that it puts; walle.pipeline.features.topics has the rule of the latter for VMs.
_TOPIC = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}(/[A-Za-z0-9][A-Za-z0-9._-]{0,63})?")


def parse_reads(table: object) -> tuple[str, ...]:
    """Return `topics` of a [reads] table; see `check_reads`. An unknown key is refused.

    Raises:
        ProtocolError: the table is wrong; `where` is the path of the field.
    """
    if not isinstance(table, Mapping):
        raise ProtocolError("reads", f"must be an object, is {type(table).__name__}")
    for key in table:
        if key != "topics":
            raise ProtocolError("reads", f"has an unknown key {shorten(key)}; the only one is topics")
    if "topics" not in table:
        raise ProtocolError("reads.topics", "is missing")
    return check_reads(table["topics"], "reads.topics")


def check_reads(topics: Any, where: str) -> tuple[str, ...]:
    """Return the topics, sorted. Each is `task` (that task's output) or `task/name`, of a task in the same scenario.

    Raises:
        ProtocolError: one is neither; `where` names the field.
    """
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise ProtocolError(where, 'must be a list of topics, such as ["browse", "browse/visits"]')
    if len(topics) > MAX_READS:
        raise ProtocolError(where, f"has {len(topics)} topics, more than {MAX_READS}")
    for topic in topics:
        if not _TOPIC.fullmatch(topic):
            what = f"{shorten(topic)} is neither a task of this scenario (its output) nor TASK/NAME (what it puts)"
            raise ProtocolError(where, what)
    if len(set(topics)) != len(topics):
        raise ProtocolError(where, "lists a topic twice")
    return tuple(sorted(topics))

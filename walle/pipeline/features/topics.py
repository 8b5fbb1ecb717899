"""Names of topics: a topic names the task that owns it, and only that task puts features under it (ADR 13).

The output of task `shop/ipv` has the topic `shop/ipv`, and what the task puts as `clicks` has `shop/ipv/clicks`. VMs
use this module for early and clear errors; the device checks again what they return, because a VM is not trusted.
"""

from walle.errors import PipelineError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MAX_NAME_CHARS = 64  # a full topic then fits into the store's MAX_TOPIC_CHARS
MAX_TOPICS = 100  # limit of one task: the cloud accepts 1,000 of a device, and then nothing more of any task
NAME_RULE = f"letters, digits, ., _ and -, at most {MAX_NAME_CHARS}, the first a letter or digit"

_FIRST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_OTHERS = _FIRST | frozenset("._-")


class TopicError(PipelineError):
    """A topic that a task may not put or read, or that is not well formed. Carries `task` and `topic`."""

    def __init__(self, task: str, topic: object, what: str) -> None:
        shown = repr(topic[:200]) if type(topic) is str else f"of type {type(topic).__name__}"
        super().__init__(f"topic {shown} {what}")
        self.task = task
        self.topic = topic


def is_topic_name(text: str) -> bool:
    """Return whether a task may put features under this name (`NAME_RULE`)."""
    return 0 < len(text) <= MAX_NAME_CHARS and text[0] in _FIRST and _OTHERS.issuperset(text)


def owner(topic: str) -> str:
    """Return the full name of the task that owns a topic; a topic that names no task is its own owner."""
    scenario, _, rest = topic.partition("/")
    return f"{scenario}/{rest.partition('/')[0]}" if rest else scenario


def own_topic(task: str, topic: object) -> str:
    """Return the full name of a topic of the task, which is given by its name or in full.

    Raises:
        TopicError: it is another task's, or not a name.
    """
    if type(topic) is not str:
        raise TopicError(task, topic, f"must be text: {NAME_RULE}")
    if topic == task:
        return topic
    name = topic.removeprefix(f"{task}/")
    if is_topic_name(name):
        return f"{task}/{name}"
    if "/" in topic and owner(topic) != task:
        raise TopicError(task, topic, f"is not of task {task}, which may put features under its own names only")
    raise TopicError(task, topic, f"is not a name: {NAME_RULE}")


def full_topic(task: str, topic: object = "", other: object = "") -> str:
    """Return the full name of the topic that a task asks for.

    `topic` is a name or a full topic, empty for a task's output. `other` is another task of the scenario, whose topic
    is meant. Says nothing on whether the task may read it.

    Raises:
        TopicError: a name is not well formed, or a full topic and a task are both given.
    """
    for part in (topic, other):
        if type(part) is not str:
            raise TopicError(task, part, f"must be text: {NAME_RULE}")
    assert isinstance(topic, str)
    assert isinstance(other, str)
    if other and "/" not in other:
        other = f"{task.partition('/')[0]}/{other}"
    if "/" in topic:
        if other:
            raise TopicError(task, topic, f"is a full name; give the name alone beside task={other[:200]!r}")
        return topic
    if topic and not is_topic_name(topic):
        raise TopicError(task, topic, f"is not a name: {NAME_RULE}")
    return f"{other or task}/{topic}" if topic else other or task


def check_readable(task: str, reads: "Collection[str]", topic: str) -> None:
    """Check that a task may read a topic: one of its own, or one of `reads`, which are full names.

    Raises:
        TopicError: it may not.
    """
    if owner(topic) == task or topic in reads:
        return
    scenario = task.partition("/")[0]
    if topic.startswith(f"{scenario}/"):
        entry = topic.removeprefix(f"{scenario}/")[:200]
        what = f"is not of task {task}; to read it, add {entry!r} to topics under [reads] in task.toml"
    else:
        what = f"is not of task {task} nor of its scenario; a task reads topics of its scenario only"
    raise TopicError(task, topic, what)


class PutTopics:
    """The topics that each task has put, so that none can use up those that the cloud accepts of the device."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}

    def add(self, task: str, topics: "Iterable[str]") -> None:
        """Count the topics of a run, by their full names.

        Raises:
            TopicError: the task has more than MAX_TOPICS.
        """
        known = self._known.setdefault(task, set())
        for topic in sorted(set(topics) - known):
            if len(known) == MAX_TOPICS:
                what = f"is beyond the {MAX_TOPICS} that a task may put; keep the key in the payload"
                raise TopicError(task, topic, what)
            known.add(topic)

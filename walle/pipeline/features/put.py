"""One output of a task on its way into the feature store: its topic, and its value as encoded plain data."""

import functools
from typing import NamedTuple, Self

from walle.base import plain
from walle.engine_ext._core import packed_value
from walle.errors import PipelineError
from walle.pipeline.features.losses import LOSS_TOPIC
from walle.protocol import sound_version

MAX_FEATURE_BYTES = 1 << 20
MAX_TOPIC_CHARS = 200
_CHECKED_TOPICS = 1000  # names of topics that are known to be right


class PayloadError(PipelineError):
    """A topic or a payload that cannot be stored. Its call put nothing."""


class Put(NamedTuple):
    """One output to store: a topic, its encoded payload, and the version of the task that made it, "" if unknown."""

    topic: str
    payload: bytes
    upload: bool = True
    version: str = ""

    @classmethod
    def of(cls, topic: str, value: object, *, upload: bool = True, version: str = "") -> Self:
        """Return a plain value encoded for storage.

        Raises:
            PayloadError: the topic is empty, too long or not plain text; the value is not plain data, or larger than
                MAX_FEATURE_BYTES.
        """
        check_topic(topic)
        data = packed_value(value)
        if data is None:
            try:
                data = plain.encode(value, "payload")
            except plain.PlainDataError as error:
                raise PayloadError(f"topic {topic!r}: {error}") from error
        if len(data) > MAX_FEATURE_BYTES:
            raise PayloadError(f"topic {topic!r}: {len(data)} bytes, more than {MAX_FEATURE_BYTES}")
        return cls(topic, data, upload, sound_version(version))


@functools.lru_cache(_CHECKED_TOPICS)
def check_topic(topic: str) -> None:
    """Raise PayloadError for a topic under which nothing can be stored."""
    if not topic or len(topic) > MAX_TOPIC_CHARS:
        raise PayloadError(f"topic {topic[:80]!r} must have 1 to {MAX_TOPIC_CHARS} characters")
    if topic == LOSS_TOPIC:
        raise PayloadError(f"topic {topic!r} is reserved for reports of lost uploads; use another")
    # SQLite refuses lone surrogates, and its length() stops at a NUL: one such row would block all others.
    if "\0" in topic or topic.encode("utf-8", "replace").decode() != topic:
        raise PayloadError(f"topic {topic[:80]!r} holds a NUL or a lone surrogate; use plain text")

"""Retention of stored uploads: by age and by bytes, per topic, in short deletions that delay no receipt."""

import dataclasses
import logging
import math
from collections.abc import Mapping

from walle.base.clock import Clock
from walle.errors import ConfigError
from walle.pipeline.ingest.store.byte_size import parse_size
from walle.pipeline.ingest.store.expiry import STEP_BYTES
from walle.pipeline.ingest.store.upload_store import IngestError, TopicSize, UploadStore

_LOG = logging.getLogger(__name__)

_STEP = 500  # uploads of one deletion
_PAUSE_S = 0.02  # pause between two deletions
_TOPICS_COUNTED = 500  # each by itself
_TOPICS_READ = 1000  # limit of one query
_JUMP_S = 60.0  # largest difference from the monotonic clock, between two checks, of a clock that was not set
_TRUST_S = 3600.0  # time that a clock set forward has to run before it counts
_AGES_S = {"h": 3600, "d": 86_400}
ANY_TOPIC = "*"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetentionRule:
    """Bounds on the stored uploads of a topic; None bounds nothing.

    Uploads that a consumer group has not committed are kept, unless `keep_unconsumed` is False.
    """

    max_age_s: float | None = None
    max_bytes: int | None = None
    keep_unconsumed: bool = True


def parse_rule(text: str) -> tuple[str, RetentionRule]:
    """Return topic and rule of `TOPIC=30d`, `TOPIC=20GB`, `TOPIC=30d,20GB` or the same with `,force`.

    The topic `*` is for all topics without a rule; `force` deletes what groups have not committed, too.

    Raises:
        ConfigError: the text is none of these.
    """
    topic, _, bounds = text.rpartition("=")
    age_s, size_bytes, keep = None, None, True
    for bound in bounds.split(","):
        unit = bound.lstrip("0123456789.")
        number = bound.removesuffix(unit)
        try:
            if bound == "force":
                keep = False
            elif unit in _AGES_S:
                age_s = float(number) * _AGES_S[unit]
                math.floor(age_s)  # OverflowError: infinite
            else:
                size_bytes = parse_size(bound)
        except (ValueError, OverflowError) as error:
            what = f"{bound!r} is not an age (12h, 30d), a size (500MB, 20GB, 1TB) or force"
            raise ConfigError(f"retention {text!r}: {what}; write TOPIC=30d,20GB") from error
    if not topic or (age_s is None and size_bytes is None):
        raise ConfigError(f"retention {text!r} names no topic or no bound; write TOPIC=30d,20GB or *=30d")
    return topic, RetentionRule(max_age_s=age_s, max_bytes=size_bytes, keep_unconsumed=keep)


class Retention:
    """Deletes what the rules do not keep. `deleted` counts since this object was made, by topic.

    Topics after the first 500, which only a forged device makes, count as ANY_TOPIC. `unconsumed` counts the deleted
    uploads that a consumer group had not committed, under rules that force that.

    Args:
        rules: by topic; ANY_TOPIC is for all others.
    """

    def __init__(self, store: UploadStore, rules: Mapping[str, RetentionRule]) -> None:
        self.deleted: dict[str, TopicSize] = {}
        self.unconsumed = 0
        self.failures = 0
        self._store = store
        self._rules = dict(rules)
        self._seen: tuple[float, float] | None = None  # time of day and monotonic time that agreed, of the latest look
        self._ahead_since_s: float | None = None  # monotonic time since which the clock is ahead of them

    async def run(self, every_s: float = 60.0) -> None:
        """Apply the rules every `every_s` seconds, until cancelled. A store that cannot be used is tried again."""
        while True:
            try:
                await self.apply()
            except IngestError as error:
                self.failures += 1
                _LOG.warning("old uploads are not deleted: %s", error)
            await self._clock.sleep(every_s)

    async def apply(self) -> None:
        """Delete all that the rules do not keep.

        Raises:
            IngestError: the store cannot be used.
        """
        now_s = self._now_s()
        after: str | None = None
        while topics := await self._store.topics(after=after, limit=_TOPICS_READ):
            for topic, size in topics.items():
                rule = self._rules.get(topic) or self._rules.get(ANY_TOPIC)
                if rule is not None:
                    await self._apply(topic, size, rule, now_s)
                after = topic

    @property
    def _clock(self) -> Clock:
        return self._store.clock

    def _now_s(self) -> float:
        """Return the time of day by which ages count.

        A clock that is set forward deletes nothing at once: it counts once it has stayed so for an hour. A mistake is
        mended sooner, and deleted uploads do not come back.
        """
        time_s, monotonic_s = self._clock.time(), self._clock.monotonic()
        if self._seen is not None:
            expected_s = self._seen[0] + monotonic_s - self._seen[1]
            if time_s > expected_s + _JUMP_S:
                if self._ahead_since_s is None:
                    self._ahead_since_s = monotonic_s
                    ahead_s = time_s - expected_s
                    _LOG.warning("the clock was set forward by %.0f s; retention follows it in an hour", ahead_s)
                if monotonic_s - self._ahead_since_s < _TRUST_S:
                    return expected_s
        self._seen, self._ahead_since_s = (time_s, monotonic_s), None
        return time_s

    async def _apply(self, topic: str, size: TopicSize, rule: RetentionRule, now_s: float) -> None:
        before_ms = None if rule.max_age_s is None else math.floor((now_s - rule.max_age_s) * 1000)
        over_bytes = 0 if rule.max_bytes is None else max(0, size.size_bytes - rule.max_bytes)
        while before_ms is not None or over_bytes > 0:
            deleted = await self._store.trim(
                topic,
                before_ms=before_ms,
                now_ms=math.floor(now_s * 1000),
                over_bytes=over_bytes,
                keep_unconsumed=rule.keep_unconsumed,
                limit=_STEP,
            )
            if deleted.uploads:
                counted = topic if topic in self.deleted or len(self.deleted) < _TOPICS_COUNTED else ANY_TOPIC
                before = self.deleted.get(counted, TopicSize(0, 0))
                self.deleted[counted] = TopicSize(
                    before.uploads + deleted.uploads, before.size_bytes + deleted.size_bytes
                )
                self.unconsumed += deleted.unconsumed
            if deleted.uploads < _STEP and deleted.size_bytes < STEP_BYTES:
                return
            over_bytes = max(0, over_bytes - deleted.size_bytes)
            await self._clock.sleep(_PAUSE_S)

"""Trigger conditions and queues: when a task runs (§5.1), in task.toml, in a manifest and on a device."""

import dataclasses
import enum
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from walle.protocol.fields import ProtocolError, shorten
from walle.protocol.options import OptionTable, choice, flag, number, option
from walle.protocol.trigger_steps import parse_steps, sequences, to_steps


@dataclasses.dataclass(frozen=True, slots=True)
class ContentsTest:
    """A test of an event's contents: a field compared with a constant. Called with contents, it returns if they pass.

    `field` is a key, or keys of nested objects joined by dots, such as `item.price`. Numbers compare with numbers, text
    with text. A field that is missing or of another kind fails every comparison, `!=` too.

    Raises:
        ProtocolError: `field`, `comparison` or `value` is wrong.
    """

    field: str
    comparison: str
    value: str | float | bool

    COMPARISONS: ClassVar[Mapping[str, Callable[[Any, Any], bool]]] = {
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }
    KEYS: ClassVar = ("field", "is", "value")
    MAX_FIELD_CHARS: ClassVar = 256

    def __post_init__(self) -> None:
        if not isinstance(self.field, str) or not all(self.field.split(".")) or len(self.field) > self.MAX_FIELD_CHARS:
            what = f"must be a field of the contents, such as item.price, is {shorten(self.field)}"
            raise ProtocolError("trigger.where.field", what)
        if not isinstance(self.comparison, str) or self.comparison not in self.COMPARISONS:
            what = f"must be one of {' '.join(self.COMPARISONS)}, is {shorten(self.comparison)}"
            raise ProtocolError("trigger.where.is", what)
        if not isinstance(self.value, str | int | float) or (
            isinstance(self.value, float) and not math.isfinite(self.value)
        ):
            raise ProtocolError("trigger.where.value", f"must be text, a number or a bool, is {shorten(self.value)}")
        if isinstance(self.value, bool) and self.comparison not in {"==", "!="}:
            raise ProtocolError("trigger.where.is", f"must be == or != for a bool, is {self.comparison}")

    @classmethod
    def parse(cls, table: object) -> Self:
        """Return the test that a [trigger.where] table describes; `to_json` is the inverse."""
        if not isinstance(table, Mapping) or set(table) != set(cls.KEYS):
            raise ProtocolError("trigger.where", f"must be a table of {', '.join(cls.KEYS)}, is {shorten(table)}")
        return cls(*(table[key] for key in cls.KEYS))

    def to_json(self) -> dict[str, Any]:
        return {"field": self.field, "is": self.comparison, "value": self.value}

    def __call__(self, contents: Mapping[str, Any]) -> bool:
        found: Any = contents
        for key in self.field.split("."):
            if not isinstance(found, Mapping) or key not in found:
                return False
            found = found[key]
        kinds = (str,) if isinstance(self.value, str) else (bool,) if isinstance(self.value, bool) else (int, float)
        if not isinstance(found, kinds) or isinstance(found, bool) != isinstance(self.value, bool):
            return False
        return self.COMPARISONS[self.comparison](found, self.value)

    def __str__(self) -> str:
        return f"{self.field} {self.comparison} {self.value!r}"


_MAX_MS = 2**53
_MAX_S = 366 * 24 * 3600


def _milliseconds(meaning: str) -> Any:
    return number(0, 0, _MAX_MS, meaning, kind="a number of milliseconds")


def _seconds(meaning: str, shown_default: str) -> Any:
    return number(0, 0, _MAX_S, meaning, kind=f"a whole number of seconds, 1 to {_MAX_S}", shown_default=shown_default)


@dataclasses.dataclass(frozen=True, slots=True)
class TriggerCondition(OptionTable):
    """The condition that starts a task (§5.1): trigger ids that events match in this order, and options.

    A trigger id is an event id or a page id; an event matches if it has that event id or that page id. The wildcard
    `*` matches any one event. Without options, the events are consecutive. Ids that are `optional` need not occur. A
    match begins at each event that matches the first id, and ends where the first of the sequences with and without the
    optional ids is complete: each first event triggers at most once.

    A condition may also be one of time: `idle_s`, `every_s` and `window_s` each trigger the task by themselves, beside
    `sequence` or without it. Time is that of the stream: the largest time of an event so far, moved on by the device's
    clock where no event comes (ADR 19).

    Options:
        within_ms: at most this time passes from the first to the last event, by their own times. 0: no bound.
        skip_till_next: other events may come between those that match. A match waits until an event matches its next
            trigger id, and takes the first that does; it survives a restart if its first event is recent (ADR 18).
        cooldown_ms: after the condition has triggered the task, it does not again until this time has passed. 0: none.
        where: the contents of the last event pass this test.
        key: a field of the contents, as in `where`. All events of a match have it, with equal values, and so has the
            `absent` event.
        absent, absent_s: a trigger id and seconds. The task is triggered where the sequence has matched and no event
            with this id has come for that time.
        idle_s, idle: seconds without an event of an open page, or of the whole `stream`. Once for each quiet time.
        every_s: seconds; the ends of periods that begin at multiples of them since the epoch. Several periods that are
            over at once trigger the task once.
        window_s, window_every_s: length in seconds of windows of event time, and where they begin: at multiples of
            `window_every_s` since the epoch; 0: one after the other. Each triggers the task once it has closed.
        grace_s: seconds after the end of a window in which its late events are still taken; then it closes.
        window_of: trigger ids of the events in the windows; all events without it.

    An option is a field that `walle.protocol.options` makes. task.toml, manifest, `walle task` and simulation pass the
    whole value on. `EventStream` applies the options in MATCHED, `StreamEngine` the others. docs/adr/0018-triggers.md
    has the reasons.

    Raises:
        ProtocolError: a field is wrong; `where` is its path, such as `trigger.sequence[1]`.
    """

    SECTION: ClassVar = "trigger"
    OTHERS: ClassVar = ("sequence",)
    WILDCARD: ClassVar = "*"
    MAX_LENGTH: ClassVar = 64
    MAX_OVERLAP: ClassVar = 100  # windows of an event
    MAX_PANES: ClassVar = 1_000  # windows that begin while one is open
    # Options that the trie matches, in the order of its arguments; the engine applies the others.
    MATCHED: ClassVar = ("within_ms", "skip_till_next", "where")

    trigger_ids: tuple[str, ...]
    within_ms: int = _milliseconds(
        "at most this time from the first to the last event, by their own times; 0: no bound"
    )
    skip_till_next: bool = flag(False, "other events may come between those that match")
    cooldown_ms: int = _milliseconds("time for which the condition does not trigger again")
    where: ContentsTest | None = option(
        None,
        '`{ field = "item.price", is = ">=", value = 10 }`: a test of the last event\'s contents; `is` is one of `==`'
        " `!=` `<` `<=` `>` `>=`",
        parse=ContentsTest.parse,
        to_json=lambda test: None if test is None else test.to_json(),
    )
    without_visit: bool = flag(False, "also run for events whose page has no open visit")
    key: str = option(
        "",
        'a field of the contents, such as `"item_id"`: all events of a match, and the absent one, have equal values of'
        " it",
    )
    absent: str = option(
        "", "a trigger id: run if no event with it came for `absent_s` seconds after the sequence matched"
    )
    absent_s: int = _seconds("needed with `absent`: 1 to 31,622,400 seconds", "none")
    idle_s: int = _seconds(
        "run once no event has come for these seconds: of a page that is open, beside `sequence` or without it", "none"
    )
    idle: str = choice("page", ("page", "stream"), 'what must be quiet for `idle_s`: `"page"` or `"stream"`')
    every_s: int = _seconds("run at each multiple of these seconds since the epoch", "none")
    window_s: int = _seconds(
        "run with the events of each window of these seconds, by their times, once it has closed", "none"
    )
    window_every_s: int = _seconds(
        "windows begin at multiples of these seconds since the epoch; divides `window_s`, a hundredth of it at least",
        "`window_s`",
    )
    grace_s: int = _seconds(
        "seconds after a window's end for which it waits for late events; at most 1,000 windows may be open", "0"
    )
    window_of: tuple[str, ...] = option(
        (),
        "1 to 64 event ids or page ids: the events in the windows",
        shown_default="all events",
        parse=lambda value: tuple(value) if isinstance(value, list) else value,
        to_json=list,
    )
    optional: tuple[int, ...] = ()  # indices of trigger ids that need not occur; in tables a part of `sequence`

    def __post_init__(self) -> None:
        has_timer = bool(self.idle_s or self.every_s or self.window_s)
        if not self.trigger_ids and not has_timer:
            raise ProtocolError(
                "trigger.sequence", "is missing; without it a condition needs idle_s, every_s or window_s"
            )
        if len(self.trigger_ids) > self.MAX_LENGTH:
            what = f"must be a list of 1 to {self.MAX_LENGTH} trigger ids, is {shorten(list(self.trigger_ids))}"
            raise ProtocolError("trigger.sequence", what)
        for index, trigger_id in enumerate(self.trigger_ids):
            if not isinstance(trigger_id, str) or not trigger_id:
                where = f"trigger.sequence[{index}]"
                raise ProtocolError(where, f"must be an event id or page id, is {shorten(trigger_id)}")
        OptionTable.__post_init__(self)
        self._check_time()
        self._check_windows()
        self._check_key()
        if self.optional:
            self._check_optional()

    def _check_time(self) -> None:
        if self.idle != "page" and not self.idle_s:
            raise ProtocolError("trigger.idle", "needs idle_s, the seconds without an event")
        if not isinstance(self.absent, str):
            raise ProtocolError("trigger.absent", f"must be an event id or page id, is {shorten(self.absent)}")
        if bool(self.absent) != bool(self.absent_s):
            one, other = ("absent", "absent_s") if self.absent else ("absent_s", "absent")
            what = "the seconds for which it does not come" if self.absent else "the id of the event that does not come"
            raise ProtocolError(f"trigger.{one}", f"needs {other}, {what}")
        if not self.trigger_ids:
            for given, _ in self._written():
                if given.key in (*self.MATCHED, "key", "absent"):
                    raise ProtocolError(f"trigger.{given.key}", "needs a sequence, which it is an option of")

    def _check_windows(self) -> None:
        if not isinstance(self.window_of, tuple) or len(self.window_of) > self.MAX_LENGTH:
            what = f"must be a list of 1 to {self.MAX_LENGTH} event ids or page ids, is {shorten(self.window_of)}"
            raise ProtocolError("trigger.window_of", what)
        for index, trigger_id in enumerate(self.window_of):
            if not isinstance(trigger_id, str) or not trigger_id:
                what = f"must be an event id or page id, is {shorten(trigger_id)}"
                raise ProtocolError(f"trigger.window_of[{index}]", what)
        if not self.window_s:
            for key in ("window_every_s", "grace_s", "window_of"):
                if getattr(self, key):
                    raise ProtocolError(f"trigger.{key}", "needs window_s, the length of the windows in seconds")
            return
        every_s = self.window_every_s or self.window_s
        if self.window_s % every_s or self.window_s // every_s > self.MAX_OVERLAP:
            what = f"must divide window_s, {self.window_s}, and be a {self.MAX_OVERLAP}th of it at least, is {every_s}"
            raise ProtocolError("trigger.window_every_s", what)
        if (most := self.MAX_PANES * every_s - self.window_s) < self.grace_s:
            what = f"must be at most {most} seconds, so that at most {self.MAX_PANES} windows are open"
            raise ProtocolError("trigger.grace_s", f"{what}, is {self.grace_s}")

    def _check_key(self) -> None:
        if not isinstance(self.key, str) or len(self.key) > ContentsTest.MAX_FIELD_CHARS:
            raise ProtocolError("trigger.key", f"must be a field of the contents, is {shorten(self.key)}")
        if self.key and not all(self.key.split(".")):
            raise ProtocolError("trigger.key", f"must be a field of the contents, is {shorten(self.key)}")
        if self.key and len(self.trigger_ids) < 2 and not self.absent:
            raise ProtocolError(
                "trigger.key", "needs a sequence of two or more ids, or absent: one event has one value"
            )

    def _check_optional(self) -> None:
        last = len(self.trigger_ids) - 1
        if not all(type(one) is int and 0 <= one <= last for one in self.optional):
            raise ProtocolError("trigger.sequence", f"has no steps {shorten(list(self.optional))} that are optional")
        if {0, last} & set(self.optional):
            what = "must have a first step that occurs, and a last one that occurs a given number of times"
            raise ProtocolError("trigger.sequence", f"{what}: the task is triggered by the last event")
        if self.key and not self.skip_till_next:
            what = "needs skip_till_next, or a sequence without optional steps and [least, most] times"
            raise ProtocolError("trigger.key", what)
        sequences(self.trigger_ids, self.optional)

    @property
    def required_ids(self) -> tuple[str, ...]:
        """The trigger ids that must occur."""
        return tuple(one for index, one in enumerate(self.trigger_ids) if index not in self.optional)

    @property
    def longest_ms(self) -> int:
        """The longest time in milliseconds for which one of its timers runs; 0 without timers."""
        return 1000 * max(self.absent_s, self.idle_s, self.every_s, self.window_s + self.grace_s)

    @classmethod
    def of(cls, trigger_ids: Sequence[str], **options: Any) -> Self:
        """Return the condition on these trigger ids, with the options that are given."""
        if isinstance(trigger_ids, str) or not isinstance(trigger_ids, Sequence):
            what = f"must be a list of 1 to {cls.MAX_LENGTH} trigger ids, is {shorten(trigger_ids)}"
            raise ProtocolError("trigger.sequence", what)
        return cls(tuple(trigger_ids), **options)

    @classmethod
    def parse(cls, table: object) -> Self:
        """Return the condition that a [trigger] table or a manifest's `trigger` describes; `to_json` is the inverse.

        An unknown key is refused: a device that ignored an option would run the task when it must not.
        """
        options = cls._parsed(table)
        assert isinstance(table, Mapping)
        if "sequence" not in table:
            return cls((), **options)
        if table["sequence"] == []:
            raise ProtocolError("trigger.sequence", f"must be a list of 1 to {cls.MAX_LENGTH} trigger ids, is []")
        steps = table["sequence"]
        if isinstance(steps, list):
            steps, options["optional"] = parse_steps(steps)
        return cls.of(steps, **options)

    def to_json(self) -> dict[str, Any]:
        """Return the table; an option that is not used is left out, so that an older device reads the condition."""
        table: dict[str, Any] = {"sequence": to_steps(self.trigger_ids, self.optional)} if self.trigger_ids else {}
        return table | OptionTable.to_json(self)

    def __str__(self) -> str:
        ids = [f"{one} (optional)" if at in self.optional else one for at, one in enumerate(self.trigger_ids)]
        sequence = [" → ".join(ids)] if ids else []
        return ", ".join([*sequence, *(f"{one.key} {_shown(value)}" for one, value in self._written())])


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


class FullPolicy(enum.StrEnum):
    """The policy of something bounded that is full: hold the producer, or drop what is oldest or newest."""

    BLOCK = "block"
    DROP_OLDEST = "drop-oldest"
    DROP_NEWEST = "drop-newest"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """A task's queue of triggers: its size, and the policies when the queue or the device's outbox is full.

    `queue_full`: block, drop the oldest waiting trigger, or drop the new one. With block nothing is dropped: the task
    falls behind the device's stream and reads its events from the journal; at the bound of that, and for events that
    the journal lacks (with arrays, or of a source with positions), the device takes no further event that may trigger
    the task until a run has ended. While the task waits for the cloud, block drops the new one there.

    `outbox_full`: block only this task until the cloud acknowledges uploads, or drop the newest upload, which stays
    stored on the device. An upload has a number without gaps, so that an older one cannot be dropped.

    Raises:
        ProtocolError: a field is wrong; `where` is its key.
    """

    queue: int = 16
    queue_full: FullPolicy = FullPolicy.BLOCK  # nothing is lost unless the task's author chose so
    outbox_full: FullPolicy = FullPolicy.BLOCK  # what was computed is kept

    SIZES: ClassVar = (1, 1024)  # least and most triggers in a queue
    CHOICES: ClassVar[Mapping[str, tuple[FullPolicy, ...]]] = {
        "queue_full": tuple(FullPolicy),
        "outbox_full": (FullPolicy.BLOCK, FullPolicy.DROP_NEWEST),
    }

    def __post_init__(self) -> None:
        least, most = self.SIZES
        if type(self.queue) is not int or not least <= self.queue <= most:
            raise ProtocolError("queue", f"must be a whole number from {least} to {most}, is {shorten(self.queue)}")
        for key, choices in self.CHOICES.items():
            if getattr(self, key) not in choices:
                what = f"must be one of {', '.join(choices)}; is {shorten(getattr(self, key))}"
                raise ProtocolError(key, what)

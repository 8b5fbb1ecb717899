"""Types of what a task's phases get, for type checkers: `ctx`, `trigger` and the events.

    TYPE_CHECKING = False  # type checkers take it for true
    if TYPE_CHECKING:
        from walle.task import Context, Trigger

    def execute(ctx: "Context", trigger: "Trigger") -> dict[str, object]: ...

The classes are those that run in the VM, so their types cannot differ from them. A VM does not load this module:
import it under `TYPE_CHECKING` only. What a phase returns, and what `ctx.store.put` takes, is plain data: None, bool,
int, float, str, bytes, list, tuple, dict with str keys, and arrays.
"""

from typing import Literal, TypedDict

from walle.engine_ext.session import Module, Session
from walle.pipeline.context import Context, EscalationError, Log, Store
from walle.pipeline.events import Event, TriggerEvent
from walle.pipeline.stream import Events, Groups, Plan

__all__ = [
    "Context",
    "EscalationError",
    "Event",
    "Events",
    "Groups",
    "Log",
    "Module",
    "Plan",
    "Session",
    "Store",
    "Trigger",
    "TriggerEvent",
]


class Trigger(TypedDict):
    """The cause of a run, which the first phase gets: the event that completed the trigger condition.

    `position` is the event's place in the device's stream. `visit` says what `ctx.events` has of the event's page
    visit: all of its events so far ("whole"), only this event ("cut"), or nothing ("none").
    """

    event: TriggerEvent
    position: int
    visit: Literal["whole", "cut", "none"]

"""Types of what a task's phases get; `walle.task` has them for type checkers."""

from typing import Literal, TypedDict

from walle.engine_ext.session import Module, Session
from walle.pipeline.events.event import Event, TriggerEvent
from walle.pipeline.stream.context import Context, EscalationError, Store
from walle.pipeline.stream.events import Events, Groups, Plan
from walle.pipeline.stream.run_log import Log

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

"""Condition of a `DeviceQuery` on the registry's tables in SQL, for the dialects of its two stores."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from walle.deploy.fleet.registry import DeviceQuery


class Dialect(NamedTuple):
    """Parts of SQL in which stores differ. `?` marks a value; devices are `d`, their tasks `t`.

    `scenarios` gives the value for the names in `in_scenarios`.
    """

    tasks: str  # the table
    id_has: str
    has_attribute: str  # condition on a key, and a value as text
    in_scenarios: str
    scenarios: Callable[[Sequence[str]], Any]


def conditions(query: DeviceQuery, now_s: float, dialect: Dialect) -> tuple[str, list[Any]]:
    """Return the condition, with the values to bind in the order of their marks."""
    of_device: list[tuple[str, tuple[Any, ...]]] = []
    if query.search:
        of_device.append((dialect.id_has, (query.search,)))
    if query.app_version:
        of_device.append(("d.app_version = ?", (query.app_version,)))
    if query.seen_within_s:
        of_device.append(("d.last_seen_s >= ?", (now_s - query.seen_within_s,)))
    if query.attribute:
        of_device.append((dialect.has_attribute, (query.attribute, query.value)))
    of_task: list[tuple[str, tuple[Any, ...]]] = []
    for column, value in (("task", query.task), ("active", query.version), ("state", query.state)):
        if value:
            of_task.append((f"t.{column} = ?", (value,)))
    if query.failing:
        of_task.append(("t.failed > 0", ()))
    if query.scenarios is not None:
        of_task.append((dialect.in_scenarios, (dialect.scenarios(sorted(query.scenarios)),)))
    parts = [text for text, _ in of_device]
    if of_task:
        inner = " AND ".join(["t.device_id = d.device_id", *(text for text, _ in of_task)])
        parts.append(f"EXISTS (SELECT 1 FROM {dialect.tasks} AS t WHERE {inner})")  # noqa: S608 - our own names
    return " AND ".join(parts) or "TRUE", [value for _, values in (*of_device, *of_task) for value in values]

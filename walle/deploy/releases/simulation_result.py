"""Result of a version's simulation before its release (§6)."""

import dataclasses
from collections.abc import Mapping

from walle.deploy.fleet.device_group import GroupResult
from walle.deploy.releases.simulated_fault import SimulatedFault


@dataclasses.dataclass(frozen=True)
class SimulationResult:
    """Result of a bundle's simulation. `first_error` is empty where nothing failed.

    `events` are those that each kind of device was to get; `refused` (position, reason) are those that a device
    refuses, and that were not played for that reason. `is_cut` says that events were not played after the last failure.
    `users` of the events have separate devices; `other_users` were too many, and are not played. `faults` are the
    distinct failures. `timers` still ran at the end, on the devices of one kind, by the id of the event that each would
    have made, and `window_evicted` events were removed from windows at a bound there. `groups` are the results on
    devices of the groups that the release is for. `state_bytes` is the largest size that the task's state reached on
    one of the devices, `entries_evicted` are of the states of all.
    """

    ok: bool
    runs: int
    failures: int
    first_error: str = ""
    events: int = 0
    refused: tuple[tuple[int, str], ...] = ()
    is_cut: bool = False
    users: int = 0
    other_users: int = 0
    groups: tuple[GroupResult, ...] = ()
    faults: tuple[SimulatedFault, ...] = ()
    timers: Mapping[str, int] = dataclasses.field(default_factory=dict)
    window_evicted: int = 0
    other_groups: int = 0  # too small, or too many: not simulated
    other_names: tuple[str, ...] = ()  # names of the largest of these
    state_bytes: int = 0
    entries_evicted: int = 0

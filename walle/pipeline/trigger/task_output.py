"""The result of one run of a task on a device."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from walle.protocol import Destination, StatePolicy

_DEFAULT = StatePolicy()


@dataclasses.dataclass(frozen=True, slots=True)
class TaskOutput:
    """The result of one run: `output` goes to its `destination` under the task's name, None if there is none.

    `puts` are the (topic, payload) pairs that the task put, `local` those that are not uploaded. `state` is the task's
    new state, None if it has none. All is plain data. `phase_ms` is the time of each phase, where it was measured.
    `cpu_s` is the run's CPU time and `run_ms` the time that it took in its VM, without that in queues, None where it is
    not known. `metrics` are the numbers that the task reported of it, `version` is the task's, "" if it is not known.
    `state_policy` is that of the version's state.
    """

    output: Any = None
    puts: Sequence[tuple[str, Any]] = ()
    local: Sequence[tuple[str, Any]] = ()
    state: Mapping[str, Any] | None = None
    phase_ms: Mapping[str, float] = dataclasses.field(default_factory=dict)
    cpu_s: float | None = None
    destination: Destination = Destination.CLOUD
    run_ms: float | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    version: str = ""
    state_policy: StatePolicy = _DEFAULT

    @property
    def uploads_output(self) -> bool:
        return self.output is not None and self.destination is Destination.CLOUD

"""The result of one run of a task on a device."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from walle.pipeline.features.put import Put
from walle.protocol import Destination, StatePolicy

_DEFAULT = StatePolicy()


@dataclasses.dataclass(frozen=True, slots=True)
class TaskOutput:
    """The result of one run: `output` goes to its `destination` under the task's name, None if there is none.

    `puts` are the features that the task put, in the form of the store. `output` and `state`, the task's new state,
    None if it has none, are plain data. `phase_ms` is the time of each phase, where it was measured.
    `cpu_s` is the run's CPU time and `run_ms` the time that it took in its VM, without that in queues, None where it is
    not known. `metrics` are the numbers that the task reported of it, `version` is the task's, "" if it is not known.
    `state_policy` is that of the version's state.
    """

    output: Any = None
    puts: Sequence[Put] = ()
    state: Mapping[str, Any] | None = None
    phase_ms: Mapping[str, float] = dataclasses.field(default_factory=dict)
    cpu_s: float | None = None
    destination: Destination = Destination.CLOUD
    run_ms: float | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    version: str = ""
    state_policy: StatePolicy = _DEFAULT

    @property
    def uploads(self) -> int:
        """The number of features for the cloud, the output included."""
        of_output = self.output is not None and self.destination is Destination.CLOUD
        return of_output + sum(put.upload for put in self.puts)

    @property
    def topics(self) -> Iterator[str]:
        """The full names of the topics that the task put under."""
        return (put.topic for put in self.puts)

    def stored(self, task: str) -> list[Put]:
        """Return all that is to be stored: `puts`, and the output under the task's name.

        Raises:
            PayloadError: the output cannot be stored.
        """
        puts = list(self.puts)
        if self.output is not None and self.destination is not Destination.APP:
            uploads = self.destination is Destination.CLOUD
            puts.append(Put.of(task, self.output, upload=uploads, version=self.version))
        return puts

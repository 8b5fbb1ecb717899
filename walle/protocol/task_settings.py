"""Settings of a task version: what its task.toml states and its manifest repeats, and their form in the manifest."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from walle.protocol.cloud_policy import CloudPolicy
from walle.protocol.exclusive import ExclusiveFile, parse_exclusive
from walle.protocol.fields import ProtocolError, take, take_map
from walle.protocol.history import HistoryPolicy
from walle.protocol.output import OutputPolicy
from walle.protocol.reads import check_reads
from walle.protocol.task_state import StatePolicy
from walle.protocol.training import TrainingPolicy
from walle.protocol.triggers import TriggerCondition

type Table = HistoryPolicy | StatePolicy | TrainingPolicy | OutputPolicy | CloudPolicy


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """The settings. [limits] of task.toml has the keys of both `limits` and `policies`."""

    trigger: TriggerCondition
    phases: Mapping[str, str]  # phase → device | cloud | auto
    limits: Mapping[str, int]  # deadline_ms, memory_mb, ...
    policies: Mapping[str, str] = dataclasses.field(default_factory=dict)  # queue_full, outbox_full
    history: HistoryPolicy | None = None  # None: the task has no `ctx.history`
    state: StatePolicy | None = None  # None: the task has no `ctx.state`
    training: TrainingPolicy | None = None  # None: the task has no `train`
    output: OutputPolicy = dataclasses.field(default_factory=OutputPolicy)  # destination of the task's results
    reads: tuple[str, ...] = ()  # topics of other tasks of the scenario: `task` or `task/name`
    cloud: CloudPolicy = dataclasses.field(default_factory=CloudPolicy)
    dictionary: str = ""  # path of the zstd dictionary for the task's uploads; empty if it has none
    exclusive: tuple[ExclusiveFile, ...] = ()  # files of each device alone, which come through /cen

    # Settings that are a table of task.toml and an object of a manifest with the same keys, by the name of both.
    TABLES: ClassVar[Mapping[str, type[Table]]] = {
        "history": HistoryPolicy,
        "state": StatePolicy,
        "training": TrainingPolicy,
        "output": OutputPolicy,
        "cloud": CloudPolicy,
    }

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, as arguments of another class that has them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(TaskSettings)}

    def settings_to_json(self) -> dict[str, Any]:
        """Return the fields of a manifest. One that has its default is left out: older readers do not know it."""
        fields: dict[str, Any] = {
            "trigger": self.trigger.to_json(),
            "phases": dict(self.phases),
            "limits": dict(self.limits),
            "policies": dict(self.policies),
        }
        fields |= {name: table.to_json() for name in self.TABLES if (table := getattr(self, name)) is not None}
        fields |= {"reads": self.reads, "dictionary": self.dictionary}
        fields["exclusive"] = [file.to_json() for file in self.exclusive]
        return {name: value for name, value in fields.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}

    @classmethod
    def settings_of_json(cls, value: Mapping[str, Any], trigger: Any) -> dict[str, Any]:
        """Return the settings in a manifest's fields, of which `trigger` is one, as `settings` does.

        Raises:
            ProtocolError: one is missing or wrong; `where` is the path of the field.
        """
        found: dict[str, Any] = {}
        readers: dict[str, Callable[[Any], Any]] = {name: table.parse for name, table in cls.TABLES.items()}
        readers["reads"] = lambda topics: check_reads(topics, "reads")
        try:
            found["trigger"] = TriggerCondition.parse(trigger)
            found |= {name: read(value[name]) for name, read in readers.items() if name in value}
        except ProtocolError as error:
            raise ProtocolError(f"manifest.{error.where}", error.what) from error
        try:
            found["exclusive"] = parse_exclusive(value.get("exclusive", []))
        except ProtocolError as error:
            raise ProtocolError(f"manifest.exclusive.{error.where}".rstrip("."), error.what) from error
        found["phases"] = take_map(value, "phases", (str,), "manifest")
        found["limits"] = take_map(value, "limits", (int,), "manifest")
        if "policies" in value:
            found["policies"] = take_map(value, "policies", (str,), "manifest")
        if "dictionary" in value:
            found["dictionary"] = take(value, "dictionary", str, "manifest")
        return found


_DEFAULTS: Mapping[str, Any] = {
    "output": OutputPolicy().to_json(),
    "cloud": CloudPolicy().to_json(),
    "reads": (),
    "dictionary": "",
    "exclusive": [],
}

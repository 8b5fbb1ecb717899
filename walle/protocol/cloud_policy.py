"""Cloud side of a task: how its escalated phases are batched, replicated and queued (§7.1)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from walle.protocol.fields import ProtocolError, shorten


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CloudPolicy:
    """The [cloud] table of task.toml, and `cloud` of a manifest: batches, replicas and queue of a version in the cloud.

    `max_batch` payloads at most are given to one `execute_batch`; one that waits for company waits `batch_ms` at most.
    `replicas` VMs run the version at once. Beyond `queue` waiting requests the next one is refused. Each replica has
    `memory_mb`; 0 for that of the task's limits, which is the device's.

    Raises:
        ProtocolError: a field is wrong; `where` is its path, such as `cloud.queue`.
    """

    max_batch: int = 1
    batch_ms: int = 5
    replicas: int = 1
    queue: int = 256
    memory_mb: int = 0

    LIMITS: ClassVar[Mapping[str, tuple[int, int]]] = {
        "max_batch": (1, 256),
        "batch_ms": (0, 1_000),
        "replicas": (1, 32),
        "queue": (1, 4_096),
        "memory_mb": (0, 65_536),
    }
    KEYS: ClassVar = tuple(LIMITS)

    def __post_init__(self) -> None:
        for key, (least, most) in self.LIMITS.items():
            value = getattr(self, key)
            if type(value) is not int or not least <= value <= most:
                what = f"must be a whole number from {least} to {most}, is {shorten(value)}"
                raise ProtocolError(f"cloud.{key}", what)

    @classmethod
    def parse(cls, table: object) -> Self:
        """Return the policy that a table describes; `to_json` is the inverse. An unknown key is refused."""
        if not isinstance(table, Mapping):
            raise ProtocolError("cloud", f"must be an object, is {type(table).__name__}")
        for key in table:
            if key not in cls.KEYS:
                raise ProtocolError("cloud", f"has an unknown key {shorten(key)}; known are {', '.join(cls.KEYS)}")
        return cls(**table)

    def to_json(self) -> dict[str, Any]:
        """Return the table; without `memory_mb` where it is 0: readers of before know the other keys only."""
        return {key: getattr(self, key) for key in self.KEYS if key != "memory_mb" or self.memory_mb}

"""Cloud side of a task: how its escalated phases are batched, replicated and queued (§7.1)."""

import dataclasses
from typing import ClassVar

from walle.protocol.options import OptionTable, number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CloudPolicy(OptionTable):
    """The [cloud] table of task.toml, and `cloud` of a manifest: batches, replicas and queue of a version in the cloud.

    `max_batch` payloads at most are given to one `execute_batch`; one that waits for company waits `batch_ms` at most.
    `replicas` VMs run the version at once. Beyond `queue` waiting requests the next one is refused. Each replica has
    `memory_mb`; 0 for that of the task's limits, which is the device's.

    Raises:
        ProtocolError: a field is wrong; `where` is its path, such as `cloud.queue`.
    """

    SECTION: ClassVar = "cloud"

    max_batch: int = number(1, 1, 256, "payloads of one call of `execute_batch`", always_written=True)
    batch_ms: int = number(5, 0, 1_000, "the longest time that a request waits for a batch", always_written=True)
    replicas: int = number(1, 1, 32, "VMs that run this version at once, if the cloud has as many", always_written=True)
    queue: int = number(256, 1, 4_096, "requests that wait; then one is refused", always_written=True)
    memory_mb: int = number(0, 0, 65_536, "memory of one of these VMs; 0 for that of `[limits]`, which is the device's")

"""Task VMs: a Python interpreter with its own GIL, pinned to one thread, for each task (§4.3)."""

from walle.engine_ext.vm.bytecode import BytecodeError
from walle.engine_ext.vm.host import HostStartError, VmHost
from walle.engine_ext.vm.imports import ForbiddenImport
from walle.engine_ext.vm.loop_calls import (
    DeadlineExceeded,
    HostCrashed,
    HostLost,
    LimitExceeded,
    TaskError,
    VMClosedError,
)
from walle.engine_ext.vm.pool import TaskQuarantined, VMPool
from walle.engine_ext.vm.shared_arrays import shared_empty, shared_memory_counts
from walle.engine_ext.vm.vm import VM

__all__ = [
    "VM",
    "BytecodeError",
    "DeadlineExceeded",
    "ForbiddenImport",
    "HostCrashed",
    "HostLost",
    "HostStartError",
    "LimitExceeded",
    "TaskError",
    "TaskQuarantined",
    "VMClosedError",
    "VMPool",
    "VmHost",
    "shared_empty",
    "shared_memory_counts",
]

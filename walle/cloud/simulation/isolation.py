"""VM hosts of the cloud: a process for each simulation and one for fallback inference, and the kernel's layers.

A version runs in simulation before anybody has released it, and phases of released ones see what users do: neither
shares a process with the other, nor with keys, tokens or databases.
"""

import asyncio
import os
from collections.abc import Mapping

from walle.cloud.folder.config import CloudConfig
from walle.engine_ext.vm.host import LAYERS, VmHost
from walle.errors import ConfigError
from walle.task.format.compilers import Compile, compile_apart, compile_here

_MEMORY_SHARE = 0.5  # part of the machine's memory that one host may write


class IsolationError(ConfigError):
    """The kernel lacks layers that tasks of untrusted authors need. `missing` names them."""

    def __init__(self, missing: tuple[str, ...]) -> None:
        super().__init__(
            f"--untrusted-authors: the VM hosts of this cloud run without {', '.join(missing)}; use a Linux kernel with"
            " Landlock (5.13 or newer, in the list of /sys/kernel/security/lsm) and seccomp, or leave the option out if"
            " you trust everybody who may push"
        )
        self.missing = missing


def task_host(config: CloudConfig) -> VmHost | None:
    """Return a new VM host for one purpose, bounded in memory, which the caller closes; None if there is none."""
    return VmHost(max_memory_bytes=_memory_bytes()) if config.vm_host else None


def simulation_host(config: CloudConfig) -> VmHost:
    """Return a new VM host for one simulation, which the caller closes; all at once have a VM host's memory."""
    return VmHost(max_memory_bytes=_memory_bytes() // config.simulation_vms)


def compiler(config: CloudConfig) -> Compile:
    """Return how the sources of versions are compiled: apart from this process, unless it may start no VM hosts."""
    return compile_apart if config.vm_host else compile_here


async def check_layers(config: CloudConfig, host: VmHost | None) -> None:
    """Return where a host has all layers that the configuration asks for; starts the host.

    Raises:
        IsolationError: `untrusted_authors` is set, and a layer is missing.
    """
    if not config.untrusted_authors:
        return
    layers: Mapping[str, int] = {}
    if host is not None and await asyncio.to_thread(host.wait_ready):
        layers = host.report().layers
    missing = missing_layers(layers)
    if missing:
        raise IsolationError(missing)


async def check_simulation_layers(config: CloudConfig) -> None:
    """Return where a host of a simulation would have all layers that the configuration asks for.

    Raises:
        IsolationError: as `check_layers`.
    """
    host = task_host(config)
    try:
        await check_layers(config, host)
    finally:
        if host is not None:
            await asyncio.to_thread(host.close)


def missing_layers(layers: Mapping[str, int]) -> tuple[str, ...]:
    """Return the layers of a VM host's report that are not active."""
    return tuple(name for name in LAYERS if not layers.get(name))


def probe_layers() -> Mapping[str, int]:
    """Return the layers that a VM host has on this machine, by starting one and ending it; empty where none starts."""
    host = VmHost()
    try:
        return dict(host.report().layers) if host.wait_ready() else {}
    finally:
        host.close()


def _memory_bytes() -> int:
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _MEMORY_SHARE)

"""CPU time of the processes of a cloud by their role, from /proc (Linux)."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

LOAD = "load"  # the role of the test's own processes, which `CpuTimes` leaves out
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class ProcessTimes:
    """A process as /proc shows it. `cpu_s` has the children that have ended and were waited for, if `with_ended`."""

    pid: int
    parent: int
    command: str
    cpu_s: float


def read_process(pid: int, *, with_ended: bool = False) -> ProcessTimes | None:
    """Return a process, None if it has ended."""
    try:
        folder = Path(f"/proc/{pid}")
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    ticks = sum(int(field) for field in fields[11 : 15 if with_ended else 13])
    return ProcessTimes(pid, int(fields[1]), command, ticks / _TICKS)


def processes_of_namespace() -> dict[int, ProcessTimes]:
    """Return the processes that have this one's network namespace, by their ids."""
    ours, found = Path("/proc/self/ns/net").readlink(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "ns/net").readlink() != ours:
                continue
        except OSError:
            continue
        process = read_process(int(folder.name))
        if process is not None:
            found[process.pid] = process
    return found


def roles_of(processes: Mapping[int, ProcessTimes], named: Mapping[int, str], own: int) -> dict[int, str]:
    """Return the role of each process: that of its nearest ancestor with one, or of itself.

    `named` are the cloud's processes as its status has them, `own` is the test's. Ray's own are "ray", and what is left
    "other".
    """

    def role(pid: int) -> str:
        while (process := processes.get(pid)) is not None:
            if pid in named:
                return named[pid]
            if "cloud up" in process.command:
                return "driver"
            if "/ray/" in process.command or process.command.startswith("ray::"):
                return "ray"
            if pid == own or "loadtest." in process.command:
                return LOAD
            pid = process.parent
        return "other"

    return {pid: role(pid) for pid in processes}


class CpuTimes:
    """CPU seconds by role and process at one moment."""

    def __init__(self, by_process: Mapping[tuple[str, int], float]) -> None:
        self._by_process = by_process

    @classmethod
    def read(cls, named: Mapping[int, str], postgres: int = 0) -> "CpuTimes":
        """Return the times now. `postgres` is the first process of a PostgreSQL server, 0 for none."""
        processes = processes_of_namespace()
        roles = roles_of(processes, named, os.getpid())
        found = {(roles[pid], pid): process.cpu_s for pid, process in processes.items() if roles[pid] != LOAD}
        if postgres:
            found["postgresql", postgres] = sum(one.cpu_s for one in _family(postgres))
        return cls(found)

    def since(self, before: "CpuTimes") -> dict[str, float]:
        """Return the seconds of each role between both; those of a process that ended meanwhile are not known."""
        spent: dict[str, float] = {}
        for (role, pid), cpu_s in self._by_process.items():
            spent[role] = spent.get(role, 0.0) + cpu_s - before._by_process.get((role, pid), 0.0)
        return spent


def _family(pid: int) -> Iterable[ProcessTimes]:
    first = read_process(pid, with_ended=True)
    if first is None:
        return []
    others = (read_process(int(folder.name)) for folder in Path("/proc").glob("[0-9]*"))
    return [first, *(one for one in others if one is not None and one.parent == pid)]

"""Shares of tasks in the time of VMs: a task that has used more than others that wait gives way to them."""

import collections
from collections.abc import Collection

LAG_S = 0.1  # lead in VM time up to which deadlines alone decide between tasks
_MAX_TASKS = 1_000  # tasks whose use is known while they have no requests


class TaskShares:
    """VM time that tasks used while they had requests, start-time fair queueing without weights.

    Between `join` and `leave` a task has requests. One that joins is even with the task that used the least, so that
    nothing is saved up while a task asks for nothing.

    Source: Goyal, Vin, Cheng, "Start-time fair queueing" (SIGCOMM'96); departure: deadlines decide within LAG_S.
    """

    def __init__(self) -> None:
        self._used_s: dict[str, float] = {}
        self._joined = collections.Counter[str]()

    def join(self, task: str) -> None:
        if not self._joined[task]:
            least_s = min((self._used_s[one] for one in self._joined if one != task), default=0.0)
            self._used_s[task] = max(self._used_s.pop(task, 0.0), least_s)
        self._joined[task] += 1

    def leave(self, task: str) -> None:
        self._joined[task] -= 1
        if not self._joined[task]:
            del self._joined[task]
        if not self._joined:  # differences alone count
            self._used_s.clear()
        elif len(self._used_s) > _MAX_TASKS + len(self._joined):
            del self._used_s[next(one for one in self._used_s if one not in self._joined)]

    def charge(self, task: str, seconds: float) -> None:
        if task in self._used_s:
            self._used_s[task] += seconds

    def first(self, tasks: Collection[str]) -> frozenset[str]:
        """Return those of these joined tasks that do not give way to another of them."""
        least_s = min(self._used_s[task] for task in tasks)
        return frozenset(task for task in tasks if self._used_s[task] <= least_s + LAG_S)

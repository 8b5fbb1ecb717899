"""Quarantine of tasks that cost a pool of VMs too much: strikes and leaked memory, by task and not by version."""

from walle.errors import VMError

MAX_STRIKES = 3  # abandoned VMs of one task, and VM hosts that it crashed
MAX_LEAKED_MB = 64  # of memory, for one task's interpreters that could not be reset
RUNS_FOR_A_STRIKE = 1_000  # calls that end well before a strike is forgotten
_MAX_VERSIONS = 100  # that are remembered of one task


class TaskQuarantined(VMError):  # noqa: N818 -- as DeadlineExceeded
    """The pool no longer runs the version, because the task has cost the process too much.

    Either `strikes` of its calls did not stop in time or ended their VM host, or what it did in its interpreters could
    not be undone, which leaked `leaked_mb` of memory; `reset_failure` is the last reason.
    """

    def __init__(self, task: str, strikes: int, leaked_mb: int = 0, reset_failure: str = "") -> None:
        why = f"{strikes} of its calls could not be stopped, or ended their VM host"
        if strikes < MAX_STRIKES:
            why = f"what it did in its interpreters could not be undone ({reset_failure}), which leaked {leaked_mb} MB"
        super().__init__(f"task {task} is quarantined: {why}; release a version that does not, or restart the process")
        self.task = task
        self.strikes = strikes
        self.leaked_mb = leaked_mb
        self.reset_failure = reset_failure


class TaskRecord:
    """A task's strikes and leaked memory, over all of its versions.

    The version that reaches a limit is quarantined as long as the record exists. A later or earlier version of the task
    may run, with one strike left: a new version does not begin with all of them. A strike is forgotten after
    RUNS_FOR_A_STRIKE calls that end well; those that leak are not.
    """

    def __init__(self) -> None:
        self.strikes = 0
        self.leaked_bytes = 0
        self._reset_failure = ""
        self._runs = 0  # that ended well since the last strike, or since one was forgotten
        self._quarantined: dict[str, tuple[int, int, str]] = {}  # version → strikes, leaked MB, reset failure

    def check(self, name: str, version: str) -> None:
        """Raise TaskQuarantined if the version, called `name` in errors, is quarantined."""
        if version in self._quarantined:
            raise TaskQuarantined(name, *self._quarantined[version])
        if self._is_at_limit():
            self.strikes = min(self.strikes, MAX_STRIKES - 1)
            self.leaked_bytes = min(self.leaked_bytes, (MAX_LEAKED_MB << 20) * (MAX_STRIKES - 1) // MAX_STRIKES)
            self._runs = 0

    def add_strike(self, version: str) -> None:
        """Count an abandoned VM, or a VM host that the version crashed."""
        self.strikes += 1
        self._runs = 0
        self._quarantine_at_limit(version)

    def add_leak(self, version: str, leaked_bytes: int, reset_failure: str) -> None:
        """Count an interpreter that could not be reset."""
        self.leaked_bytes += leaked_bytes
        self._reset_failure = reset_failure
        self._quarantine_at_limit(version)

    def add_runs(self, count: int) -> None:
        """Count calls that ended well."""
        if not self.strikes:
            return
        self._runs += count
        if self._runs >= RUNS_FOR_A_STRIKE:
            self.strikes -= 1
            self._runs = 0

    def _is_at_limit(self) -> bool:
        return self.strikes >= MAX_STRIKES or self.leaked_bytes >= MAX_LEAKED_MB << 20

    def _quarantine_at_limit(self, version: str) -> None:
        if self._is_at_limit():
            self._quarantined[version] = (self.strikes, self.leaked_bytes >> 20, self._reset_failure)
            if len(self._quarantined) > _MAX_VERSIONS:
                del self._quarantined[next(iter(self._quarantined))]

"""Watches of what a gateway's folder and database hold: audit log, repositories, stored files, disk, database."""

from walle.base.clock import Clock
from walle.cloud.api.interfaces import WatchedParts
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.telemetry.audit_watch import AuditWatch
from walle.cloud.telemetry.database_watch import DatabaseWatch
from walle.cloud.telemetry.disk_watch import DiskWatch
from walle.cloud.upkeep.git_upkeep import GitUpkeep
from walle.cloud.upkeep.scrubbing import ScrubWatch
from walle.store.background import Works
from walle.store.disk_space import DiskSpace


class GatewayWatches:
    """The watches, and the upkeep of repositories. `database` is None where state is in files of the folder."""

    def __init__(self, config: CloudConfig, home: CloudHome, space: DiskSpace, clock: Clock) -> None:
        self.database = DatabaseWatch(home, clock) if home.database_url else None
        self._audit = AuditWatch(home.audit, clock)
        self._git = GitUpkeep(home.repos, config.git_quota, space, clock)
        self._scrub = ScrubWatch(home.folder)
        self._disk = DiskWatch(home.folder)

    def works(self) -> Works:
        """Return what is done while the gateway runs."""
        works: Works = {"watch of the audit log": self._audit.run, "upkeep of repositories": self._git.run}
        return works if self.database is None else {**works, "watch of the database": self.database.run}

    def parts(self) -> WatchedParts:
        """Return what /healthz and /metrics show."""
        parts: WatchedParts = {
            "stored files": self._scrub,
            "disk": self._disk,
            "git": self._git,
            "audit log": self._audit,
        }
        return parts if self.database is None else {**parts, "database": self.database}

"""Groups of scenarios (§6: group, scenario, branch, tag), and the file that holds them for every gateway.

```
[groups]
shop = ["cart", "search"]     # a scenario is in one group at most
```
A group is the list of its scenarios. It changes who may do what in them (`walle.access.access`), and gives each a
second git address. Nothing that is stored or signed names it.
"""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import write_file
from walle.base.names import NAME_RULE, is_name
from walle.errors import ConfigError, DeployError
from walle.store.disk_space import DiskFullError, is_full
from walle.store.toml_file import FileState, file_lock, file_state, read_section

MAX_GROUPED = 10_000  # scenarios in groups
_LOOK_S = 0.5  # interval between two looks at the file: a change acts in other gateways within this time
_LOG = logging.getLogger(__name__)


class NotInGroupError(DeployError):
    """A scenario that is not in the group that was named."""

    status = 404

    def __init__(self, scenario: str, group: str) -> None:
        super().__init__(f"scenario {scenario[:80]!r} is not in the group {group[:80]!r}")


@dataclasses.dataclass(frozen=True)
class ScenarioGroups:
    """The group of each scenario that has one. `is_known` is False where the file of groups cannot be read.

    Roles for groups then apply nowhere (`walle.access.access.Identity.role`).
    """

    by_scenario: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_known: bool = True

    def group_of(self, scenario: str) -> str:
        """Return the group of a scenario, "" for none."""
        return self.by_scenario.get(scenario, "")

    def members(self, group: str) -> frozenset[str]:
        """Return the scenarios of a group."""
        return frozenset(scenario for scenario, its in self.by_scenario.items() if its == group)

    def check(self, scenario: str, group: str) -> None:
        """Raise NotInGroupError unless the scenario is in the group."""
        if self.group_of(scenario) != group:
            raise NotInGroupError(scenario, group)


NO_GROUPS = ScenarioGroups()
_UNKNOWN = ScenarioGroups(is_known=False)


def load_groups(path: Path) -> ScenarioGroups:
    """Return the groups in the file at `path`; none where it is missing.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has an invalid entry, which the message names.
    """
    groups = read_section(
        path, "file of groups", "groups", "a section [groups] with a list of scenarios for each group"
    )
    if groups is None:
        return NO_GROUPS
    found: dict[str, str] = {}
    for group, scenarios in groups.items():
        for scenario in _members(f"{path}: [groups] {group}", group, scenarios):
            if scenario in found:
                raise ConfigError(f"{path}: {scenario} is in the groups {found[scenario]} and {group}; one is allowed")
            found[scenario] = group
    if len(found) > MAX_GROUPED:
        raise ConfigError(f"{path}: has {len(found)} scenarios, more than {MAX_GROUPED}")
    return ScenarioGroups(found) if found else NO_GROUPS


def _members(where: str, group: str, scenarios: Any) -> list[str]:
    if not is_name(group):
        raise ConfigError(f"{where}: a group's name is {NAME_RULE}")
    if not isinstance(scenarios, list):
        raise ConfigError(f'{where}: must be a list of scenarios, such as ["cart", "search"]')
    for scenario in scenarios:
        if not isinstance(scenario, str) or not is_name(scenario):
            raise ConfigError(f"{where}: {str(scenario)[:80]!r} is not a scenario's name ({NAME_RULE})")
    return scenarios


class GroupFile:
    """The groups in `path`, for one process of several that read and change them. Changes may be on other threads.

    While the file cannot be read the groups are unknown, and `error` says why: unlike with tokens, those of before do
    not stay in force, as the change that was not read may have taken a scenario out of a group.
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._path = path
        self._lock_path = path.with_name("groups.lock")
        self._clock = clock or SystemClock()
        self.error = ""
        self._groups = NO_GROUPS
        self._state: FileState | None = None  # None for a missing file, whose content is NO_GROUPS
        self._looked_s = self._clock.monotonic() - _LOOK_S

    def current(self) -> ScenarioGroups:
        """Return the groups; another process's change is seen within half a second."""
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return self._groups
        self._looked_s = now_s
        state = file_state(self._path)
        if state != self._state:
            try:
                # Together, and after the read: where a change on another thread came between, the next look finds it.
                self._groups, self._state, self.error = load_groups(self._path), state, ""
            except ConfigError as error:
                self._groups, self._state = _UNKNOWN, state
                self.error = f"roles for groups apply nowhere: {error}"
                _LOG.error("%s", self.error)
        return self._groups

    def put(self, scenario: str, group: str) -> str:
        """Put a scenario into a group, out of the one that it is in, in one write. Return that one, "" for none.

        Raises:
            ConfigError: a name is invalid, the file cannot be read or written, or has no room for more scenarios.
            DiskFullError: the disk has no room.
        """
        for what, name in (("scenario", scenario), ("group", group)):
            if not is_name(name):
                raise ConfigError(f"{name[:80]!r} cannot name a {what}; a name is {NAME_RULE}")
        with file_lock(self._lock_path):
            groups = load_groups(self._path)
            before = groups.group_of(scenario)
            if not before and len(groups.by_scenario) >= MAX_GROUPED:
                raise ConfigError(f"{MAX_GROUPED} scenarios are in groups already; take some out")
            if before != group:
                self._save({**groups.by_scenario, scenario: group})
        return before

    def remove(self, scenario: str, group: str) -> None:
        """Take a scenario out of a group.

        Raises:
            NotInGroupError: it is not in this group, perhaps not any more.
            ConfigError, DiskFullError: as `put`.
        """
        with file_lock(self._lock_path):
            groups = load_groups(self._path)
            groups.check(scenario, group)
            self._save({one: its for one, its in groups.by_scenario.items() if one != scenario})

    def _save(self, by_scenario: Mapping[str, str]) -> None:
        members: dict[str, list[str]] = {}
        for scenario, group in sorted(by_scenario.items()):
            members.setdefault(group, []).append(scenario)
        lines = [f"{json.dumps(group)} = {json.dumps(scenarios)}" for group, scenarios in sorted(members.items())]
        try:
            write_file(self._path, "\n".join(["[groups]", *lines, ""]), mode=0o600)
        except OSError as error:
            if is_full(error):
                raise DiskFullError.of(error, self._path.parent) from error
            raise ConfigError(f"file of groups {self._path} cannot be written: {error.strerror}") from error
        self._groups, self._state, self.error = ScenarioGroups(dict(by_scenario)), file_state(self._path), ""

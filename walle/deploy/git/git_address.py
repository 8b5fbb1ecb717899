"""Addresses of task repositories: /git/SCENARIO.git, and /git/GROUP/SCENARIO.git for a scenario that is in a group."""

import dataclasses
import re

from walle.access.access import Identity
from walle.base.asgi import Scope

_ADDRESS = re.compile(r"/(?:([^/]+)/)?([^/]*)\.git/(.*)")


@dataclasses.dataclass(frozen=True)
class GitAddress:
    """The repository of a request, and the rest of its path. `group` is "" where the address has none."""

    group: str
    scenario: str
    tail: str

    def check_group(self, identity: Identity) -> None:
        """Raise NotInGroupError where the address names a group that the scenario is not in now.

        Check the role in the scenario first: who has none is not told in which group it is.
        """
        if self.group:
            identity.groups.check(self.scenario, self.group)


def parse_address(scope: Scope) -> GitAddress | None:
    """Return the address of a request to an app that is mounted at /git, or at the root; None for another path."""
    root = scope.get("root_path", "")
    path = scope["path"].removeprefix(root)
    match = _ADDRESS.fullmatch(path if root else path.removeprefix("/git"))
    return None if match is None else GitAddress(match[1] or "", match[2], match[3])

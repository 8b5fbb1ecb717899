"""Query of releases: a choice of them, in pages, newest first. Pure."""

import collections
import dataclasses
import heapq
from collections.abc import Collection, Iterable, Mapping

from walle.deploy.releases.release import Release

MAX_PAGE = 1_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasePage:
    """Releases of a query. `before` is the query's for the next page, 0 at the end; `total` counts all of the query.

    `by_state` counts, for each state, the releases that the query would have without its `states`.
    """

    releases: tuple[Release, ...]
    before: int
    total: int
    by_state: Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseQuery:
    """A choice of releases: `limit` of them with numbers below `before`, 0 for the newest.

    `scenarios` are those that the caller may read, None for all. The rest narrows the choice where it is set: `states`
    are values of `ReleaseState`, `task` is scenario/task, `search` a part of the id, the task or the version.
    """

    scenarios: frozenset[str] | None = None
    before: int = 0
    limit: int = 50
    states: frozenset[str] = frozenset()
    task: str = ""
    search: str = ""

    def page(self, releases: Iterable[Release]) -> ReleasePage:
        """Return the page of these releases, in any order."""
        found = [release for release in releases if self._shows(release)]
        by_state = collections.Counter(release.state.value for release in found)
        chosen = [release for release in found if not self.states or release.state.value in self.states]
        rest = [release for release in chosen if not self.before or release.number < self.before]
        limit = max(1, min(self.limit, MAX_PAGE))
        newest = heapq.nlargest(limit, rest, key=lambda release: release.number)
        return ReleasePage(
            releases=tuple(newest),
            before=newest[-1].number if len(rest) > limit else 0,
            total=len(chosen),
            by_state=dict(by_state),
        )

    def _shows(self, release: Release) -> bool:
        request = release.request
        if not _may_read(request.scenario, self.scenarios) or (self.task and request.name != self.task):
            return False
        search = self.search.casefold()
        return not search or search in f"{release.id} {request.name} {request.version}".casefold()


def _may_read(scenario: str, scenarios: Collection[str] | None) -> bool:
    return scenarios is None or scenario in scenarios

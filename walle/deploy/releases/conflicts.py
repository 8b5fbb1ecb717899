"""Conflicts of a new release with those that there are: with one under way, and with the limits of a task. Pure."""

from collections.abc import Collection, Iterable

from walle.deploy.policies.rule_budget import check_budget
from walle.deploy.releases.errors import MAX_GROUPS_OF_TASK, MAX_UNDER_WAY, TaskBusyError, TooManyGroupsError
from walle.deploy.releases.release import Release
from walle.deploy.releases.request import ReleaseRequest
from walle.deploy.releases.table import plan_row
from walle.deploy.releases.variants import ReleaseVariant


def refuse_conflicts(
    request: ReleaseRequest, variants: Iterable[ReleaseVariant], releases: Collection[Release]
) -> None:
    """Return where a release with these variants may be made beside `releases`.

    Raises:
        TaskBusyError: another one of the task with the same policy is under way, or MAX_UNDER_WAY are.
        TooManyGroupsError: its releases would be for more than MAX_GROUPS_OF_TASK policies.
        PatternBudgetError: its rules have too many patterns beside those of the scenario's releases.
    """
    of_task = [release for release in releases if release.request.name == request.name]
    under_way = [release for release in of_task if release.state.under_way]
    same = [release for release in under_way if release.request.policy == request.policy]
    if same or len(under_way) >= MAX_UNDER_WAY:
        first = (same or under_way)[0]
        raise TaskBusyError(request.name, first.id, first.state.value, not same)
    groups = {entry.policy for entry in plan_row(request.name, of_task, "").entries}
    policies = [request.policy, *(one.policy for one in variants)]
    if (new := len({*policies} - groups)) and len(groups) + new > MAX_GROUPS_OF_TASK:
        raise TooManyGroupsError(request.name)
    in_use = [
        policy
        for release in releases
        if release.request.scenario == request.scenario and not release.state.terminal
        for policy in (release.request.policy, *(one.policy for one in release.variants))
    ]
    for number, policy in enumerate(policies):
        check_budget(request.scenario, "releases", policy, [*in_use, *policies[:number]])

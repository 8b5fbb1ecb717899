"""Budget of patterns: what the rules of all releases of a scenario that are in use may cost together.

`rule_cost` bounds one rule. A device's request evaluates the rules of all releases, so that a hundred cheap ones would
stop a gateway as one expensive one does.
"""

from collections.abc import Iterable

from walle.deploy.cloud.policy import Policy
from walle.deploy.cloud.release import Release, ReleaseRequest
from walle.deploy.cloud.rule import RuleError
from walle.errors import DeployError

MAX_INSTRUCTIONS = (
    6_000  # of all patterns, by `pattern_size`: about 10 ms for the longest values, 0.2 ms for usual ones
)


class PatternBudgetError(DeployError):
    """A release whose rule would take the patterns of its scenario's releases above MAX_INSTRUCTIONS."""

    status = 409

    def __init__(self, scenario: str, used: int, wanted: int) -> None:
        super().__init__(scenario, used, wanted)
        self.scenario = scenario
        self.used = used
        self.wanted = wanted

    def __str__(self) -> str:
        return (
            f"the patterns in rules of scenario {self.scenario}'s releases have {self.used:,} instructions, and this"
            f" rule's {self.wanted:,} more; {MAX_INSTRUCTIONS:,} is the most. Roll back releases with patterns, or list"
            " texts by 'in'"
        )


def check_budget(request: ReleaseRequest, releases: Iterable[Release]) -> None:
    """Return where a new release's patterns fit beside those of its scenario's releases in use; equal rules count once.

    Raises:
        PatternBudgetError: they do not.
    """
    wanted = _instructions(request.policy)
    if not wanted:
        return
    others = {
        (release.request.policy.rule, release.request.policy.columns): release.request.policy
        for release in releases
        if release.request.scenario == request.scenario and not release.state.terminal and release.request.policy.rule
    }
    others.pop((request.policy.rule, request.policy.columns), None)
    used = sum(map(_instructions, others.values()))
    if used + wanted > MAX_INSTRUCTIONS:
        raise PatternBudgetError(request.scenario, used, wanted)


def _instructions(policy: Policy) -> int:
    """Return the instructions of a policy's patterns, 0 for a rule that is not valid any more: it takes no device."""
    try:
        return policy.compiled().instructions if policy.rule else 0
    except RuleError:
        return 0

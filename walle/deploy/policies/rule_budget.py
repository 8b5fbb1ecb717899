"""Budget of patterns: what rules of a scenario may cost together, those of its releases or of its group files.

`rule_cost` bounds one rule. A device's request evaluates the rules of all, so that a hundred cheap ones would stop a
gateway as one expensive one does.
"""

from collections.abc import Iterable
from typing import Literal

from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule import RuleError
from walle.errors import DeployError

MAX_INSTRUCTIONS = 6_000  # limit of all patterns, by `pattern_size`: about 10 ms of a look-up with the longest values

type RuleOwners = Literal["releases", "exclusive files of groups"]


class PatternBudgetError(DeployError):
    """A rule that would take the patterns of its scenario's `owners` above MAX_INSTRUCTIONS. Over HTTP: 409."""

    status = 409

    def __init__(self, scenario: str, owners: RuleOwners, used: int, wanted: int) -> None:
        super().__init__(scenario, owners, used, wanted)
        self.scenario = scenario
        self.owners = owners
        self.used = used
        self.wanted = wanted

    def __str__(self) -> str:
        return (
            f"the patterns in rules of the {self.owners} of scenario {self.scenario} have {self.used:,} instructions,"
            f" and those of this rule {self.wanted:,}; {MAX_INSTRUCTIONS:,} in all is the limit. Remove or roll back"
            " some with patterns, or list texts by 'in'"
        )


def check_budget(scenario: str, owners: RuleOwners, policy: Policy, others: Iterable[Policy]) -> None:
    """Return where a new policy's patterns fit beside those of the others in use; equal rules count once.

    Raises:
        PatternBudgetError: they do not.
    """
    wanted = _instructions(policy)
    if not wanted:
        return
    rules = {(one.rule, one.columns): one for one in others if one.rule}
    rules.pop((policy.rule, policy.columns), None)
    used = sum(map(_instructions, rules.values()))
    if used + wanted > MAX_INSTRUCTIONS:
        raise PatternBudgetError(scenario, owners, used, wanted)


def _instructions(policy: Policy) -> int:
    """Return the instructions of a policy's patterns, 0 for a rule that is not valid any more: it takes no device."""
    try:
        return policy.compiled().instructions if policy.rule else 0
    except RuleError:
        return 0

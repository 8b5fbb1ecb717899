"""Bounds of what one token and one scenario can write into the audit log by pushes, with the real numbers."""

import asyncio
import re
from pathlib import Path

from walle.clock import ManualClock
from walle.deploy.cloud.push_rules import MAX_BRANCHES, MAX_REFS_A_DAY, RefQuota, clash_refusal

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
DAY_S = 86_400


def test_a_token_changes_as_many_refs_in_days_as_the_page_says() -> None:
    (said,) = re.findall(r"by a token ([\d,]+) changes of refs at once and as many more in a day", PAGE.read_text())
    most = int(said.replace(",", ""))
    assert most == MAX_REFS_A_DAY
    clock = ManualClock()
    quota = RefQuota(clock)
    taken = sum(quota.take("thief") == "" for _ in range(2 * most))
    assert taken == most
    assert f"has changed {most} refs" in quota.take("thief")
    assert quota.take("another") == ""
    for day in (1, 2, 3):
        for _ in range(24):
            asyncio.run(clock.advance(DAY_S / 24))
            taken += sum(quota.take("thief") == "" for _ in range(most // 4))
        assert (day + 1) * most - 24 <= taken <= (day + 1) * most
    asyncio.run(clock.advance(30 * DAY_S))  # what is not used does not add up
    assert sum(quota.take("thief") == "" for _ in range(3 * most)) == most


def test_a_scenario_has_as_many_branches_as_the_page_says() -> None:
    (said,) = re.findall(r"many branches: ([\d,]+) in a scenario", PAGE.read_text())
    assert int(said.replace(",", "")) == MAX_BRANCHES
    present = {f"refs/heads/b{number}" for number in range(MAX_BRANCHES - 1)} | {"refs/tags/b0/v1", "refs/tags/b0/v2"}
    assert clash_refusal("refs/heads/last", present) == ""
    present.add("refs/heads/last")
    assert f"there are {MAX_BRANCHES} branches already" in clash_refusal("refs/heads/more", present)
    assert clash_refusal("refs/tags/b1/v1", present) == ""

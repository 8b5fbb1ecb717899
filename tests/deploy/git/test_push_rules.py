"""Bounds of what one token and one scenario can write into the audit log, with the real numbers."""

import asyncio
import re
from pathlib import Path

import pytest

from walle.base.clock import ManualClock
from walle.base.daily_quota import DailyQuota
from walle.cloud.dashboard.record_quota import MAX_RECORDS_A_DAY
from walle.deploy.git.push_rules import MAX_BRANCHES, MAX_REFS_A_DAY, clash_refusal

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
DAY_S = 86_400


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (r"by a token ([\d,]+) changes of refs at once and as many more in a day", MAX_REFS_A_DAY),
        (r"by a token ([\d,]+) logins and links at once and as many more in a day", MAX_RECORDS_A_DAY),
    ],
)
def test_a_token_causes_as_many_records_in_days_as_the_page_says(text: str, most: int) -> None:
    (said,) = re.findall(text, PAGE.read_text())
    assert int(said.replace(",", "")) == most
    clock = ManualClock()
    quota = DailyQuota(clock, most)
    taken = sum(quota.take("thief") == 0 for _ in range(2 * most))
    assert taken == most
    assert DAY_S / most - 1 <= quota.take("thief") <= DAY_S / most + 1
    assert quota.take("another") == 0
    for day in (1, 2, 3):
        for _ in range(24):
            asyncio.run(clock.advance(DAY_S / 24))
            taken += sum(quota.take("thief") == 0 for _ in range(most // 4))
        assert (day + 1) * most - 24 <= taken <= (day + 1) * most
    asyncio.run(clock.advance(30 * DAY_S))  # what is not used does not add up
    assert sum(quota.take("thief") == 0 for _ in range(3 * most)) == most


def test_a_record_is_left_after_the_seconds_that_a_refusal_says() -> None:
    clock = ManualClock()
    quota = DailyQuota(clock, 10)
    for _ in range(10):
        assert quota.take("ana") == 0
    for _ in range(3):
        wait_s = quota.take("ana")
        assert wait_s == DAY_S / 10
        asyncio.run(clock.advance(wait_s - 1))
        assert quota.take("ana") == 1
        asyncio.run(clock.advance(1))
        assert quota.take("ana") == 0


def test_a_scenario_has_as_many_branches_as_the_page_says() -> None:
    (said,) = re.findall(r"many branches: ([\d,]+) in a scenario", PAGE.read_text())
    assert int(said.replace(",", "")) == MAX_BRANCHES
    present = {f"refs/heads/b{number}" for number in range(MAX_BRANCHES - 1)} | {"refs/tags/b0/v1", "refs/tags/b0/v2"}
    assert clash_refusal("refs/heads/last", present) == ""
    present.add("refs/heads/last")
    assert f"there are {MAX_BRANCHES} branches already" in clash_refusal("refs/heads/more", present)
    assert clash_refusal("refs/tags/b1/v1", present) == ""

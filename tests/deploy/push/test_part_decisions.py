"""Decisions on parts: made once for all devices that name a part, and bounded in number."""

import pytest

from tests.sim.release_world import table_of
from walle.deploy.push import part_decisions
from walle.deploy.push.known_parts import KnownParts
from walle.deploy.push.part_decisions import PartDecisions
from walle.deploy.releases.decision import NOTHING
from walle.deploy.releases.table import MAX_GROUPS
from walle.protocol import TaskPart, part_digest, parts_to_header

TABLE = table_of(1, ipv="v1", count="v1")
POLICIES = TABLE.index.by_attributes("10", {})


def _have(part: bytes) -> bytes:
    return parts_to_header([part]).encode()


def _part(version: str) -> tuple[bytes, str]:
    part = TaskPart({"shop/ipv": version}).to_bytes()
    return part, part_digest(part)


def test_a_part_is_asked_for_once_and_then_decided_for_all() -> None:
    decisions = PartDecisions(KnownParts())
    part, digest = _part("v0")
    _, unknown = decisions.find(TABLE, POLICIES, (digest,), "d0", None)
    assert unknown == [0]
    first, unknown = decisions.find(TABLE, POLICIES, (digest,), "d0", _have(part))
    assert unknown == []
    assert {one.task for one in first.decision.settled.ordinary} == {"shop/ipv", "shop/count"}
    assert first.sender == "d0"
    second, unknown = decisions.find(TABLE, POLICIES, (digest,), "d1", None)
    assert unknown == []
    assert second.sender is None
    assert second.decision.settled == first.decision.settled


def test_the_part_without_tasks_is_known() -> None:
    decisions = PartDecisions(KnownParts())
    found, unknown = decisions.find(table_of(1), 0, ("", ""), "d0", None)
    assert (found.decision, unknown) == (NOTHING, [])


def test_made_up_parts_leave_a_bounded_number_of_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_decisions, "MAX_DECIDED", 100)
    decisions = PartDecisions(KnownParts())
    most = 0
    for number in range(200):
        part, digest = _part(f"made-up-{number}")
        decisions.find(TABLE, POLICIES, (digest,), "d0", _have(part))
        assert sum(1 + one.decision.size for one in decisions) <= decisions.size <= 100
        most = max(most, decisions.size)
    assert most > 90
    decisions.clear()
    assert (decisions.size, list(decisions)) == (0, [])


def test_made_up_policies_leave_a_bounded_number_of_groups() -> None:
    decisions = PartDecisions(KnownParts())
    for number in range(3 * MAX_GROUPS):
        decisions.find(TABLE, number, ("",), "d0", None)
        assert len(decisions._groups) <= MAX_GROUPS

import random

import pytest

from tests.sim.release_world import table_of
from walle.base.clock import ManualClock
from walle.deploy.policies.attribute_schema import ColumnType
from walle.deploy.policies.policy import Policy
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.pull_budget import AGAIN_S, MAX_ADMITTED, PullBudget, PullRate
from walle.deploy.releases.release import Release, ReleaseState
from walle.deploy.releases.request import ReleaseRequest
from walle.deploy.releases.table import ReleaseTable, plan_row
from walle.protocol import Directive, Profile, PushAnswer, ShortProfile, TaskPart, part_digest, parts_to_header


class _Clock(ManualClock):
    """A clock for what never sleeps."""

    def pass_s(self, seconds: float) -> None:
        self._now_s += seconds


def _directive(number: int = 1) -> Directive:
    return Directive(
        task=f"shop/t{number}",
        version="v1",
        manifest=f"{number:064x}",
        size_bytes=1,
        serial=1,
        expires_s=1,
        url="",
        release="",
    )


def _budget(clock: _Clock, pulls_s: float = 0, bytes_s: float = 0, size: int = 1_000_000) -> PullBudget:
    return PullBudget(PullRate(pulls_s, bytes_s), clock, lambda _: size)


def test_pulls_and_bytes_are_admitted_at_their_rates() -> None:
    for rate, expected in (((10, 0), 620), ((0, 5_000_000), 310), ((10, 5_000_000), 310), ((0, 0), 20_000)):
        clock = _Clock()
        budget = _budget(clock, *rate)
        admitted = 0
        for number in range(20_000):
            clock.pass_s(60 / 20_000)
            admitted += bool(budget.admit(f"d{number}", (_directive(),))[0])
        assert abs(admitted - expected) <= 2
        assert budget.admitted == admitted


def test_a_device_is_charged_once_while_it_pulls() -> None:
    clock = _Clock()
    budget = _budget(clock, pulls_s=0.01)
    (directive,) = (_directive(),)
    assert budget.admit("d0", (directive,)) == ((directive,), 0)
    for _ in range(100):
        assert budget.admit("d0", (directive,)) == ((directive,), 0)
        left, wait_s = budget.admit("d1", (directive,))
        assert not left
        assert wait_s > 0
    clock.pass_s(AGAIN_S)
    assert budget.admit("d0", (directive,))[0] == ()


def test_a_version_larger_than_the_budget_goes_out_and_leaves_a_debt() -> None:
    clock = _Clock()
    budget = _budget(clock, bytes_s=1000, size=100_000)
    assert budget.admit("d0", (_directive(),))[0]
    clock.pass_s(98)
    assert not budget.admit("d1", (_directive(),))[0]
    clock.pass_s(3)
    assert budget.admit("d1", (_directive(),))[0]


def test_a_large_version_is_pulled_beside_small_ones_that_take_all_there_is() -> None:
    clock, rng = _Clock(), random.Random(5)
    budget = PullBudget(PullRate(bytes_s=10_000_000), clock, lambda one: 100_000_000 if "t1" in one.task else 1_000_000)
    large, small = _directive(1), _directive(2)
    admitted = {large.task: 0, small.task: 0}
    for number in range(12_000):  # some 19 small ones are asked for in a second, and a large one
        clock.pass_s(0.05)
        for one in budget.admit(f"d{number}", (large if rng.random() < 0.05 else small,))[0]:
            admitted[one.task] += 1
    assert admitted[large.task] >= 5
    assert 100 * admitted[large.task] + admitted[small.task] <= 10 * 600 + 20 + 100


def test_devices_that_wait_for_bytes_learn_how_long() -> None:
    budget = _budget(_Clock(), bytes_s=1_000_000)
    waits = [budget.admit(f"d{number}", (_directive(),))[1] for number in range(600)]
    assert waits[-1] >= 300


def test_pulls_that_always_fail_leave_others_their_turn() -> None:
    clock = _Clock()
    answerer = Answerer(table_of(a="v2", b="v2", c="v2"))
    answerer.budget = PullBudget(PullRate(pulls_s=0.01), clock, lambda _: 1, random_source=random.Random(3))
    raw = Profile("d0", "10", {}, {"shop/a": "v1", "shop/b": "v1", "shop/c": "v1"}).to_header().encode()
    seen = set()
    for _ in range(30):
        header = dict(answerer.headers(raw, "d0")).get(b"x-walle-tasks", b"[]").decode()
        seen |= {one.task for one in PushAnswer.from_header(header).directives}
        clock.pass_s(100)
    assert seen == {"shop/a", "shop/b", "shop/c"}


def test_what_does_not_fit_into_an_answer_is_not_charged() -> None:
    names = [f"task_{number:03}" for number in range(300)]
    answerer = Answerer(table_of(1, **dict.fromkeys(names, "v1")))
    answerer.budget = _budget(_Clock(), pulls_s=1_000)
    header = dict(answerer.headers(Profile("d0", "10").to_header().encode(), "d0"))[b"x-walle-tasks"].decode()
    sent = len(PushAnswer.from_header(header).directives)
    assert 0 < sent < 100
    assert answerer.budget.admitted == sent


@pytest.mark.night
def test_the_memory_is_bounded() -> None:
    budget = _budget(_Clock())
    for number in range(MAX_ADMITTED + 1000):
        budget.admit(f"d{number}", (_directive(),))
    assert len(budget._under_way) == MAX_ADMITTED


def test_coverage_continues_at_the_budget_and_no_device_starves() -> None:
    """2,000 devices that check in, of which a tenth never carry out what they get, and some ask every second."""
    clock, rng = _Clock(), random.Random(7)
    answerer = Answerer(table_of(ipv="v2"))
    answerer.budget = PullBudget(PullRate(pulls_s=20), clock, lambda directive: directive.size_bytes)
    parts = {version: TaskPart({"shop/ipv": version}).to_bytes() for version in ("v1", "v2")}
    raws = {
        version: ShortProfile("10", {}, [part_digest(part)]).to_header().encode() for version, part in parts.items()
    }
    have = parts_to_header([parts["v1"]]).encode()
    asks = {number: rng.uniform(0, 60) for number in range(2_000)}
    has = dict.fromkeys(asks, "v1")
    covered: list[tuple[float, int]] = []
    is_first = True
    second = 0
    while second < 300 and len(covered) < 1_800:
        second += 1
        clock.pass_s(1.0)
        for number in [number for number, at in asks.items() if at <= second]:
            found = dict(answerer.headers(raws[has[number]], f"d{number}", have if is_first else None))
            is_first = False
            header = found.get(b"x-walle-tasks", b"").decode()
            answer = PushAnswer.from_header(header) if header else PushAnswer()
            if answer.directives and number % 10:  # others fail, and ask again
                has[number] = "v2"
                covered.append((second, number))
            asks[number] = second + (1 if number % 50 == 1 else min(60, answer.wait_s or 60) * rng.uniform(0.8, 1.2))
    assert len(covered) == 1_800  # all that can
    # The others ask again, and take a pull each in AGAIN_S: 200 of them 200 / 60 in a second.
    assert 1_800 / 20 - 5 <= second <= 1.5 * 1_800 / (20 - 200 / AGAIN_S)
    for at in range(20, second - 10, 10):
        done = sum(1 for when, _ in covered if at < when <= at + 10)
        assert done <= 20 * 10 + 40  # the bucket may add its contents


def test_rollbacks_and_removals_wait_for_no_budget() -> None:
    clock = _Clock()
    answerer = Answerer(table_of(ipv="v2", cv="v2"))
    answerer.budget = _budget(clock, pulls_s=0.001)
    for number in range(50):
        profile = Profile(f"d{number}", "10", {}, {"shop/ipv": "v3", "shop/cv": "v1"})
        header = dict(answerer.headers(profile.to_header().encode(), f"d{number}"))[b"x-walle-tasks"].decode()
        tasks = [one.task for one in PushAnswer.from_header(header).directives]
        assert tasks == (["shop/ipv", "shop/cv"] if not number else ["shop/ipv"])
    assert answerer.budget.delayed == 49


def test_a_group_that_devices_leave_is_paced_and_a_rollback_of_its_version_is_not() -> None:
    """A table of attributes that is put again may move a million devices out of a group: none of them is in a hurry."""
    schema = {"is_member": ColumnType.BOOL}
    members = Policy(rule="is_member").typed(schema)
    others = Policy(rule="!is_member").typed(schema)

    def release(number: int, version: str, policy: Policy, state: ReleaseState = ReleaseState.FULL) -> Release:
        request = ReleaseRequest(scenario="shop", task="ipv", version=version, policy=policy)
        name = f"shop-ipv-{version}-{number}"
        manifest = f"{number:064x}"
        return Release(
            id=name,
            number=number,
            request=request,
            created_s=0.0,
            updated_s=0.0,
            state=state,
            manifest=manifest,
            size_bytes=9,
        )

    def left(*releases: Release) -> tuple[list[str], int]:
        """Return what 20 devices get that have v2 and are no members any more, and how many of them wait."""
        row = plan_row("shop/ipv", releases, "/cdn").sign(lambda one: one, 1, 1 << 40)
        assert type(row).from_plain(row.to_plain()) == row
        answerer = Answerer(ReleaseTable(1, [row]), budget=_budget(_Clock(), pulls_s=1))
        got = []
        for number in range(20):
            profile = Profile(f"d{number}", "10", {"is_member": False}, {"shop/ipv": "v2"}).to_header().encode()
            header = dict(answerer.headers(profile, f"d{number}")).get(b"x-walle-tasks", b"[]").decode()
            got += [one.version for one in PushAnswer.from_header(header).directives]
        assert answerer.budget is not None
        return got, answerer.budget.delayed

    v1 = release(1, "v1", Policy())
    assert left(v1, release(2, "v2", members)) == (["v1"] * 2, 18)
    assert left(v1, release(2, "v2", members, ReleaseState.ROLLED_BACK)) == (["v1"] * 20, 0)
    # v2 was bad for the others and goes on for members: those whose release was rolled back leave it at once.
    both = release(2, "v2", members), release(3, "v2", others, ReleaseState.ROLLED_BACK)
    assert left(v1, *both) == (["v1"] * 20, 0)
    # A version that no release has, with a higher number, was taken back long ago.
    assert left(v1, release(3, "v3", members)) == (["v1"] * 20, 0)
    # A removal takes no pull.
    assert left(release(2, "v2", members)) == ([""] * 20, 0)

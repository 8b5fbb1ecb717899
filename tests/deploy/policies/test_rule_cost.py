"""Costs of rules: what a rule may cost is bounded when it is taken, and previews have a budget."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from walle.base.clock import ManualClock
from walle.cloud.api.preview_pace import ALLOWANCE_S, MAX_WAITING, PreviewBusyError, PreviewPace
from walle.deploy.fleet.registry import DeviceRegistry, Reach, ReachBudget
from walle.deploy.policies.attribute_schema import MAX_VALUE_CHARS, ColumnType
from walle.deploy.policies.pattern_size import pattern_size
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule import RuleError, compile_rule
from walle.deploy.policies.rule_cost import MAX_INSTRUCTIONS
from walle.deploy.policies.rule_index import PolicyIndex
from walle.protocol import Profile

SCHEMA = {"os": ColumnType.STRING, "model": ColumnType.STRING, "n": ColumnType.INT}
SHARED = Path("../shared/cases/security/preview_regex_cost.json")
TEN_THOUSAND = "(.{100}){10}"

# Patterns with the sizes of their programs in RE2, as google-re2 1.1.20251105 says (`programsize`).
RE2_SIZES = [
    ("a", 5),
    ("abc", 7),
    (".", 12),
    ("(?i)android", 11),
    ("[^a]", 12),
    (r"\d+", 6),
    (r"\pL", 1200),
    ("é", 6),
    ("[é-ü]", 6),
    ("x.{100}y", 806),
    (TEN_THOUSAND, 8024),
    ("(a|b)*a(a|b){40}c", 129),
    (r"((\b*){2,5}){2,5}", 207),
    (r"(((\b)*){2,5}){2,5}", 257),
    ("(?i)[k-s]{3}", 22),
    ("[[:alpha:]]{2,}", 7),
    (r"[\x{7f0}-\x{10abc}]?", 17),
    (r"\Qa.b\E", 7),
    ("(?P<n>a|b|c)*?", 7),
    ("a{0,40}", 84),
]


@pytest.mark.parametrize(("pattern", "instructions"), RE2_SIZES)
def test_an_estimated_program_is_never_smaller_than_that_of_re2(pattern: str, instructions: int) -> None:
    assert pattern_size(pattern) >= instructions


@pytest.mark.parametrize("pattern", ["(" * 500, "[" * 500, "a{9999}" * 70, "\\Q" * 250, "(?" * 250, "[[:a" * 125, "\\"])
def test_the_estimate_of_a_hostile_pattern_is_fast(pattern: str) -> None:
    began = time.process_time()
    pattern_size(pattern)
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize(
    ("rule", "column", "what"),
    [
        (f"os.matches('{TEN_THOUSAND}')", 12, "instructions"),
        (" || ".join(f"os.matches('{'x.{10}' * 3}{n}')" for n in range(32)), 0, "instructions"),
        ("os.matches('a{1000}')", 12, "instructions"),
        (r"os.matches('\\pL')", 12, "avoid \\p classes"),
        ("os.matches('" + "a" * 501 + "')", 12, "501 characters; 500 is the limit"),
        (" || ".join(["(os+os+os+os+os+os+os+os).contains(model+model+model)"] * 3), 0, "bytes of text"),
        (" || ".join(["os.contains(model)"] * 100), 0, "bytes of text"),
    ],
)
def test_a_rule_that_would_cost_too_much_is_refused_with_the_place(rule: str, column: int, what: str) -> None:
    began = time.process_time()
    with pytest.raises(RuleError, match=what.replace("\\", r"\\")) as caught:
        Policy(rule=rule).typed(SCHEMA)
    assert time.process_time() - began < 0.3  # 10,000 instructions alone take 0.6 s for 32 of them
    if column:
        assert f"line 1, column {column}:" in str(caught.value)


@pytest.mark.parametrize(
    "rule",
    [
        "os.matches('^10[.]4') || model.matches('^(SM-G99[0-9]|SM-S9[0-9]{2}|Pixel [6-9].*)$')",
        "model.matches('^[a-z0-9-]{1,10}$')",
        "os.contains('dro') && (os + model).size() > 3",
        " || ".join(f"os == 'a{n}'" for n in range(200)),
    ],
)
def test_an_honest_rule_is_taken(rule: str) -> None:
    assert Policy(rule=rule).typed(SCHEMA).rule == rule


def _cpu_s(work: Callable[[], object], times: int) -> float:
    work()
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


WORST_RULES = [
    "os.matches('(a|b)*a(a|b){65}c')",  # a state of the automaton for each character
    "os.matches('.*a.{28}c')",
    " || ".join(["os.size() == n"] * 200),
    " || ".join(["os.contains(model + 'b')"] * 12),
]


@pytest.mark.parametrize("rule", WORST_RULES)
def test_the_worst_rule_that_is_taken_costs_a_bounded_multiple_of_a_plain_one(rule: str) -> None:
    """An evaluation of the case of the issue costs 130,000 times that of a comparison."""
    letters = "".join("ab"[number * number % 7 % 2] for number in range(MAX_VALUE_CHARS))
    profile = Profile("d", "10.4", {"os": letters, "model": letters, "n": 3})
    worst, plain = (Policy(rule=text).typed(SCHEMA).compiled() for text in (rule, "os == 'android'"))
    assert _cpu_s(lambda: worst.matches(profile), 20) < 2_000 * _cpu_s(lambda: plain.matches(profile), 500)


def test_a_value_that_is_longer_than_rules_compare_is_missing() -> None:
    for rule in ("os != 'x'", "app_version != 'x'", "!os.contains('x') && n == 1"):
        policy = Policy(rule=rule).typed(SCHEMA)
        for length, expected in ((MAX_VALUE_CHARS, True), (MAX_VALUE_CHARS + 1, False)):
            profile = Profile("d", "1" * length, {"os": "a" * length, "n": 1})
            assert policy.matches(profile) is expected
            assert PolicyIndex([policy]).matching(profile) == expected


def test_an_older_rule_beyond_the_bounds_still_works_and_one_far_beyond_matches_no_device(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A release that was made before must keep its devices; one that could stop a gateway may not."""
    columns = (("os", ColumnType.STRING),)
    before = "os.matches('^x{0,300}android$')"
    with pytest.raises(RuleError):
        Policy(rule=before).typed(SCHEMA)
    stored = Policy.from_plain({"rule": before, "columns": {"os": "string"}})
    hostile = Policy.from_plain({"rule": f"os.matches('{TEN_THOUSAND}')", "columns": {"os": "string"}})
    assert pattern_size("^x{0,300}android$") > MAX_INSTRUCTIONS
    profile = Profile("d", "1", {"os": "xxandroid"})
    assert PolicyIndex([stored, hostile]).matching(profile) == 1
    assert (stored.matches(profile), hostile.matches(profile)) == (True, False)
    assert "matches no device" in caplog.text
    with pytest.raises(RuleError, match="instructions"):
        compile_rule(hostile.rule, columns)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared cases are not beside this checkout")
def test_the_case_of_a_preview_that_took_19_s_is_refused() -> None:
    case = json.loads(SHARED.read_text())
    with pytest.raises(RuleError, match="instructions"):
        Policy(rule=case["rule"]).typed({})


# --- previews ---------------------------------------------------------------------------------------------------------


async def _reach(folder: Path, budget: ReachBudget) -> Reach:
    clock = ManualClock()
    async with DeviceRegistry.in_file(folder / "d.db", clock, flush_s=1e9, reach_budget=budget) as registry:
        registry.note({f"d{n}": Profile(f"d{n}", "10.1", {"n": n}, {}).to_header().encode() for n in range(100, 200)})
        rules = ("n % 2 == 0", "n % 3 == 0")
        return await registry.reach([Policy(rule=rule).typed(SCHEMA) for rule in rules], 1e9)


@pytest.mark.asyncio
async def test_a_count_that_reaches_its_budget_says_how_far_it_came(tmp_path: Path) -> None:
    ticks = itertools.count()
    budget = ReachBudget(cpu_s=32.0, cpu_clock=lambda: float(next(ticks)), pause_s=0.0)  # a device costs a second
    reach = await _reach(tmp_path, budget)
    assert (reach.seen, reach.is_partial) == (31, True)
    assert reach.taken == (16, 10)
    assert reach.shared == (16, 5)
    assert reach.cpu_s == 33.0


@pytest.mark.asyncio
async def test_a_count_within_its_budget_is_complete_and_reports_its_time(tmp_path: Path) -> None:
    reach = await _reach(tmp_path, ReachBudget())
    assert (reach.seen, reach.is_partial, reach.taken, reach.shared) == (100, False, (50, 33), (50, 17))
    assert 0 < reach.cpu_s < 5.0


@pytest.mark.asyncio
async def test_a_caller_has_one_preview_at_a_time_and_an_allowance() -> None:
    clock = ManualClock()
    pace = PreviewPace(clock)
    async with pace.turn("anna", "") as turn:
        with pytest.raises(PreviewBusyError, match="under way"):
            async with pace.turn("anna", ""):
                pass
        turn.used_s = ALLOWANCE_S + 1
    with pytest.raises(PreviewBusyError, match=r"have used 10 s of CPU time; try again in 30 s") as caught:
        async with pace.turn("anna", ""):
            pass
    assert (caught.value.status, caught.value.retry_after_s) == (429, 30)
    for rule, used_s in (("", 0.0), ("true", 0.1)):  # a rule is charged in advance, also where it is refused
        async with pace.turn("bert", rule) as turn:
            assert turn.used_s == used_s
    await clock.advance(30)
    async with pace.turn("anna", ""):
        pass


@pytest.mark.asyncio
async def test_previews_run_one_after_the_other_and_few_callers_wait() -> None:
    pace = PreviewPace(ManualClock())
    running, most = 0, 0
    ended = asyncio.Event()

    async def preview(name: str) -> None:
        nonlocal running, most
        async with pace.turn(name, ""):
            running += 1
            most = max(most, running)
            await ended.wait()
            running -= 1

    tasks = [asyncio.create_task(preview(f"p{number}")) for number in range(MAX_WAITING + 1)]
    await asyncio.sleep(0)
    with pytest.raises(PreviewBusyError, match="previews wait"):
        async with pace.turn("another", ""):
            pass
    ended.set()
    await asyncio.gather(*tasks)
    assert most == 1
    async with pace.turn("another", ""):
        pass

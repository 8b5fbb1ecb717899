"""Uploaded attributes beside profiles: what rules see, what devices cannot claim, and how gateways follow changes."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.release_world import table_of
from walle.base.clock import ManualClock
from walle.deploy.gate.gate import Gate
from walle.deploy.gate.step import Step
from walle.deploy.monitor.service import MonitorService
from walle.deploy.policies.attribute_schema import JoinedProfile, parse_schema, uploaded_columns
from walle.deploy.policies.attribute_table import AttributeTableError, TableFacts
from walle.deploy.policies.policy import Policy
from walle.deploy.policies.rule_index import PolicyIndex
from walle.deploy.policies.uploaded_attributes import FOLLOW_S, UploadedAttributes, UploadedTables
from walle.deploy.push.answerer import Answerer
from walle.deploy.releases.explanation import explain_policy
from walle.deploy.releases.journal import Journal
from walle.deploy.releases.release import Release, ReleaseState
from walle.deploy.releases.request import ReleaseRequest
from walle.deploy.releases.table import ReleaseTable, plan_row
from walle.protocol import TASKS_HEADER, Attribute, Outcome, OutcomeBatch, OutcomeKind, Profile, ShortProfile

SCHEMA = parse_schema(
    '[attributes]\nos = "string"\nuser = "string"\n'
    '[uploaded]\nos = "string"\ngroup = "string"\nage = "int"\nis_member = "bool"\nruns = "string"\n'
)


def put(uploaded: UploadedAttributes, rows: dict[str, dict[str, object]], key: str = "device_id") -> None:
    with uploaded.receive() as (path, file):
        for one, row in rows.items():
            file.write(json.dumps({key: one, **row}).encode() + b"\n")
        facts = TableFacts(key=key, columns=uploaded_columns(SCHEMA), rows=0, put_s=1.0, put_by="anna")
        staged = uploaded.stage(path, facts)
    staged.commit()


@pytest.fixture
def uploaded(tmp_path: Path) -> UploadedAttributes:
    found = UploadedAttributes(tmp_path / "attributes")
    found.prepare()
    return found


def profile(device_id: str, **attributes: Attribute) -> Profile:
    return Profile(device_id, "10.1", attributes)


def test_a_rule_sees_what_was_uploaded_and_not_what_a_profile_claims(uploaded: UploadedAttributes) -> None:
    put(uploaded, {"d1": {"group": "gold", "os": "x"}})
    assert uploaded.read()
    assert not uploaded.read()
    gold = Policy(rule="uploaded.group == 'gold'").typed(SCHEMA)
    cel = Policy(rule="uploaded.group.startsWith(os)").typed(SCHEMA)
    index = PolicyIndex([gold, cel])
    claims: dict[str, Attribute] = {"uploaded.group": "gold", "uploaded": "gold", "group": "gold"}
    cases: list[tuple[str, dict[str, Attribute], int]] = [
        ("d1", {}, 0b01),
        ("d1", {"os": "go"}, 0b11),  # the profile's os and the uploaded one are two attributes
        ("d2", {"os": "go", **claims}, 0),
        ("d1", {"os": "go", "uploaded.group": "lead"}, 0b11),
    ]
    for device, attributes, found in cases:
        one = Profile(device, "10", attributes)
        joined = uploaded.current.join(one)
        assert index.matching(joined) == found
        assert [gold.matches(joined), cel.matches(joined)] == [bool(found & 1), bool(found & 2)]
        assert index.matching(one) == 0  # a profile that nobody joined is not reached either
        assert not gold.matches(one)
        assert not cel.matches(one)


def test_a_table_by_user_and_one_by_device_are_joined_the_device_first(uploaded: UploadedAttributes) -> None:
    put(uploaded, {"anna": {"group": "gold", "age": 30}}, key="user")
    put(uploaded, {"d1": {"group": "staff"}, "anna": {"group": "never"}})
    uploaded.read()
    assert [table.facts.key for table in uploaded.current.tables] == ["device_id", "user"]
    joined = uploaded.current.explain(profile("d1", user="anna"))
    assert joined.uploaded == {"uploaded.group": "staff", "uploaded.age": 30}
    assert joined.sources == {"uploaded.group": "device_id", "uploaded.age": "user"}
    assert uploaded.current.explain(profile("d9", user="anna")).uploaded["uploaded.group"] == "gold"
    assert uploaded.current.join(profile("d9", user="anna")) == JoinedProfile(
        "d9", "10.1", {"user": "anna"}, {}, {"uploaded.group": "gold", "uploaded.age": 30}
    )
    assert uploaded.current.explain(profile("d9", user=3)).uploaded == {}  # a number cannot be an id
    rule = Policy(rule="uploaded.group == 'staff' && uploaded.age > 40 && uploaded.is_member").typed(SCHEMA)
    applies, terms = explain_policy(rule, joined)
    assert not applies
    assert [term.device for term in terms] == [
        'uploaded.group is "staff", by its device_id',
        "uploaded.age is 30, by its user",
        "nothing was uploaded of its is_member, so that the term is unknown",
    ]


_values = {
    "uploaded.group": st.sampled_from(["a", "b", 3]),
    "uploaded.age": st.integers(0, 5),
    "uploaded.is_member": st.booleans(),
    "uploaded.runs": st.sampled_from(["1.2", "2", "x"]),
}
_terms = st.sampled_from(
    [
        "uploaded.group == 'a'",
        "!(uploaded.group == 'a')",
        "uploaded.age >= 2",
        "uploaded.age < 4",
        "uploaded.is_member",
        "version_in(uploaded.runs, '>=2')",
        "uploaded.group.startsWith('a')",
        "uploaded.os == os",
        "os == 'a'",
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(_terms, min_size=1, max_size=3).map(" && ".join), min_size=1, max_size=5, unique=True),
    st.fixed_dictionaries({}, optional=_values),
    st.fixed_dictionaries({}, optional={**_values, "os": st.sampled_from(["a", "b"])}),
)
def test_the_index_agrees_with_policies_over_uploaded_attributes(
    rules: list[str], values: dict[str, Attribute], said: dict[str, Attribute]
) -> None:
    policies = [Policy(rule=rule).typed(SCHEMA) for rule in rules]
    joined = JoinedProfile("d1", "10", said, {}, values)
    found = PolicyIndex(policies).matching(joined)
    assert [bool(found >> number & 1) for number in range(len(policies))] == [one.matches(joined) for one in policies]


def test_a_known_profile_is_answered_again_once_a_table_changes(uploaded: UploadedAttributes) -> None:
    request = ReleaseRequest(
        scenario="shop", task="ipv", version="v1", policy=Policy(rule="uploaded.is_member").typed(SCHEMA)
    )
    full = Release(
        id="r1",
        number=1,
        request=request,
        created_s=0.0,
        updated_s=0.0,
        state=ReleaseState.FULL,
        manifest=f"{1:064x}",
        size_bytes=1,
    )
    answerer = Answerer(ReleaseTable(1, [plan_row("shop/ipv", [full], "/cdn").sign(lambda one: one, 1, 1 << 40)]))
    raw = profile("d1").to_header().encode()

    def gets() -> bool:
        return any(name == TASKS_HEADER.lower().encode() for name, _ in answerer.headers(raw, "d1"))

    def short_gets(device_id: str) -> bool:
        """Return what the device gets by a profile that is the same of all devices."""
        short = ShortProfile("10", {}, [""], "").to_header().encode()
        return any(name == TASKS_HEADER.lower().encode() for name, _ in answerer.headers(short, device_id))

    assert not gets()
    for is_member in (True, False):
        put(uploaded, {"d1": {"is_member": is_member}})
        uploaded.read()
        answerer.swap_uploaded(uploaded.current)
        assert gets() is is_member
        assert gets() is is_member
        assert [short_gets(one) for one in ("d2", "d1", "d2", "d1")] == [False, is_member, False, is_member]
    put(uploaded, {"d1": {"is_member": True}})
    uploaded.read()
    answerer.swap_uploaded(uploaded.current)
    assert answerer.recent(9, request.policy) == ("d1",)
    answerer.swap(table_of(2))
    assert not gets()


@pytest.mark.asyncio
async def test_another_process_follows_what_is_put_and_removed(uploaded: UploadedAttributes) -> None:
    clock, other = ManualClock(), UploadedAttributes(uploaded._folder)
    seen: list[UploadedTables] = []
    following = asyncio.create_task(other.follow(clock, seen.append))

    async def until(count: int) -> UploadedTables:
        async with asyncio.timeout(30):
            while len(seen) < count:
                await asyncio.sleep(0.002)
                await clock.advance(FOLLOW_S)
        return seen[-1]

    try:
        assert (await until(1)).tables == ()
        await asyncio.to_thread(put, uploaded, {"d1": {"group": "gold"}})
        assert (await until(2)).explain(profile("d1")).uploaded == {"uploaded.group": "gold"}
        await asyncio.to_thread(put, uploaded, {"d1": {"group": "lead"}})
        assert (await until(3)).explain(profile("d1")).uploaded == {"uploaded.group": "lead"}
        assert seen[1].explain(profile("d1")).uploaded == {"uploaded.group": "gold"}  # mapped, though it was replaced
        assert uploaded.remove("device_id")
        assert not uploaded.remove("device_id")
        assert not uploaded.remove("../access")
        assert (await until(4)).tables == ()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def test_a_damaged_table_gives_nothing_and_the_others_stay(
    uploaded: UploadedAttributes, caplog: pytest.LogCaptureFixture
) -> None:
    put(uploaded, {"d1": {"group": "gold"}})
    put(uploaded, {"anna": {"age": 3}}, key="user")
    path = uploaded._folder / "device_id.table"
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    uploaded.read()
    assert uploaded.current.explain(profile("d1", user="anna")).uploaded == {"uploaded.age": 3}
    assert "rules match no device by uploaded attributes of device_id.table" in caplog.text


def test_keys_are_few_and_names(uploaded: UploadedAttributes) -> None:
    for key in ("device_id", "a", "b", "c"):
        put(uploaded, {"x": {"age": 1}}, key=key)
    put(uploaded, {"x": {"age": 2}}, key="c")
    for key, what in (("d", "there are 4 tables already"), ("../d", "is not device_id"), ("", "is not device_id")):
        with pytest.raises(AttributeTableError, match=what):
            put(uploaded, {"x": {"age": 1}}, key=key)
    with pytest.raises(AttributeTableError, match="line 1: age is"):
        put(uploaded, {"x": {"age": "1"}})
    uploaded.read()
    assert uploaded.current.explain(profile("x")).uploaded == {"uploaded.age": 1}  # what was there stays
    assert not [path for path in uploaded._folder.iterdir() if path.name.startswith(".")]


@pytest.mark.asyncio
async def test_the_gate_knows_the_control_of_a_policy_over_uploaded_attributes(
    uploaded: UploadedAttributes, tmp_path: Path
) -> None:
    put(uploaded, {f"d{number}": {"is_member": number < 5} for number in range(10)})
    uploaded.read()
    step = Step(
        release="r1",
        task="shop/ipv",
        stage="gray 0.5",
        gate=Gate(),
        steps=2,
        share_to=0.0001,
        version="v2",
        control_versions=frozenset({"v1"}),
        policy=Policy(rule="uploaded.is_member").typed(SCHEMA),
    )
    ran = Outcome(task="shop/ipv", version="v1", release="", kind=OutcomeKind.RUN, ok=10)
    async with Journal.in_file(tmp_path / "j.sqlite") as journal:
        for numbers, counted in (((0, 1, 7), 2), ((2, 8), 3)):  # the second after a restart
            async with MonitorService(journal, ManualClock(), uploaded=uploaded) as service:
                await service.watch(step)
                for number in numbers:
                    await service.take(OutcomeBatch(f"d{number}", f"b{number}", (ran,)))
                assert (await service.totals("r1")).control_devices == counted


_KILLED = """\
import sys
from pathlib import Path
from walle.deploy.policies.attribute_build import build_apart
from walle.deploy.policies.attribute_table import TableFacts
rows, out = map(Path, sys.argv[1:])
build_apart(rows, out, TableFacts(key="device_id", columns={}, rows=0, put_s=0.0, put_by=""))
"""


def state_of(pid: int) -> tuple[str, int]:
    """Return the state of a process, "" of none, and its parent."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    return state, int(parent)


def children_of(parent: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if state_of(pid)[1] == parent]


def test_a_table_is_made_no_longer_when_the_gateway_is_killed(tmp_path: Path) -> None:
    rows, end_s = tmp_path / "rows", time.monotonic() + 30
    os.mkfifo(rows)
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(rows), str(tmp_path / "out")]) as gateway:
        writer = None
        while writer is None:
            assert time.monotonic() < end_s
            try:
                writer = os.open(rows, os.O_WRONLY | os.O_NONBLOCK)  # opened once the child reads, which waits for rows
            except OSError:
                time.sleep(0.02)
        (child,) = children_of(gateway.pid)
        gateway.kill()
    try:
        while state_of(child)[0] not in ("", "Z"):
            assert time.monotonic() < end_s
            time.sleep(0.02)
    finally:
        os.close(writer)

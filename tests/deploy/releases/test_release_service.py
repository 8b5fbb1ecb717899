import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.sim.release_world import BUNDLE_SIGNER, RELEASE_SIGNER, ReleaseWorld, verify
from walle.base.clock import ManualClock
from walle.deploy.gate.gate import Gate, Verdict
from walle.deploy.git.repo import RepoError
from walle.deploy.policies.policy import Policy
from walle.deploy.releases.errors import SignedAgainError, TaskBusyError, UnknownReleaseError
from walle.deploy.releases.journal import Journal
from walle.deploy.releases.release import Release, ReleaseState, TransitionError
from walle.deploy.releases.request import ReleaseRequest, ReleaseRequestError
from walle.deploy.releases.simulation_result import SimulationResult
from walle.deploy.releases.stage_text import stage_text
from walle.protocol import Outcome, OutcomeBatch, OutcomeKind, Profile, directives_from_header
from walle.trust.audience import share
from walle.trust.metadata import RoleKeys, verify_manifest
from walle.trust.signing import Signer

STAGES = ("beta", "gray 0.25", "gray 0.5", "gray 1.0", "full")


TRIAL = Gate(trial_runs=10_000)


@contextlib.asynccontextmanager
async def _world(
    folder: Path, clock: ManualClock | None = None, signer: Signer = RELEASE_SIGNER
) -> AsyncIterator[ReleaseWorld]:
    async with Journal.in_file(folder / "journal.sqlite") as journal:
        world = ReleaseWorld(folder, clock or ManualClock(), journal, signer)
        async with world.monitor, world.service:
            await world.service.settled()
            yield world


def _request(version: str = "v1", **changes: object) -> ReleaseRequest:
    values = {"scenario": "shop", "task": "ipv", "version": version, "beta": ("d1",), "gate": TRIAL, **changes}
    return ReleaseRequest(**values)  # type: ignore[arg-type]


def _answer(world: ReleaseWorld, device_id: str, have: str = "", app_version: str = "10") -> str:
    """Return the version that the cloud leads a device to."""
    profile = Profile(device_id, app_version, {}, {"shop/ipv": have} if have else {})
    headers = world.answerer.headers(profile.to_header().encode(), profile.device_id)
    if not headers:
        return have
    (directive,) = directives_from_header(headers[0][1].decode())
    verify(directive)
    return directive.version


async def _started(world: ReleaseWorld, version: str = "v1", stage: str = "beta", **changes: object) -> Release:
    release = await world.service.create(_request(version, **changes))
    release = await world.reached(release.id, "gray 0.25" if changes.get("beta") == 0 else "beta")
    while release.stage != stage:
        await world.report(release.id, 1000, 0)
        release = await world.service.get(release.id)
    return release


async def _fully(world: ReleaseWorld, version: str) -> Release:
    return await _started(world, version, "full")


@pytest.mark.asyncio
async def test_files_are_coded_against_the_versions_that_devices_may_have(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        first = await _fully(world, "v1")
        bad = await _started(world, "v2")
        await world.service.rollback(bad.id, "tester", "it was bad")
        await world.service.settled()
        await _started(world, "v3")
        assert world.coded == [("v1", ()), ("v2", (first.manifest,)), ("v3", (first.manifest,))]


@pytest.mark.asyncio
async def test_a_release_goes_through_its_stages_on_the_monitor_s_word(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        release = await world.service.create(_request(), start=False)
        assert (release.id, release.state) == ("ipv-v1-1", ReleaseState.CREATED)
        assert _answer(world, "d1") == ""
        await world.service.start(release.id)
        release = await world.reached(release.id, "beta")
        assert (_answer(world, "d1"), _answer(world, "d2")) == ("v1", "")
        assert world.files.has(release.manifest)
        manifest = verify_manifest(
            world.files.path(release.manifest).read_bytes(), lambda _: RoleKeys.of([BUNDLE_SIGNER.public_key])
        )
        assert manifest.version == "v1"
        assert all(world.files.has(entry.sha256) for entry in manifest.files)
        seen = []
        for limit in (0.25, 0.5, 1.0):
            await world.report(release.id, 1000, 0)
            seen.append((await world.service.get(release.id)).stage)
            covered = {f"x{n}" for n in range(200) if _answer(world, f"x{n}") == "v1"}
            assert covered == {f"x{n}" for n in range(200) if share(release.id, f"x{n}") < limit}
        await world.report(release.id, 1000, 0)
        seen.append((await world.service.get(release.id)).stage)
        assert seen == list(STAGES[1:])
        assert _answer(world, "late") == "v1"
        assert [one.state for one in await world.service.history(release.id)] == [
            "created", "simulating", "beta", "gray", "gray", "gray", "full",
        ]  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("stage", STAGES[:-1])
async def test_a_failing_version_is_taken_back_at_any_stage(tmp_path: Path, stage: str) -> None:
    async with _world(tmp_path) as world:
        await _fully(world, "v1")
        bad = await _started(world, "v2", stage)
        assert _answer(world, "d1", "v1") == "v2"
        await world.report(bad.id, 10, 10, error="ZeroDivisionError")
        bad = await world.service.get(bad.id)
        assert (bad.state, bad.stage) == (ReleaseState.ROLLED_BACK, "rolled_back")
        assert (
            f"{stage_text(stage)}: 10 of 20 runs failed, on 1 devices, the last with: ZeroDivisionError" in bad.reason
        )
        assert {_answer(world, device, "v2") for device in ("d1", "d2", "d3")} == {"v1"}
        assert _answer(world, "d1", "v1") == "v1"
        fix = await _started(world, "v3", "full")
        assert _answer(world, "d1", "v2") == "v3"
        assert fix.state is ReleaseState.FULL


@pytest.mark.asyncio
async def test_a_person_may_roll_back_from_anywhere_full_included(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        await _fully(world, "v1")
        second = await _fully(world, "v2")
        assert _answer(world, "d9", "v1") == "v2"
        over = await world.service.rollback(second.id, "anna", "battery")
        assert over.reason == "by anna: battery"
        await world.service.settled()
        assert _answer(world, "d9", "v2") == "v1"
        created = await world.service.create(_request("v3"), start=False)
        await world.service.rollback(created.id, "anna", "")
        third = await _started(world, "v3", "gray 0.5")
        await world.service.pause(third.id)
        assert (await world.service.rollback(third.id, "anna", "")).state is ReleaseState.ROLLED_BACK


@pytest.mark.asyncio
async def test_old_full_versions_are_retired_and_no_rollback_leads_to_them(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        v1, v2, v3, v4 = [await _fully(world, f"v{number}") for number in range(1, 5)]
        service = world.service
        with pytest.raises(ReleaseRequestError, match="a rollback must find a version"):
            await service.retire("shop", "", "anna", keep_versions=1)
        assert await service.retire("other", "", "anna", keep_versions=2) == []
        assert await service.retire("shop", "other", "anna", keep_versions=2) == []
        would = await service.retire("shop", "", "anna", keep_versions=2, dry_run=True)
        assert [one.id for one in would] == [v1.id, v2.id]
        assert (await service.get(v1.id)).state is ReleaseState.FULL
        before = [_answer(world, "d9", have) for have in ("", "v1", "v2", "v3", "v4")]
        done = await service.retire("shop", "ipv", "anna", keep_versions=2)
        assert [(one.id, one.state, one.reason) for one in done] == [
            (v1.id, ReleaseState.RETIRED, "by anna: 3 newer versions have taken its place"),
            (v2.id, ReleaseState.RETIRED, "by anna: 2 newer versions have taken its place"),
        ]
        await service.settled()
        assert [_answer(world, "d9", have) for have in ("", "v1", "v2", "v3", "v4")] == before
        assert await service.retire("shop", "ipv", "anna", keep_versions=2) == []
        with pytest.raises(TransitionError):
            await service.rollback(v1.id, "anna", "")
    async with _world(tmp_path) as world:
        service = world.service
        await service.rollback(v4.id, "anna", "")
        await service.settled()
        assert _answer(world, "d9", "v4") == "v3"
        await service.rollback(v3.id, "anna", "")
        await service.settled()
        assert _answer(world, "d9", "v3") == ""
        assert (await service.retry(v2.id)).retries == v2.id  # the version is built and stored again


@pytest.mark.asyncio
async def test_a_rollback_that_comes_before_a_version_is_retired_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _world(tmp_path) as world:
        service = world.service
        v1, _, v3 = [await _fully(world, f"v{number}") for number in range(1, 4)]
        whole = service._whole

        async def late(work: Coroutine[Any, Any, Release]) -> Release:
            monkeypatch.undo()
            await service.rollback(v3.id, "anna", "it fails")  # the list is read, but no release was retired yet
            return await whole(work)

        monkeypatch.setattr(service, "_whole", late)
        assert await service.retire("shop", "", "gc", keep_versions=2) == []
        assert (await service.get(v1.id)).state is ReleaseState.FULL


@pytest.mark.asyncio
async def test_a_failed_simulation_reaches_no_device_and_blocks_nothing(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        world.simulation = SimulationResult(ok=False, runs=8, failures=3, first_error="KeyError: 'age'")
        release = await world.service.create(_request())
        failed = await world.reached(release.id, "failed")
        assert failed.reason == "3 of 8 simulated runs failed: KeyError: 'age'"
        assert _answer(world, "d1") == ""
        world.simulation = SimulationResult(ok=True, runs=8, failures=0)
        await _fully(world, "v2")


@pytest.mark.asyncio
async def test_whatever_breaks_a_simulation_fails_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _world(tmp_path) as world:

        def full_disk(_: bytes) -> str:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(world.files, "put", full_disk)
        release = await world.service.create(_request())
        failed = await world.reached(release.id, "failed")
        assert "No space left on device" in failed.reason


@pytest.mark.asyncio
async def test_a_rollback_ends_a_simulation_that_hangs(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        world.go_on.clear()
        release = await world.service.create(_request())
        await world.simulating.wait()
        await world.service.rollback(release.id, "anna", "it hangs")
        world.go_on.set()
        await world.service.settled()
        assert (await world.service.get(release.id)).reason == "by anna: it hangs"
        assert world.service._simulations.running == {}
        async with asyncio.timeout(10):  # `settled` does not wait for the effect of the simulation to be struck
            while len(world.service._tasks) > 2:  # noqa: ASYNC110 - a task's end sets no event
                await asyncio.sleep(0.01)
        assert len(world.service._tasks) == 2, "only the refresh and the renewal of the timestamp are left"


@pytest.mark.asyncio
async def test_one_release_of_a_task_at_a_time(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        first = await world.service.create(_request("v1"), start=False)
        with pytest.raises(TaskBusyError, match=r"release ipv-v1-1 of shop/ipv is under way \(created\)") as caught:
            await world.service.create(_request("v2"))
        assert caught.value.release_id == first.id
        results = await asyncio.gather(
            world.service.rollback(first.id, "anna", ""),
            world.service.rollback(first.id, "bert", ""),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["Release", "TransitionError"]
        both = await asyncio.gather(
            world.service.create(_request("v2")), world.service.create(_request("v3")), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in both) == ["Release", "TaskBusyError"]


@pytest.mark.asyncio
async def test_what_does_not_exist_is_refused(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        with pytest.raises(RepoError, match="v9"):
            await world.service.create(_request("v9"))
        with pytest.raises(UnknownReleaseError, match="release 'nope' does not exist"):
            await world.service.start("nope")
        release = await world.service.create(_request(), start=False)
        with pytest.raises(TransitionError, match="is in the state created and cannot be paused"):
            await world.service.pause(release.id)
        assert [one.id for one in await world.service.all()] == [release.id]


@pytest.mark.asyncio
async def test_beta_devices_are_those_seen_of_the_policy(tmp_path: Path) -> None:
    clock = ManualClock()
    async with _world(tmp_path, clock) as world:
        _answer(world, "old", app_version="9")
        _answer(world, "first")
        release = await world.service.create(_request(beta=2, policy=Policy(">=10")))
        release = await world.reached(release.id, "beta")
        assert release.beta_devices == ()
        await clock.advance(1.0)
        found = await world.service.get(release.id)
        count = (await world.service.beta_found([release.id]))[release.id]
        assert found.waits_for(count).startswith("waiting for 1 more beta device to check in (1 of 2 found)")
        assert "beta_found" not in found.to_plain()
        _answer(world, "second")
        watcher = asyncio.ensure_future(world.service.wait_change(release.id, release.revision, 1e9))
        while not watcher.done():
            await clock.advance(1.0)
        assert watcher.result().beta_devices == ("second", "first")
        assert await world.service.beta_found([release.id]) == {}
        await world.service.settled()
        assert (_answer(world, "first"), _answer(world, "third")) == ("v1", "")


@pytest.mark.asyncio
async def test_a_release_for_one_named_device_becomes_full_by_what_that_device_reports(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        with pytest.raises(ReleaseRequestError, match="'d2' is not one of the devices that the release is for"):
            await world.service.create(_request(beta=("d2",), policy=Policy(devices=("d1",))))
        _answer(world, "d1")
        release = await world.service.create(_request(beta=2, policy=Policy(devices=("d1", "d1")), gate=Gate()))
        release = await world.reached(release.id, "beta")
        await world.service.wait_change(release.id, 2, 1e9)
        await world.service.settled()
        await world.report(release.id, 10, 0)
        assert (await world.service.get(release.id)).state is ReleaseState.FULL


@pytest.mark.asyncio
async def test_releases_for_the_same_devices_in_another_order_are_of_one_policy(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        await world.service.create(_request(policy=Policy(devices=("d1", "d2"))))
        with pytest.raises(TaskBusyError):
            await world.service.create(_request("v2", policy=Policy(devices=("d2", "d1", "d1"))))


@pytest.mark.asyncio
async def test_devices_of_another_release_or_policy_are_not_a_control(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        first = await _fully(world, "v1")
        bad = await _started(world, "v2", policy=Policy(rule='os == "android"'), gate=Gate())
        good = await _started(world, "v3", "gray 0.25", beta=0, gate=Gate())
        assert bad.stage == "beta"
        phones = [name for name in map(str, range(40)) if share(good.id, name) >= 0.25][:10]
        for number, phone in enumerate(phones):
            version, failed = ("v2", 10) if number % 2 else ("v1", 0)
            ran = Outcome(
                task="shop/ipv", version=version, release="", kind=OutcomeKind.RUN, ok=10 - failed, failed=failed
            )
            await world.monitor.take(OutcomeBatch(phone, phone, (ran,)))
        assert (await world.monitor.evidence(good.id))["control"] == {
            "devices": 5, "broken": 0, "runs": 50, "failed": 0.0, "waiting": 0, "hindered": 0,
        }  # fmt: skip
        assert (await world.monitor.totals(bad.id)).control_devices == 0  # none of them says its system
        await world.service.rollback(first.id, "anna", "")
        await world.service.settled()
        assert (await world.monitor.evidence(good.id))["control"] is None  # there is no version before any more


@pytest.mark.asyncio
async def test_a_pause_holds_the_verdict_until_it_ends(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        release = await _started(world, "v1", "gray 0.25")
        await world.service.pause(release.id)
        await world.report(release.id, 5000, 0)
        assert (await world.service.get(release.id)).state is ReleaseState.PAUSED
        await world.service.resume(release.id)
        await world.service.settled()
        assert (await world.service.get(release.id)).stage == "gray 0.5"
        await world.service.pause(release.id)
        await world.report(release.id, 0, 50)
        assert (await world.service.get(release.id)).state is ReleaseState.ROLLED_BACK


@pytest.mark.asyncio
async def test_a_verdict_that_comes_late_is_void(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        release = await _started(world, "v1", "gray 0.25")
        await world.service.verdict(release.id, "beta", Verdict.ACCEPT, "")
        await world.service.verdict(release.id, "beta", Verdict.REJECT, "old news")
        await world.service.verdict(release.id, "gray 0.25", Verdict.CONTINUE, "")
        await world.service.verdict("nope", "beta", Verdict.REJECT, "")
        assert await world.service.get(release.id) == release
        await asyncio.gather(*(world.service.verdict(release.id, "gray 0.25", Verdict.ACCEPT, "") for _ in range(5)))
        assert (await world.service.get(release.id)).stage == "gray 0.5", "one verdict moves one step"


@pytest.mark.asyncio
async def test_a_table_is_published_again_to_a_gateway_that_did_not_answer(tmp_path: Path) -> None:
    clock = ManualClock()
    async with _world(tmp_path, clock) as world:
        release = await _started(world, "v1", "gray 1.0")
        world.publish_errors = 3
        await world.service.rollback(release.id, "anna", "")
        settled = asyncio.ensure_future(world.service.settled())
        while not settled.done():
            await clock.advance(0.5)
        assert world.publish_errors == 0
        assert _answer(world, "d1", "v1") == ""
        assert await world.journal.pending() == []


@pytest.mark.asyncio
async def test_directives_are_signed_again_before_they_expire(tmp_path: Path) -> None:
    clock = ManualClock()
    async with _world(tmp_path, clock) as world:
        await _fully(world, "v1")
        before = world.answerer.table.rows["shop/ipv"]
        await clock.advance(86_400 * 0.4)
        await world.service.settled()
        assert world.answerer.table.rows["shop/ipv"] is before
        await clock.advance(86_400 * 0.25)
        while world.answerer.table.rows["shop/ipv"] is before:
            world.published.clear()
            await world.published.wait()
        assert clock.time() < before.expires_s
        after = world.answerer.table.rows["shop/ipv"]
        assert after.expires_s > before.expires_s
        assert after.entries[0].directive.serial > before.removal.serial


@pytest.mark.asyncio
async def test_all_directives_are_signed_again_with_a_new_release_key(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        await _fully(world, "v1")
        before = world.answerer.table.rows["shop/ipv"]
    signer = Signer.generate()
    async with _world(tmp_path, signer=signer) as world:
        after = world.answerer.table.rows["shop/ipv"]
        verify(after.entries[0].directive, signer)
        assert after.entries[0].directive.serial > before.removal.serial


@pytest.mark.asyncio
async def test_a_watcher_sees_the_end(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        release = await world.service.create(_request(), start=False)

        async def watch() -> list[str]:
            return [seen.stage async for seen in world.service.watch(release.id)]

        watcher = asyncio.ensure_future(watch())
        await world.service.start(release.id)
        await world.reached(release.id, "beta")
        await world.service.rollback(release.id, "anna", "")
        stages = await watcher
        assert stages[0] == "created"
        assert stages[-1] == "rolled_back"
        assert "beta" in stages


@pytest.mark.asyncio
async def test_waiting_ends_in_time_and_leaves_nothing_behind(tmp_path: Path) -> None:
    clock = ManualClock()
    async with _world(tmp_path, clock) as world:
        release = await world.service.create(_request(), start=False)
        waiting = asyncio.ensure_future(world.service.wait_change(release.id, release.revision, 5.0))
        await clock.advance(4.9)
        assert not waiting.done()
        await clock.advance(0.2)
        assert await waiting == release


@pytest.mark.asyncio
@pytest.mark.parametrize("stage", STAGES)
async def test_a_restarted_service_continues_where_it_was(tmp_path: Path, stage: str) -> None:
    async with _world(tmp_path) as world:
        release = await _started(world, "v1", stage)
        await world.report(release.id, 100, 0)
        rows = world.answerer.table.rows
        generation = world.answerer.table.generation
    async with _world(tmp_path) as world:
        assert await world.service.get(release.id) == release
        assert world.answerer.table.rows == rows, "the same signatures as before"
        assert world.answerer.table.generation > generation
        assert (await world.monitor.totals(release.id)).stage == ("" if stage == "full" else stage)
        while (await world.service.get(release.id)).state is not ReleaseState.FULL:
            await world.report(release.id, 1000, 0)
        assert world.simulated == []


_CHILD = """
import asyncio, sys
from pathlib import Path
from tests.sim.release_world import ReleaseWorld
from walle.base.clock import SystemClock
from walle.deploy.releases.journal import Journal
from walle.deploy.gate.gate import Gate
from walle.deploy.releases.request import ReleaseRequest

async def main(folder, stop_at):
    journal = await Journal.in_file(folder / "journal.sqlite").__aenter__()
    world = ReleaseWorld(folder, SystemClock(), journal)
    await world.service.__aenter__()
    if stop_at == "simulating":
        world.go_on.clear()
    request = ReleaseRequest(scenario="shop", task="ipv", version="v1", beta=("d1",), gate=Gate(trial_runs=10_000))
    release = await world.service.create(request)
    if stop_at == "simulating":
        await world.simulating.wait()
    else:
        await world.reached(release.id, "beta")
        world.go_on.clear()  # the gateway hears no more
        await world.monitor.take(batch(release.id))
        await world.service.wait_change(release.id, 2, 60)
        if stop_at == "rolling back":
            await world.service.rollback(release.id, "anna", "stop")
    print(release.id, flush=True)
    await asyncio.Event().wait()

def batch(release_id):
    from walle.protocol import Outcome, OutcomeBatch, OutcomeKind
    fields = {"task": "shop/ipv", "version": "v1", "release": release_id}
    outcomes = Outcome(**fields, kind=OutcomeKind.INSTALLED), Outcome(**fields, kind=OutcomeKind.RUN, ok=1000)
    return OutcomeBatch("d1", "b1", outcomes)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("stop_at", ["simulating", "gray", "rolling back"])
async def test_a_killed_service_runs_what_was_left(tmp_path: Path, stop_at: str) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CHILD,
        str(tmp_path),
        stop_at,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    try:
        assert child.stdout is not None
        release_id = (await child.stdout.readline()).decode().strip()
    finally:
        child.send_signal(signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
    assert release_id == "ipv-v1-1"
    async with Journal.in_file(tmp_path / "journal.sqlite") as journal:
        assert await journal.pending(), "killed before its effects were through"
    async with _world(tmp_path) as world:
        if stop_at == "simulating":
            release = await world.reached(release_id, "beta")
            assert world.simulated == ["v1"]
            assert (_answer(world, "d1"), _answer(world, "d2")) == ("v1", "")
        elif stop_at == "gray":
            release = await world.reached(release_id, "gray 0.25")
            covered = [f"x{n}" for n in range(100) if _answer(world, f"x{n}") == "v1"]
            assert covered == [f"x{n}" for n in range(100) if share(release_id, f"x{n}") < 0.25]
        else:
            release = await world.service.get(release_id)
            assert release.state is ReleaseState.ROLLED_BACK
            assert _answer(world, "d1", "v1") == ""
        await world.service.settled()
        assert await world.journal.pending() == []
        assert await world.service.get(release_id) == release


@pytest.mark.asyncio
async def test_a_cancelled_caller_leaves_journal_and_memory_equal(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        world.go_on.clear()  # the simulation ends after the test
        for turns in range(12):
            caller = asyncio.ensure_future(world.service.create(_request("v1")))
            for _ in range(turns):
                await asyncio.sleep(0)
            caller.cancel()
            with contextlib.suppress(asyncio.CancelledError, TaskBusyError):
                await caller
        async with world.service._changing:  # what was begun is through
            pass
        assert list(reversed(await world.service.all())) == await world.journal.releases()


async def _says_why(world: ReleaseWorld, release_id: str) -> Release:
    """Return the release once it has a reason."""
    async for release in world.service.watch(release_id):
        if release.reason:
            return release
    raise AssertionError(f"{release_id} ended without a reason")


@pytest.mark.asyncio
async def test_a_version_without_signatures_waits_says_why_and_continues_also_after_a_restart(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        world.unsigned = True
        release = await world.service.create(_request(beta=0))
        shown = await _says_why(world, release.id)
        assert (shown.state, shown.reason) == (
            ReleaseState.SIMULATING,
            "shop/ipv v1 waits for a signature: sign it with: walle sign",
        )
        world.service.check_signatures()  # nothing came: it says so once
        await world.service.settled()
        assert [one.event for one in await world.service.history(release.id)] == ["Create", "SignatureAwaited"]
    async with _world(tmp_path) as world:  # the effect was journalled
        reached = await world.reached(release.id, "gray 0.25")
        assert reached.reason == ""
    async with _world(tmp_path) as world:
        world.unsigned = True
        await world.service.rollback(release.id, "anna", "")
        again = await world.service.create(_request("v2", beta=0))
        await _says_why(world, again.id)
        await world.service.add_signatures("shop", "ipv", "v2", {"a": b"signature"})
        await world.reached(again.id, "gray 0.25")


@pytest.mark.asyncio
async def test_another_manifest_is_not_signed_into_a_release_that_was_simulated(tmp_path: Path) -> None:
    async with _world(tmp_path) as world:
        release = await world.service.create(_request(beta=0))
        before = await world.reached(release.id, "gray 0.25")
        assert await world.service.sign_again("shop", "ipv", "v1") == []
        world.signer = Signer.generate()
        assert await world.service.sign_again("shop", "ipv", "v1") == [release.id]
        await world.service.settled()
        after = await world.service.get(release.id)
        assert after.manifest != before.manifest
        assert dataclasses.replace(after, manifest="", revision=0, updated_s=0.0) == dataclasses.replace(
            before, manifest="", revision=0, updated_s=0.0
        )
        assert after.manifest in world.answerer.table.manifests
        world.commit = "d" * 40
        with pytest.raises(SignedAgainError, match="release a new version"):
            await world.service.sign_again("shop", "ipv", "v1")
        assert (await world.service.get(release.id)).manifest == after.manifest


@pytest.mark.asyncio
async def test_the_timestamp_is_renewed_without_a_new_table(tmp_path: Path) -> None:
    clock = ManualClock()
    async with _world(tmp_path, clock) as world:
        await _fully(world, "v1")
        before = world.answerer.table
        world.published.clear()
        await clock.advance(901)
        await world.published.wait()
        after = world.answerer.table
        assert (after.generation, after.rows) == (before.generation, before.rows)
        assert after.timestamp == f"{after.generation}:{after.floor}"


@pytest.mark.asyncio
async def test_a_bad_version_is_rolled_back_in_its_bake_and_a_good_one_ends_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with _world(tmp_path, clock) as world:
        good = await _started(world, stage="full")
        assert not good.bakes
        gate = dataclasses.replace(TRIAL, bake_s=3_600.0)
        release = await _started(world, "v2", stage="full", gate=gate)
        assert (release.state, release.bakes, _answer(world, "d9")) == (ReleaseState.FULL, True, "v2")
        outcome = Outcome(task="shop/ipv", version="v2", release=release.id, kind=OutcomeKind.RUN, failed=500)
        await clock.advance(3_000.0)
        for number in range(9):
            await world.monitor.take(OutcomeBatch(f"d{number}", "late", (outcome,)))
        await world.service.settled()
        release = await world.service.get(release.id)
        assert (release.state, release.bakes) == (ReleaseState.ROLLED_BACK, False)
        assert release.reason.startswith("full: ")
        assert _answer(world, "d9") == "v1"
        assert (await world.monitor.evidence(release.id))["bakes"]
        again = await world.service.retry(release.id)
        assert (again.retries, again.request, again.state) == (release.id, release.request, ReleaseState.SIMULATING)
        assert (await world.monitor.evidence(release.id))["bakes"]  # the earlier attempt's evidence stays
        with pytest.raises(TransitionError, match="cannot be tried again"):
            await world.service.retry(again.id)
